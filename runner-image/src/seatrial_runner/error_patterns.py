"""What an agent's output says about its failure, in the names of Harbor's error table. Source: harbor.md 5.5.

Why from text: headless agents end with exit code 1 whatever happened, and a rate limit of the model's service must neither count as the
agent's result nor keep the trial from running again. The output is the agent's own word, so it only chooses between errors.
"""

from __future__ import annotations

import re
from typing import Final

_PATTERNS: Final = {
    "ApiRateLimitError": r"rate.?limit|too many requests",
    "ApiUsageLimitError": r"usage limit|quota|out of credits?|insufficient (?:credits?|funds|balance)|credit balance|unpaid invoice"
    r"|free tier|budget (?:has been |was )?exceeded|exceeded \w{0,20} ?budget",
    "ApiInternalServerError": r"api error:? ?\(?500\b|server error (?:in the )?mid.response",
    "ApiOverloadedError": r"overloaded|service (?:is )?(?:temporarily )?unavailable|(?:model|server) is at (?:full )?capacity",
    "ApiConnectionClosedError": r"connection (?:was |is )?(?:closed|lost) (?:in the )?mid.response"
    r"|stream (?:was |has )?(?:closed|ended) early",
    "ApiResponseStalledError": r"response (?:has )?stalled|stream (?:is |was )?idle",
    "OutputTokenExceededError": r"output token (?:maximum|limit)|max(?:imum)?(?: number of)? output tokens|exceeded .{0,20}output token",
    "ContextWindowExceededError": r"(?:prompt|input|context)(?: length)? is too long|context (?:window|length) (?:was )?exceeded"
    r"|maximum context length|exceeds? the .{0,30}context (?:window|length)|input is longer than",
    "AgentAuthenticationError": r"not logged in|(?:invalid|missing|incorrect|no) api.?key|(?:api error:?|http|status|code) ?\(?40[13]\b"
    r"|unauthorized|authentication (?:failed|error)",
    "ModelNotFoundError": r"unknown model|model_not_found|model \S{0,100} ?(?:was )?(?:not found|does not exist|is not available)",
    "UnsupportedModelParametersError": r"unsupported (?:request )?parameter|parameter \S{0,60} ?is not supported|unsupported_parameter",
    "ApiProviderResourceNotFoundError": r"provider (?:could not|cannot|can't) find the resource|provider resource not found",
    "AgentSafetyRefusalError": r"blocked (?:by|for) .{0,30}safety|safety (?:block|filter|polic)|content polic",
    "UnknownApiError": r"api error",
    "NetworkConnectionError": r"curl: \(\d+\)|could not resolve host|name resolution|name or service not known|connection (?:was )?refused"
    r"|connect(?:ion)? (?:has )?timed out|tls handshake|certificate verify failed|econnrefused|etimedout|enotfound",
}
_ANY: Final = re.compile("|".join(f"(?P<{name}>{pattern})" for name, pattern in _PATTERNS.items()), re.IGNORECASE)
"""Of two that begin at one place the first of the table counts, so that "API Error 500" is no unknown API error."""


def classify(output: str) -> str | None:
    """Harbor's name for the last failure that ``output`` speaks of; None when it names none."""
    name = None
    for match in _ANY.finditer(output):
        name = match.lastgroup
    return name
