"""What the tools' answers are taken for; the tools themselves run by ``make sbom``, ``make licences`` and ``make audit``."""

from __future__ import annotations

import json

import pytest
from supply.audit import Answer, read_govulncheck, read_pip_audit
from supply.licences import UnknownLicence, licence_of
from supply.sbom import Component

PACKAGE = {"name": "a", "version": "1"}


@pytest.mark.parametrize(
    ("packages", "answer"),
    [
        ([{**PACKAGE, "vulns": []}], Answer.CLEAN),
        ([{**PACKAGE, "vulns": [{"id": "PYSEC-1"}]}], Answer.FOUND),
        ([{**PACKAGE, "skip_reason": "not found"}], Answer.UNKNOWN),
        ([{**PACKAGE, "vulns": []}, {"name": "b", "skip_reason": "not found"}], Answer.UNKNOWN),
        ([{**PACKAGE, "vulns": [{"id": "PYSEC-1"}]}, {"name": "b", "skip_reason": "not found"}], Answer.FOUND),
    ],
    ids=["clean", "found", "no data", "data for some", "found in some"],
)
def test_packages_that_could_not_be_looked_up_are_never_clean(packages: list[dict[str, object]], answer: Answer) -> None:
    assert read_pip_audit(json.dumps({"dependencies": packages}), "").answer is answer


def test_an_audit_that_failed_says_nothing_of_its_packages() -> None:
    assert read_pip_audit("", "no network").answer is Answer.UNKNOWN


@pytest.mark.parametrize(
    ("code", "errors", "answer"),
    [(0, "", Answer.CLEAN), (1, "exit status 3", Answer.FOUND), (3, "", Answer.FOUND), (1, "fetching: no such host", Answer.UNKNOWN)],
    ids=["clean", "found under go run", "found", "no data"],
)
def test_govulncheck_without_its_database_is_not_clean(code: int, errors: str, answer: Answer) -> None:
    assert read_govulncheck(code, "", errors).answer is answer


@pytest.mark.parametrize(
    ("name", "declared", "licence"),
    [
        ("a", ("MIT",), "MIT"),
        ("a", ("Apache-2.0 AND MIT",), "Apache-2.0 AND MIT"),
        ("a", ("ISC", "License :: OSI Approved :: BSD License"), "ISC"),
        ("a", ("Apache-2.0", "License :: OSI Approved :: Apache Software License"), "Apache-2.0"),
        ("protobuf", (), "BSD-3-Clause"),
    ],
)
def test_licences_in_spdx_words(name: str, declared: tuple[str, ...], licence: str) -> None:
    assert licence_of(Component(name, "1", declared)) == licence


@pytest.mark.parametrize("declared", [(), ("GPL-3.0-only",), ("MIT AND SSPL-1.0",), ("License :: OSI Approved :: BSD License",)])
def test_a_licence_that_nobody_read_is_refused(declared: tuple[str, ...]) -> None:
    with pytest.raises(UnknownLicence, match="a 1"):
        licence_of(Component("a", "1", declared))
