"""``docs/troubleshooting.md``: an entry for every reason, with what it means (from the code) and what to do (from here)."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping
from typing import Final

from seatrial.api import reasons
from seatrial.api.reasons import Reason
from seatrial.harbor_errors import ERROR_POLICIES

NOTHING: Final = "Nothing."

REMEDIES: Final[Mapping[str, str]] = {
    Reason.PENDING: "Wait. If it stays for minutes, is the operator running? `seatrial doctor`.",
    Reason.ARCHIVE_VERIFIED: NOTHING,
    Reason.ARCHIVE_ACCESS_DENIED: "Give the operator's credentials `s3:GetObject` on the bucket; see [S3](s3.md).",
    Reason.ARCHIVE_TOO_LARGE: "Make the archive smaller (`.harborignore`), or raise `operator.settings.VERIFY_MAX_MIB`.",
    Reason.INVALID_TASK: "`seatrial check FOLDER` says everything that is wrong, then publish again.",
    Reason.NATIVE_ID_MISMATCH: "Publish again, or correct `spec.nativeTaskId`.",
    Reason.CROSS_NAMESPACE: "Publish into the job's namespace, or list the other one in the chart's `sharedNamespaces`.",
    Reason.REVISION_CONFLICT: "Tried again by itself; publish the same Task from one place at a time.",
    Reason.MEMBERS_PINNED: NOTHING,
    Reason.TASK_NOT_FOUND: "Publish the task, or correct the reference: NAME, NAMESPACE/NAME, each with #TAG or #DIGEST.",
    Reason.REVISION_NOT_FOUND: "`seatrial get tasks --revisions` lists what there is.",
    Reason.DUPLICATE_MEMBER: "Name each Task once.",
    Reason.MEMBER_NOT_VERIFIED: "Look at the condition Verified of the member that the message names.",
    Reason.EMPTY_TASKSET: "Name at least one Task.",
    Reason.MANIFEST_INVALID: "Publish the taskset again; a manifest is never edited.",
    Reason.PLANNED: NOTHING,
    Reason.INVALID_SPEC: "Change the field that the message names. The spec of a job cannot be changed: make a new one.",
    Reason.UNSUPPORTED: "The message names the field; remove it, or wait for a version that does it.",
    Reason.TASKSET_NOT_FOUND: "Publish with `--taskset`, or correct the name.",
    Reason.TASKSET_NOT_PINNED: "Look at the condition Pinned of the Taskset.",
    Reason.NOTHING_SELECTED: "Widen `spec.select`; its patterns match native ids and folder names.",
    Reason.DUPLICATE_TASK_ID: "Rename one of the two tasks in its task.toml.",
    Reason.UNSUPPORTED_AGENT: "Correct the field of `spec.agent` that the message names; [agents](agents.md) has all kinds.",
    Reason.UNSUPPORTED_METRIC: "Remove the metric that the message names.",
    Reason.INVALID_VIEW: "Correct the view in the Task's spec; of the rewards it may name the job's `rewardKey` alone.",
    Reason.TOO_MANY_TRIALS: "Split the job, or raise `operator.settings.MAX_TRIALS`.",
    Reason.URL_LIFETIME_TOO_SHORT: "Give the agent a time-out or a shorter `timeouts.pending`: presigned URLs live seven days at most.",
    Reason.PLAN_CORRUPT: "Somebody changed plan.json in the bucket. Make a new job; results so far are in its folder.",
    Reason.RUNNING: NOTHING,
    Reason.QUEUED: "Wait for the queue; ask whoever runs it. [Queues](queues.md) says what it counts.",
    Reason.QUOTA_EXCEEDED: "Lower `concurrency` or raise the ResourceQuota; it goes on by itself.",
    Reason.UNSCHEDULABLE: "The message is the scheduler's: requests, taints, selectors. Lower `resources` or add nodes.",
    Reason.IMAGE_PULLING: "Wait; large images take minutes at first.",
    Reason.SUSPENDED_BY_USER: "`seatrial resume JOB`.",
    Reason.NOT_SUSPENDED: NOTHING,
    Reason.HEALTHY: NOTHING,
    Reason.FORBIDDEN: "`helm upgrade` restores the Roles; [rights](rbac.md) lists them. It goes on by itself.",
    Reason.ALL_SCORED: NOTHING,
    Reason.SOME_ERRORED: "`seatrial results JOB` names the trials; the mean is over the others.",
    Reason.STATUS_TRUNCATED: "Read the scores with `seatrial results JOB`, and see the operator's log for what the server refused.",
    Reason.NOTHING_SCORED: "Start with the error that is named most; run the oracle first: it must solve every task.",
    Reason.THRESHOLD_NOT_MET: "It is the answer to your question, not a fault. `seatrial results JOB` shows which tasks lost.",
    Reason.THRESHOLD_UNMEASURED: "Correct the name in `thresholds`, or set `onMissing`.",
    Reason.TASK_WITHOUT_SCORE: "The message names tasks; `seatrial results JOB` says what ended their trials.",
    Reason.MAX_ERRORED_REACHED: "Mend the reasons that `seatrial results JOB` counts, or raise `limits.maxErrored` while the job runs.",
    Reason.COST_LIMIT_REACHED: "What ran is scored. Raise `limits.maxCostUsd` while trials run, or run the others in a further job.",
    Reason.JOB_DEADLINE_EXCEEDED: "Raise `limits.deadline` or `concurrency`.",
    Reason.CANCELLED: NOTHING,
    Reason.FINISHED: NOTHING,
    Reason.POD_REJECTED: "The message is the API server's: Pod Security (trials need *baseline*), an admission policy, a LimitRange.",
    Reason.NAME_CONFLICT: "Delete the Pod that the message names.",
    Reason.NODE_REJECTED_POD: "The node's kubelet refused (resources, plugins): raise `retry.max`, look at the node.",
    Reason.IMAGE_NOT_FOUND: "Push the image, or correct `docker_image` in the task. With a mirror: `site.imageMirrors`.",
    Reason.IMAGE_AUTH_FAILED: "Name a pull secret in `spec.pod.imagePullSecrets`.",
    Reason.IMAGE_ARCH_MISMATCH: "Build the image for the node's platform, or choose nodes with `spec.pod.nodeSelector`.",
    Reason.IMAGE_RATE_LIMITED: "Wait, log in with a pull secret, or use a mirror (`site.imageMirrors`).",
    Reason.REGISTRY_UNAVAILABLE: "See whether the registry is up, and whether the nodes can resolve and reach it.",
    Reason.IMAGE_NO_SPACE: "Free the node's disk or give nodes a larger one.",
    Reason.IMAGE_NOT_PRESENT: "Load the image onto the node, or let the pull policy be IfNotPresent.",
    Reason.INVALID_IMAGE_NAME: "Correct `docker_image` in the task.",
    Reason.CONTAINER_CONFIG_ERROR: "Make the Secret or key that the message names in the job's namespace.",
    Reason.CONTAINER_START_ERROR: "The message is the container runtime's: often an ENTRYPOINT that does not exist.",
    Reason.POD_START_TIMEOUT: "The message has the newest Warning of the Pod: volume, sandbox or network of the node.",
    Reason.TASK_ARCHIVE_MISSING: "Publish again: the archive was deleted from the bucket.",
    Reason.TASK_ARCHIVE_CORRUPT: "Publish again: the bytes in the bucket are not those that were published.",
    Reason.TASK_ARCHIVE_UNSAFE: "Remove the member that the message names: links out of the folder, devices, odd names.",
    Reason.OBJECT_STORE_UNAVAILABLE: "`seatrial doctor`. Do the trials' NetworkPolicies let them reach the store? `networkPolicies.s3`.",
    Reason.OBJECT_STORE_REFUSED: "Clocks, credentials that ended before their URLs, or a bucket policy; see [S3](s3.md).",
    Reason.UNSUPPORTED_TASK: "The message names the feature of the task.",
    Reason.DISK_FULL: "Raise `operator.settings.TASK_VOLUME` or `LOGS_VOLUME`.",
    Reason.SUSPENDED: "`seatrial resume JOB`; the trial runs again from its start.",
    Reason.EVICTED: "Raise `retry.max`; give tasks the memory and storage that they use, so that nodes are not overcommitted.",
    Reason.STORAGE_LIMIT_EXCEEDED: "The task writes more than it says: raise `storage_mb` in its task.toml, or `resources.storage`.",
    Reason.PREEMPTED: "Raise `retry.max`, or give the job a priority: `spec.pod.priorityClassName`.",
    Reason.DRAINED: "Raise `retry.max`. Autoscalers leave trials alone: they carry safe-to-evict=false.",
    Reason.NODE_LOST: "Retries are free. A node that is only cut off may go on with the agent; the first result counts.",
    Reason.NODE_SHUTDOWN: "Raise `retry.max`.",
    Reason.OOM_KILLED: "Raise `memory_mb` of the task, or `resources.overrides` of the job.",
    Reason.DEADLINE_EXCEEDED: "The phase's own time-out should have come first: send the logs of the trial.",
    Reason.POD_DELETED: "Who deleted it? The audit log knows. Raise `retry.max` to have such trials run again.",
    Reason.CONTAINER_KILLED: "Look at the node: a kill from outside the cluster.",
    Reason.VERDICT_MISSING: "Look at the verifier's log (`seatrial logs JOB TRIAL`); raise `retry.max`.",
    Reason.METRIC_SCRIPT_FAILED: "Run it over the same rewards: `seatrial rescore JOB --script metric.py`. The other results are whole.",
    Reason.METRIC_SCRIPT_TIMEOUT: "Make it faster, or raise `scoring.scriptTimeout`.",
    Reason.METRIC_SCRIPT_OUT_OF_MEMORY: "A script has 2 GiB: read the rows one by one.",
    Reason.METRIC_SCRIPT_OUTPUT_INVALID: 'Write one JSON object such as `{"mean": 0.5}` to the path that `-o` gives.',
    Reason.METRIC_SCRIPT_OUTPUT_TOO_LONG: "Write at most 100 numbers, and print what a person can read.",
    Reason.METRIC_SCRIPT_DEPENDENCIES: "Publish the suite again where `uv` reaches its packages as wheels, or use the standard library.",
    Reason.METRIC_SCRIPT_ISOLATION: "Run it on Linux (x86_64 or arm64), or allow it the network with `--allow-network`.",
    Reason.METRIC_SCRIPT_MISSING: "Publish the taskset again, or correct `metrics[].script`.",
    Reason.METRIC_SCRIPT_LOST: "`seatrial rescore JOB` runs it again; the message says what its last Pod met.",
    Reason.RUNNER_CRASHED: "One of our containers failed: its log says where. Please report it.",
    Reason.REWARD_MISSING: "The test script must write `/logs/verifier/reward.txt` or `reward.json`.",
    "UnknownScore": "Correct the name in `thresholds`: `seatrial results JOB` of an earlier job lists the scores that there are.",
    "RescoreSource": "Name a job of the same namespace that has ended; its results must still be in the bucket.",
    "RewardKeyInconsistent": "Take the reward key that the saved trials have, or run them anew.",
    "RewardKeyMissing": "Rebuild the trials from their Harbor job directory: `seatrial rescore --harbor-job DIR --reward-key KEY`.",
    "SavedTrialsInvalid": "The message names the line: take `trials.jsonl` of a bundle as it is, and store it again.",
    "UnknownTrialTask": "Name the Taskset that has the task which the message names, or leave its trials out.",
    "TaskWithoutTrials": "Name a Taskset of the tasks that were run, or run those that the message names.",
    "HandedOver": NOTHING,
    "ImageBuilding": "Wait. If it lasts, look at the Pods with the label `seatrial.dev/role=build`.",
    "ImageBuildFailed": "Correct the Dockerfile in the line that the message names, and publish again.",
    "ImageBuildTimeout": "Raise `build_timeout_sec` in the task's `[environment]`, or make the image smaller.",
    "EnvironmentExited": "Keep the image's ENTRYPOINT alive: it must run its arguments or stay up. Did the agent end it? Its log tells.",
    Reason.VALUE_ERROR: "Give the variable that the message names in `environment.env`, `envSecrets` or `envConfigMaps`.",
}

IN_THE_POD: Final = {
    "AgentNotLoaded": ("The class of `importPath` cannot be found or made.", "Correct `importPath`, or give the module: `--agent-dir`."),
    "AgentNotStarted": ("The agent's container did not start in time.", "Look at the Pod's Events: image, Secret, node."),
    "AgentUnknown": ("The runner image does not know the kind of agent.", "Take a runner image of the operator's version."),
    "ArtifactsIncomplete": (
        "What the separate verifier needs could not be saved.",
        "The message names the path: make it smaller, or readable.",
    ),
    "CommandNotStarted": (
        "A command could not be started in the environment.",
        "The image lacks the program, the user or the folder that the message names.",
    ),
    "EnvironmentMisbehaved": (
        "What answers in the task's container is not our helper, or talks nonsense.",
        "Does the image or the agent start a program that takes its place?",
    ),
    "EnvironmentStuck": ("The task's container does not answer.", "Give the task more CPU or memory; did the agent stop all processes?"),
    "Interrupted": ("The Pod was told to stop while the trial ran: drain, eviction, deletion.", "Raise `retry.max`."),
    "RewardInvalid": (
        "A reward file is there and cannot be taken: no number, too large, no regular file.",
        "Write one number to `reward.txt`, or an object of numbers to `reward.json`.",
    ),
    "StepSetupFailed": ("`setup.sh` of a step ended with an error.", "Its output is in the trial's logs: `seatrial logs JOB TRIAL`."),
    "VariableMissing": (
        "A variable of the tests, or of an MCP server's header, is not given.",
        "Give it in the job's `environment` or `verifier`, or to the agent for a header.",
    ),
}
"""What the runner itself says, beside the members of ``Reason``: what happened, and what to do."""

_HEAD: Final = """\
# Troubleshooting by reason

