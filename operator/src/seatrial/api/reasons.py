"""Condition types and reasons: every one that users can see, each with when it occurs.

Why one module: scripts, alerts and documents match on these words, so none may be made up elsewhere or carry interpolated text.
"""

from __future__ import annotations

from enum import StrEnum, unique


@unique
class ConditionType(StrEnum):
    """Types of ``status.conditions``."""

    # EvalJob
    PLAN_READY = "PlanReady"
    """The spec is valid, all references resolve and the plan is frozen."""
    PROGRESSING = "Progressing"
    """Trials can start or run."""
    COMPLETE = "Complete"
    """Ended well, with at least one score."""
    FAILED = "Failed"
    """Ended without a score, with a missed threshold, or stopped early."""
    STATUS_TRUNCATED = "StatusTruncated"
    """The API server refused the full status; the results in the store are whole."""
    FINISHED = "Finished"
    """Ended either way: what scripts wait for."""
    SUSPENDED = "Suspended"
    """``spec.suspend`` is obeyed and no Pod is left."""
    DEGRADED = "Degraded"
    """Works, but something needs a person."""

    # Task
    VERIFIED = "Verified"
    """The archive was read, checked and published as a revision."""

    # Taskset
    PINNED = "Pinned"
    """Every member is resolved to a content digest."""


JOB_CONDITIONS = (
    ConditionType.PLAN_READY,
    ConditionType.PROGRESSING,
    ConditionType.COMPLETE,
    ConditionType.FAILED,
    ConditionType.FINISHED,
    ConditionType.SUSPENDED,
    ConditionType.DEGRADED,
)


