"""Which literals count as credentials. The table is the one of NeMo Evaluator's check."""

from __future__ import annotations

from typing import Any

import pytest

from seatrial.api.credentials import credential_paths, is_masked_name
from seatrial.api.evaljob import EvalJob
from seatrial.api.meta import PlaintextCredential
from seatrial.errors import InvalidSpec

AKIA = "AKIA" + "0" * 16
AIZA = "AIza" + "0" * 35


def job(**agent: Any) -> dict[str, Any]:
    return {
        "apiVersion": "seatrial.dev/v1alpha1",
        "kind": "EvalJob",
        "metadata": {"name": "case"},
        "spec": {"taskset": "smoke", "agent": {"name": "nop", **agent}},
    }


@pytest.mark.parametrize(
    "value",
    [
        {"token": "abc"},
        {"api_keys": "abc"},
        {"max_tokens": "7"},
        {"my_token_count": "7"},
        {"authorization": "abc"},
        {"a": {"secret": {"b": "abc"}}},
        {"Password": "abc"},
        {"a": [{"api_key": "abc"}]},
        {"env": {"api_key_env": "OPENAI_API_KEY"}},
        {"api_key_env": "not an identifier"},
        {"text": "sk-" + "0" * 20},
        {"text": "header: hf_" + "0" * 20},
        {"text": AKIA},
        {"text": AIZA},
        {"list": ["fine", "-----BEGIN PRIVATE KEY-----"]},
    ],
    ids=str,
)
@pytest.mark.conforms("N-109", "N-202")
def test_credentials_are_found(value: dict[str, Any]) -> None:
    assert len(list(credential_paths(value))) == 1


@pytest.mark.parametrize(
    "value",
    [
        {"tokenizer": "abc"},
        {"auth": "abc"},
        {"key": "abc"},
        {"accesskey": "abc"},
        {"access-key": "abc"},
        {"secretName": "abc"},
        {"token": 7},
        {"token": True},
        {"token": ""},
        {"token": None},
        {"text": "sk-abc"},
        {"text": "task-" + "0" * 20},
        {"client": {"api_key_env": "OPENAI_API_KEY"}},
        {"header_env": "HEADER"},
    ],
    ids=str,
)
@pytest.mark.conforms("N-202")
def test_what_is_no_credential_passes(value: dict[str, Any]) -> None:
    assert list(credential_paths(value)) == []


@pytest.mark.conforms("N-110", "N-202")
def test_a_whole_template_passes_and_an_embedded_one_does_not() -> None:
    assert EvalJob.problems(job(kwargs={"api_key": "${OPENAI_API_KEY}"})) == ()
    assert list(credential_paths({"api_key": "x${OPENAI_API_KEY}"})) == ["api_key"]


@pytest.mark.conforms("N-109", "N-111")
def test_the_refusal_lists_paths_and_no_values() -> None:
    value = "sk-" + "7" * 30
    with pytest.raises(PlaintextCredential) as caught:
        EvalJob.parse(job(kwargs={"client": {"api_key": value}, "list": [{"note": value}]}, command=None))
    assert (caught.value.path, str(caught.value)) == (
        "spec.agent",
        "spec.agent: kwargs.client.api_key, kwargs.list.note looks like a credential: put it into a Secret and name it in envSecrets",
    )


@pytest.mark.parametrize("name", ["MAX_TOKENS", "OPENAI_API_KEY", "my_secret", "Password", "CREDENTIALS", "AUTHOR"])
@pytest.mark.conforms("N-117")
def test_agent_variables_with_masked_names_are_refused(name: str) -> None:
    assert is_masked_name(name)
    with pytest.raises(PlaintextCredential):
        EvalJob.parse(job(env={name: "7"}))


@pytest.mark.parametrize("value", ["${LEVEL}", "a ${LEVEL} b", "nvapi-" + "0" * 20])
@pytest.mark.conforms("N-117")
def test_agent_variables_are_harmless_literals(value: str) -> None:
    with pytest.raises(InvalidSpec) as caught:
        EvalJob.parse(job(env={"EFFORT": value}))
    assert value not in str(caught.value)


@pytest.mark.parametrize("field", ["environment", "verifier"])
def test_other_variables_may_have_harmless_names_that_harbor_would_mask(field: str) -> None:
    raw = job()
    raw["spec"][field] = {"env": {"KEYBOARD": "us", "AUTHOR": "me"}}
    assert EvalJob.problems(raw) == ()
