"""Group, version, kinds, label and annotation keys: each is built once."""

from typing import Final

GROUP: Final = "seatrial.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
CATEGORY: Final = "seatrial"

TASK: Final = "Task"
TASKSET: Final = "Taskset"
EVALJOB: Final = "EvalJob"
PLURALS: Final = {TASK: "tasks", TASKSET: "tasksets", EVALJOB: "evaljobs"}

ANNOTATION_AGAIN: Final = f"{GROUP}/verify-again"
"""Any new value has a Task whose archive was refused verified at once."""

LABEL_ROLE: Final = f"{GROUP}/role"
LABEL_JOB: Final = f"{GROUP}/job"
"""UID of the EvalJob."""
LABEL_JOB_NAME: Final = f"{GROUP}/job-name"
LABEL_TRIAL: Final = f"{GROUP}/trial"
LABEL_RETRY: Final = f"{GROUP}/retry"
LABEL_TASK: Final = f"{GROUP}/task"
LABEL_ATTEMPT: Final = f"{GROUP}/attempt"
LABEL_SCRIPT: Final = f"{GROUP}/script"
"""Number of the script that a Pod of role score runs."""
LABEL_NETWORK: Final = f"{GROUP}/network"
"""Chooses the NetworkPolicy: public, none, verify."""

ROLE_TRIAL: Final = "trial"
ROLE_VERIFY: Final = "verify"
ROLE_SCORE: Final = "score"
ROLE_BUILD: Final = "build"
