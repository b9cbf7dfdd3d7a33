from __future__ import annotations

from typing import Any

import pytest

from seatrial.effects.settings import read_settings
from seatrial.errors import InvalidSpec

REQUIRED = {
    "SEATRIAL_S3_ENDPOINT": "http://s3:9000",
    "SEATRIAL_S3_BUCKET": "b",
    "SEATRIAL_S3_ACCESS_KEY": "access",
    "SEATRIAL_S3_SECRET_KEY": "hidden",
}


def test_the_least_that_must_be_given() -> None:
    settings = read_settings(REQUIRED)
    assert (settings.s3_endpoint, settings.s3_region, settings.namespaces, settings.workers) == ("http://s3:9000", "us-east-1", (), 4)
    assert settings.identity != read_settings(REQUIRED).identity


@pytest.mark.parametrize("name", sorted(REQUIRED))
def test_a_missing_variable_is_named(name: str) -> None:
    with pytest.raises(InvalidSpec, match=name):
        read_settings({**REQUIRED, name: ""})


@pytest.mark.parametrize(
    ("variable", "text", "field", "value"),
    [
        ("SEATRIAL_NAMESPACES", " a, b ,", "namespaces", ("a", "b")),
        ("SEATRIAL_WORKERS", "8", "workers", 8),
        ("SEATRIAL_WRITE_RATE", "2.5", "write_rate", 2.5),
        ("SEATRIAL_S3_PATH_STYLE", "false", "s3_path_style", False),
        ("SEATRIAL_S3_PRESIGN_ENDPOINT", "http://other", "s3_presign_endpoint", "http://other"),
    ],
)
def test_values_are_read_by_their_kind(variable: str, text: str, field: str, value: Any) -> None:
    assert getattr(read_settings({**REQUIRED, variable: text}), field) == value


@pytest.mark.parametrize("variable", ["SEATRIAL_WORKERS", "SEATRIAL_WRITE_RATE", "SEATRIAL_S3_PATH_STYLE", "SEATRIAL_BLOCKED_CIDRS"])
def test_nonsense_is_refused_by_name(variable: str) -> None:
    with pytest.raises(InvalidSpec, match=variable):
        read_settings({**REQUIRED, variable: "nonsense"})


def test_keys_in_a_folder_need_a_signing_secret_that_does_not_change_with_them() -> None:
    folder = {
        "SEATRIAL_S3_ENDPOINT": "http://s3:9000",
        "SEATRIAL_S3_BUCKET": "b",
        "SEATRIAL_S3_CREDENTIALS_DIR": "/etc/s3",
    }
    with pytest.raises(InvalidSpec, match="SEATRIAL_SIGNING_SECRET"):
        read_settings(folder)
    assert read_settings({**folder, "SEATRIAL_SIGNING_SECRET": "s"}).store().credentials_dir == "/etc/s3"


def test_no_secret_is_ever_printed() -> None:
    text = repr(read_settings({**REQUIRED, "SEATRIAL_SIGNING_SECRET": "hidden-too"}))
    assert "hidden" not in text


def test_a_jobs_key_is_text_and_the_same_after_a_restart_and_differs_between_jobs_and_secrets() -> None:
    settings = read_settings({**REQUIRED, "SEATRIAL_SIGNING_SECRET": "one"})
    again = read_settings({**REQUIRED, "SEATRIAL_SIGNING_SECRET": "one"})
    other = read_settings({**REQUIRED, "SEATRIAL_SIGNING_SECRET": "two"})
    key = settings.job_key("uid")
    assert key == again.job_key("uid")
    assert len({key, settings.job_key("uid-2"), other.job_key("uid"), read_settings(REQUIRED).job_key("uid")}) == 4
    assert key.decode("ascii").isalnum()


def test_references_stay_in_their_namespace_unless_it_is_shared() -> None:
    settings = read_settings({**REQUIRED, "SEATRIAL_SHARED_NAMESPACES": "library"})
    assert [settings.may_refer("evals", other) for other in ("evals", "library", "secret")] == [True, True, False]