Conditions, Events and the errors of trials carry one of these words. Find it with

```bash
kubectl get evaljobs --all-namespaces
kubectl get events --namespace evals --field-selector type=Warning
```

or with `seatrial results JOB`, and read on here. `seatrial doctor` checks the installation itself. This page is made from the code by
`python -m reference`.

| reason | what happened | what to do |
|---|---|---|
"""

_HARBOR: Final = """
## Errors in Harbor's terms

An error of a trial also has Harbor's name. It decides whether the trial is retried (within `retry.max`), whether its tests still run after
an agent that failed, and whether the score then counts. `errorPolicy` of a job overrides single names; a name that is not here is retried,
graded and valid.

| error | retried | graded | counts |
|---|---|---|---|
"""


def meanings() -> dict[Reason, str]:
    """What the text below each member of ``Reason`` says."""
    (found,) = [node for node in ast.parse(inspect.getsource(reasons)).body if isinstance(node, ast.ClassDef) and node.name == "Reason"]
    pairs = zip(found.body, found.body[1:], strict=False)
    texts = {
        target.id: " ".join(str(text.value.value).split())
        for member, text in pairs
        if isinstance(member, ast.Assign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
        for target in member.targets
        if isinstance(target, ast.Name)
    }
    return {reason: texts[reason.name] for reason in Reason}


def text() -> str:
    """The page.

    Raises:
        KeyError: a reason has no remedy, or no text in the code.
    """
    said = meanings()
    entries = {**{str(reason): (said[reason], REMEDIES[reason]) for reason in Reason}, **IN_THE_POD}
    rows = [f'| <a id="{reason.lower()}"></a>`{reason}` | {what} | {remedy} |' for reason, (what, remedy) in sorted(entries.items())]
    errors = [
        f"| `{name}` | {' | '.join('yes' if flag else 'no' for flag in (policy.retry, policy.grade, policy.valid))} |"
        for name, policy in sorted(ERROR_POLICIES.items())
    ]
    return _HEAD + "\n".join(rows) + "\n" + _HARBOR + "\n".join(errors) + "\n"