@unique
class Reason(StrEnum):
    """Reasons of conditions, Events and errors of trials."""

    # --- a condition that has not been decided yet
    PENDING = "Pending"
    """Nothing has been found out yet."""

    # --- Task
    ARCHIVE_VERIFIED = "ArchiveVerified"
    """The archive has the stated sha256, is safe, valid and carries the stated native id."""
    ARCHIVE_ACCESS_DENIED = "ArchiveAccessDenied"
    """The object store refused to hand the archive out."""
    ARCHIVE_TOO_LARGE = "ArchiveTooLarge"
    """The archive is above the size that the operator verifies."""
    INVALID_TASK = "InvalidTask"
    """The archive does not hold a valid Harbor task."""
    NATIVE_ID_MISMATCH = "NativeIDMismatch"
    """``spec.nativeTaskId`` differs from the id in the archive."""
    CROSS_NAMESPACE = "CrossNamespaceReference"
    """A reference leaves the object's own namespace and the operator's configuration does not list the other one."""
    REVISION_CONFLICT = "RevisionConflict"
    """Other writers took the next revision numbers, several times in a row."""

    # --- Taskset
    MEMBERS_PINNED = "MembersPinned"
    """Every member is pinned."""
    TASK_NOT_FOUND = "TaskNotFound"
    """A referenced Task does not exist."""
    REVISION_NOT_FOUND = "RevisionNotFound"
    """A reference names a tag or digest that was never published."""
    DUPLICATE_MEMBER = "DuplicateMember"
    """Two references name one Task."""
    MEMBER_NOT_VERIFIED = "MemberNotVerified"
    """A member's own verification failed or has not ended."""
    EMPTY_TASKSET = "EmptyTaskset"
    """There is no member."""
    MANIFEST_INVALID = "ManifestInvalid"
    """The manifest is missing, has another sha256 than stated, or a line that cannot be read."""

    # --- planning of an EvalJob
    PLANNED = "Planned"
    """The plan is frozen."""
    INVALID_SPEC = "InvalidSpec"
    """A field has to be changed; the message names it."""
    UNSUPPORTED = "Unsupported"
    """The spec asks for something that this version does not do."""
    TASKSET_NOT_FOUND = "TasksetNotFound"
    """The referenced Taskset does not exist."""
    TASKSET_NOT_PINNED = "TasksetNotPinned"
    """The referenced Taskset could not pin its members, or has not done so yet."""
    NOTHING_SELECTED = "NothingSelected"
    """``spec.select`` leaves no task."""
    DUPLICATE_TASK_ID = "DuplicateTaskId"
    """Two selected tasks have the same native id, ignoring case."""
    UNSUPPORTED_AGENT = "UnsupportedAgent"
    """The agent cannot be driven by this version."""
    UNSUPPORTED_METRIC = "UnsupportedMetric"
    """The metric cannot be computed by this version."""
    UNKNOWN_SCORE = "UnknownScore"
    """A threshold names a score that no trial of the job can lead to."""
    TOO_MANY_TRIALS = "TooManyTrials"
    """Tasks times attempts exceed the operator's limit."""
    URL_LIFETIME_TOO_SHORT = "UrlLifetimeTooShort"
    """A trial would outlive its presigned URLs."""
    RESCORE_SOURCE = "RescoreSource"
    """The job whose results are to be taken does not exist, has not ended, or has no results."""
    REWARD_KEY_INCONSISTENT = "RewardKeyInconsistent"
    """Saved trials were scored under another reward key."""
    PLAN_CORRUPT = "PlanCorrupt"
    """The stored plan is not the one whose digest is in the status."""

    # --- a job at work
    RUNNING = "Running"
    """Trials run or may start."""
    QUEUED = "Queued"
    """A queue controller holds the Pods back."""
    QUOTA_EXCEEDED = "QuotaExceeded"
    """A ResourceQuota leaves no room for a further Pod; tried again."""
    UNSCHEDULABLE = "Unschedulable"
    """No node takes the Pod. Wait; terminal for the trial after ``timeouts.pending``."""
    IMAGE_PULLING = "ImagePulling"
    """The Pods that exist all wait for images."""
    SUSPENDED_BY_USER = "SuspendedByUser"
    """``spec.suspend`` is true."""
    NOT_SUSPENDED = "NotSuspended"
    """``spec.suspend`` is false."""
    HEALTHY = "Healthy"
    """Nothing needs a person."""
    FORBIDDEN = "Forbidden"
    """The operator lacks a right. No trial is errored for it."""
    STATUS_TRUNCATED = "StatusTruncated"
    """The status would not fit; the whole is in the results."""

    # --- a job's end
    ALL_SCORED = "AllScored"
    """Every trial has a score."""
    SOME_ERRORED = "SomeErrored"
    """At least one trial has a score and at least one has none."""
    NOTHING_SCORED = "NothingScored"
    """No trial has a score."""
    THRESHOLD_NOT_MET = "ThresholdNotMet"
    """A score is below its threshold."""
    THRESHOLD_UNMEASURED = "ThresholdUnmeasured"
    """A threshold names a score that nothing measured."""
    MAX_ERRORED_REACHED = "MaxErroredReached"
    """More trials errored than ``limits.maxErrored`` allows."""
    JOB_DEADLINE_EXCEEDED = "JobDeadlineExceeded"
    """``limits.deadline`` passed."""
    CANCELLED = "Cancelled"
    """``spec.cancel`` is true."""
    FINISHED = "Finished"
    """The job has ended; nothing progresses any more."""

    # --- a trial before its agent ran
    POD_REJECTED = "PodRejected"
    """The API server refused the Pod: Pod Security, an admission policy, a bad field."""
    NAME_CONFLICT = "NameConflict"
    """A Pod of the trial's name belongs to somebody else. It is never deleted."""
    NODE_REJECTED_POD = "NodeRejectedPod"
    """The kubelet refused the Pod; no container ran."""
    IMAGE_BUILDING = "ImageBuilding"
    """The task's image is being built, or its registry does not answer yet; the trial waits without a Pod."""
    IMAGE_BUILD_FAILED = "ImageBuildFailed"
    """The task's image cannot be built from its Dockerfile; the message names the line."""
    IMAGE_BUILD_TIMEOUT = "ImageBuildTimeout"
    """The build did not end within ``[environment].build_timeout_sec``."""
    IMAGE_NOT_FOUND = "ImageNotFound"
    """The registry does not have the image."""
    IMAGE_AUTH_FAILED = "ImageAuthFailed"
    """The registry refused the credentials, or there were none."""
    IMAGE_ARCH_MISMATCH = "ImageArchMismatch"
    """The image has no variant for the node's platform."""
    IMAGE_RATE_LIMITED = "ImageRateLimited"
    """The registry throttles; waited for in place."""
    REGISTRY_UNAVAILABLE = "RegistryUnavailable"
    """The registry does not answer; waited for in place."""
    IMAGE_NO_SPACE = "ImageNoSpace"
    """The node has no room for the image."""
    IMAGE_NOT_PRESENT = "ImageNotPresent"
    """Pull policy Never, and the image is not on the node."""
    INVALID_IMAGE_NAME = "InvalidImageName"
    """The image name cannot be parsed."""
    CONTAINER_CONFIG_ERROR = "ContainerConfigError"
    """A Secret, ConfigMap or key is missing, or the image's user is not allowed."""
    CONTAINER_START_ERROR = "ContainerStartError"
    """The container could not be created or started."""
    POD_START_TIMEOUT = "PodStartTimeout"
    """The containers did not start in time: a volume, the sandbox or the network."""
    TASK_ARCHIVE_MISSING = "TaskArchiveMissing"
    """The archive is not in the object store."""
    TASK_ARCHIVE_CORRUPT = "TaskArchiveCorrupt"
    """The archive's bytes have another sha256 or cannot be decompressed."""
    TASK_ARCHIVE_UNSAFE = "TaskArchiveUnsafe"
    """The archive has a member that must not be extracted."""
    OBJECT_STORE_UNAVAILABLE = "ObjectStoreUnavailable"
    """The object store does not answer."""
    OBJECT_STORE_REFUSED = "ObjectStoreRefused"
    """The object store refused a presigned request."""
    UNSUPPORTED_TASK = "UnsupportedTask"
    """The task asks for something that this version does not do; refused, never scored wrongly."""
    DISK_FULL = "DiskFull"
    """A volume of the Pod has no room."""
    SUSPENDED = "Suspended"
    """The Pod was taken away for ``spec.suspend``; the trial runs again."""

    HANDED_OVER = "HandedOver"
    """The agent is done, and the task's separate verifier gets a Pod of its own."""

    # --- a trial while it ran
    EVICTED = "Evicted"
    """Node pressure."""
    STORAGE_LIMIT_EXCEEDED = "StorageLimitExceeded"
    """The Pod used more local storage than its own limits allow."""
    PREEMPTED = "Preempted"
    """The scheduler made room for a Pod of higher priority."""
    DRAINED = "Drained"
    """Evicted through the API: a drain or an autoscaler."""
    NODE_LOST = "NodeLost"
    """The node vanished or stopped reporting."""
    NODE_SHUTDOWN = "NodeShutdown"
    """The node was shut down."""
    ENVIRONMENT_EXITED = "EnvironmentExited"
    """The task's container ended while the trial went on: its ENTRYPOINT, or what the agent did to it."""
    OOM_KILLED = "OOMKilled"
    """A container was killed for memory."""
    DEADLINE_EXCEEDED = "DeadlineExceeded"
    """The Pod's deadline passed, the backstop behind the phase timeouts."""
    POD_DELETED = "PodDeleted"
    """Somebody deleted the Pod, and no result is in the store."""
    CONTAINER_KILLED = "ContainerKilled"
    """A container was killed from outside."""
    VERDICT_MISSING = "VerdictMissing"
    """The verifier ended without a verdict and without a result."""
    RUNNER_CRASHED = "RunnerCrashed"
    """One of our own containers failed."""
    REWARD_MISSING = "RewardMissing"
    """The verdict has neither a reward nor an error."""
    VALUE_ERROR = "ValueError"
    """A template of the task names a variable that nobody gave. Harbor's name."""


REASON_PATTERN = r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"
