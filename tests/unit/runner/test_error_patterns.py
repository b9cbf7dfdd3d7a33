"""Output of failed agents, read as Harbor reads it."""

from __future__ import annotations

import pytest

from seatrial.harbor_errors import ERROR_POLICIES
from seatrial_runner.error_patterns import _PATTERNS, classify


@pytest.mark.conforms("H-97")
@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("Error: 429 Too Many Requests", "ApiRateLimitError"),
        ("rate_limit_error: slow down", "ApiRateLimitError"),
        ("You have reached your usage limit", "ApiUsageLimitError"),
        ("insufficient_quota", "ApiUsageLimitError"),
        ("Your credit balance is too low", "ApiUsageLimitError"),
        ("API Error: 500 oops", "ApiInternalServerError"),
        ("Overloaded", "ApiOverloadedError"),
        ("503 Service Unavailable", "ApiOverloadedError"),
        ("connection closed mid-response", "ApiConnectionClosedError"),
        ("the response stalled", "ApiResponseStalledError"),
        ("exceeded the 32000 output token maximum", "OutputTokenExceededError"),
        ("Prompt is too long", "ContextWindowExceededError"),
        ("This model's maximum context length is 8192 tokens", "ContextWindowExceededError"),
        ("Invalid API key", "AgentAuthenticationError"),
        ("API Error: 401 who are you", "AgentAuthenticationError"),
        ("Not logged in", "AgentAuthenticationError"),
        ("Unknown model: gpt-0", "ModelNotFoundError"),
        ("The model `gpt-0` does not exist", "ModelNotFoundError"),
        ("Unsupported parameter: 'temperature'", "UnsupportedModelParametersError"),
        ("provider cannot find the resource", "ApiProviderResourceNotFoundError"),
        ("Request blocked by the safety system", "AgentSafetyRefusalError"),
        ("API Error: something else", "UnknownApiError"),
        ("curl: (6) Could not resolve host: x", "NetworkConnectionError"),
        ("connect ECONNREFUSED 127.0.0.1:1", "NetworkConnectionError"),
        ("Traceback: ValueError", None),
        ("", None),
        pytest.param("rate limit, waiting\nrate limit, waiting\nInvalid API key", "AgentAuthenticationError", id="the last one wins"),
        pytest.param("Invalid API key\ntrying another\nAPI Error: Overloaded", "ApiOverloadedError", id="the more exact one at the end"),
    ],
)
def test_output_names_an_error_of_harbors_table(output: str, expected: str | None) -> None:
    assert classify(output) == expected


def test_every_name_is_in_harbors_table() -> None:
    assert set(_PATTERNS) <= set(ERROR_POLICIES)


@pytest.mark.parametrize("piece", ["api error ", "model ", "exceeded the ", "blocked by " + "x" * 29, "a" * 100])
def test_hostile_output_takes_no_longer_than_its_length(piece: str) -> None:
    assert classify(piece * (256 * 1024 // len(piece))) in (None, "UnknownApiError", "ModelNotFoundError")
