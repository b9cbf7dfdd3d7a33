"""Harbor's one table from error name to (retry, grade, valid); runner, retries and scores all read it.

Source: Harbor 0.26.0, error policy. Lookup is by exact class name; an unknown name means retry, grade and valid.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple


class ErrorPolicy(NamedTuple):
    retry: bool
    grade: bool
    valid: bool


_INFRASTRUCTURE = ErrorPolicy(retry=True, grade=False, valid=False)
_MODEL_SERVICE = ErrorPolicy(retry=True, grade=True, valid=False)
_REQUEST_OR_VERIFIER = ErrorPolicy(retry=False, grade=True, valid=False)
_CONFIGURATION = ErrorPolicy(retry=False, grade=False, valid=False)
_AGENT_OUTCOME = ErrorPolicy(retry=False, grade=True, valid=True)

UNKNOWN: Final = ErrorPolicy(retry=True, grade=True, valid=True)

_NAMES: Final[Mapping[ErrorPolicy, str]] = {
    _INFRASTRUCTURE: """
        EnvironmentStartTimeoutError SandboxBuildFailedError AgentSetupTimeoutError HealthcheckError SandboxLikelyOutOfMemoryError
        MemoryLimitExceededError SSHAccessError GKEExecStreamClosedError GKEPodNotFoundError RuntimeRequestError AddTestsDirError
        DownloadVerifierDirError""",
    _MODEL_SERVICE: """
        ApiError ApiRateLimitError ApiInternalServerError ApiOverloadedError ApiConnectionClosedError ApiResponseStalledError
        UnknownApiError NetworkConnectionError ApiConnectionError ApiUsageLimitError RateLimitError InternalServerError
        ServiceUnavailableError APIConnectionError APIError Timeout""",
    _REQUEST_OR_VERIFIER: """
        UnsupportedModelParametersError BadRequestError UnprocessableEntityError UnsupportedParamsError APIResponseValidationError
        BudgetExceededError VerifierTimeoutError RewardFileNotFoundError RewardFileEmptyError VerifierOutputParseError""",
    _CONFIGURATION: """
        AgentAuthenticationError ModelNotFoundError ApiProviderResourceNotFoundError AuthenticationError PermissionDeniedError
        NotFoundError ServiceOperationsUnsupportedError VercelScopeError DspyImportError MissingExtraError RegradeError CancelledError""",
    _AGENT_OUTCOME: """
        NonZeroAgentExitCodeError AgentTimeoutError ContextWindowExceededError OutputTokenExceededError ContextLengthExceededError
        OutputLengthExceededError AgentSafetyRefusalError ContentPolicyViolationError""",
}

ERROR_POLICIES: Final[Mapping[str, ErrorPolicy]] = {name: policy for policy, names in _NAMES.items() for name in names.split()}


def error_policy(name: str, overrides: Mapping[str, Mapping[str, bool]] | None = None) -> ErrorPolicy:
    """Flags of one error name; ``overrides`` maps a name to any of ``retry``, ``grade``, ``valid``."""
    policy = ERROR_POLICIES.get(name, UNKNOWN)
    return policy._replace(**(overrides or {}).get(name, {}))
