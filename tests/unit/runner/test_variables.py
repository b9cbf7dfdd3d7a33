"""Templates of the commands' environment, and which values are secrets."""

from __future__ import annotations

import pytest

from seatrial_runner.faults import Fault
from seatrial_runner.variables import longest_first, resolve_all, secret_values, template_sources


@pytest.mark.conforms("H-45")
def test_secrets_of_the_container_stand_above_literals_of_the_job() -> None:
    environ = {"SEATRIAL_VAR_KEY": "from a Secret", "PATH": "/bin"}
    assert template_sources(environ, {"KEY": "literal", "MODE": "fast"}) == {"KEY": "from a Secret", "MODE": "fast"}


@pytest.mark.conforms("H-43")
@pytest.mark.parametrize(
    ("value", "result"),
    [
        ("${SET}", "value"),
        ("${EMPTY:-text}", ""),
        ("${UNSET:-te}xt}", "te}xt"),
        ("${UNSET:-}", ""),
        ("x${SET}", "x${SET}"),
        ("$SET", "$SET"),
        ("${SET:text}", "${SET:text}"),
        ("${}", "${}"),
    ],
)
def test_templates_row_by_row(value: str, result: str) -> None:
    assert resolve_all({"NAME": value}, {"SET": "value", "EMPTY": ""}, where="[verifier.env]") == {"NAME": result}


@pytest.mark.parametrize("name", ["UNSET", " SET ", "UNSET-d"])
def test_a_missing_variable_is_the_users_fault_and_named(name: str) -> None:
    with pytest.raises(Fault) as caught:
        resolve_all({"TOKEN": f"${{{name}}}"}, {"SET": "value"}, where="[verifier.env]")
    assert (caught.value.type, caught.value.cause, caught.value.reason) == ("ValueError", "user", "VariableMissing")
    assert f"{name!r} not found ([verifier.env] TOKEN)" in caught.value.message


def test_values_under_sensitive_names_are_secret_unless_short_or_boolean() -> None:
    env = {"API_KEY": "sk-canary", "AUTH": "short", "SECRET": "falsey", "USE_TOKEN": "false", "MAX_TOKENS": "100000", "MODE": "release"}
    assert secret_values(env) == ["sk-canary", "falsey"]


def test_longer_values_come_first_and_once() -> None:
    assert longest_first(["secret", "secret-2", "secret", "abcdef"]) == ("secret-2", "abcdef", "secret")
