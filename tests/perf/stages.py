"""What kwok plays: the life of a trial Pod, in few steps, with a chosen share of every bad end.

Few steps because each costs the API server tens of milliseconds: created -> running -> ended. Container states are given by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

AGENT_SECONDS = 34.5


@dataclass(frozen=True)
class Shares:
    """How Pods end, in thousandths; the rest succeeds with reward 1 or 0. ``busy`` is how long one runs."""

    verdict_error: int = 50
    """The verifier reports an error that has no score."""
    oom: int = 20
    evicted: int = 20
    vanished: int = 10
    busy_ms: int = 2000
    jitter_ms: int = 4000

    @property
    def succeeded(self) -> int:
        return 1000 - self.verdict_error - self.oom - self.evicted - self.vanished


_NOW = "{{ $now := Now }}{{ $root := . }}"
_STARTED = "{{ or $root.status.startTime $now | Quote }}"


def stages(shares: Shares) -> list[dict[str, Any]]:
    """The Stage objects of kwok for Pods."""
    ends = [
        _stage("trial-scored", "Running", _ended("Succeeded", verifier=_verdict()), weight=shares.succeeded, shares=shares),
        _stage("trial-errored", "Running", _ended("Failed", verifier=_verdict(error=True)), weight=shares.verdict_error, shares=shares),
        _stage("trial-oom", "Running", _ended("Failed", environment=(137, "OOMKilled"), code=143), weight=shares.oom, shares=shares),
        _stage(
            "trial-evicted",
            "Running",
            _ended("Failed", environment=(137, "Error"), code=137, reason="Evicted", disruption="TerminationByKubelet"),
            weight=shares.evicted,
            shares=shares,
        ),
        _stage("trial-vanished", "Running", None, weight=shares.vanished, shares=shares),
    ]
    return [_stage("trial-running", "Pending", _running()), *(end for end in ends if end["spec"].get("weight")), _deleted()]


def _stage(name: str, phase: str, template: str | None, *, weight: int | None = None, shares: Shares | None = None) -> dict[str, Any]:
    action: dict[str, Any] = (
        {"delete": True}
        if template is None
        else {"patches": [{"subresource": "status", "root": "status", "type": "strategic", "template": template}]}
    )
    spec: dict[str, Any] = {
        "resourceRef": {"apiGroup": "v1", "kind": "Pod"},
        "selector": {
            "matchExpressions": [
                {"key": ".metadata.deletionTimestamp", "operator": "DoesNotExist"},
                {"key": ".status.phase", "operator": "In", "values": [phase]},
            ]
        },
        "next": action,
    }
    if weight is not None:
        spec["weight"] = weight
    if shares is not None:
        spec["delay"] = {"durationMilliseconds": shares.busy_ms, "jitterDurationMilliseconds": shares.busy_ms + shares.jitter_ms}
    return {"apiVersion": "kwok.x-k8s.io/v1alpha1", "kind": "Stage", "metadata": {"name": name}, "spec": spec}


def _deleted() -> dict[str, Any]:
    """A Pod that is being deleted is gone at once."""
    spec = {
        "resourceRef": {"apiGroup": "v1", "kind": "Pod"},
        "selector": {"matchExpressions": [{"key": ".metadata.deletionTimestamp", "operator": "Exists"}]},
        "next": {"delete": True},
    }
    return {"apiVersion": "kwok.x-k8s.io/v1alpha1", "kind": "Stage", "metadata": {"name": "trial-deleted"}, "spec": spec}


def _running() -> str:
    return f"""{_NOW}
conditions:
- {{type: Initialized, status: "True", lastTransitionTime: {{{{ $now | Quote }}}}}}
- {{type: Ready, status: "True", lastTransitionTime: {{{{ $now | Quote }}}}}}
initContainerStatuses:
{{{{ range .spec.initContainers }}}}
- name: {{{{ .name }}}}
  image: {{{{ .image | Quote }}}}
  imageID: ""
  ready: true
  restartCount: 0
  state: {{terminated: {{exitCode: 0, reason: Completed, startedAt: {{{{ $now | Quote }}}}, finishedAt: {{{{ $now | Quote }}}}}}}}
{{{{ end }}}}
containerStatuses:
{{{{ range .spec.containers }}}}
- name: {{{{ .name }}}}
  image: {{{{ .image | Quote }}}}
  imageID: ""
  ready: true
  started: true
  restartCount: 0
  state: {{running: {{startedAt: {{{{ $now | Quote }}}}}}}}
{{{{ end }}}}
podIP: 10.0.0.1
startTime: {{{{ $now | Quote }}}}
phase: Running
"""


def _ended(
    phase: str,
    *,
    verifier: str = "",
    environment: tuple[int, str] = (0, "Completed"),
    code: int = 0,
    reason: str = "",
    disruption: str = "",
) -> str:
    """All containers terminated; ``verifier`` is a template that sets ``$verdict``."""
    message = ", message: {{ $verdict | Quote }}" if verifier else ""

    def state(exit_code: int, why: str, extra: str = "") -> str:
        times = f"startedAt: {_STARTED}, finishedAt: {{{{ $now | Quote }}}}"
        return f"{{terminated: {{exitCode: {exit_code}, reason: {why}, {times}{extra}}}}}"

    other = "Completed" if code == 0 else "Error"
    task, grader, agent = state(*environment), state(code, other, message), state(code, other)
    condition = (
        f'- {{type: DisruptionTarget, status: "True", reason: {disruption}, message: "node pressure", '
        "lastTransitionTime: {{ $now | Quote }}}\n"
        if disruption
        else ""
    )
    return f"""{_NOW}{verifier}
conditions:
- {{type: Ready, status: "False", reason: "PodCompleted", lastTransitionTime: {{{{ $now | Quote }}}}}}
{condition}containerStatuses:
{{{{ range .spec.containers }}}}
- name: {{{{ .name }}}}
  image: {{{{ .image | Quote }}}}
  imageID: ""
  ready: false
  started: false
  restartCount: 0
  state: {{{{ if eq .name "environment" }}}}{task}{{{{ else if eq .name "verifier" }}}}{grader}{{{{ else }}}}{agent}{{{{ end }}}}
{{{{ end }}}}
phase: {phase}
{f"reason: {reason}" if reason else ""}
"""


def _verdict(*, error: bool = False) -> str:
    """Sets ``$verdict`` to what a verifier would say; the reward is a function of the Pod's name."""
    labels = '(index .metadata.labels "seatrial.dev/trial") (index .metadata.labels "seatrial.dev/retry")'
    digest = "(sha256sum .metadata.name)"
    if error:
        text = (
            r"{\"v\":1,\"trial\":\"%s\",\"retry\":%s,\"error\":{\"type\":\"RewardFileNotFoundError\",\"cause\":\"verifier\","
            r"\"message\":\"no reward file\"},\"stored\":true,\"result\":\"%s\",\"logs\":\"%s\",\"seconds\":{\"agent_execution\":34.5}}"
        )
        return f'{{{{ $verdict := printf "{text}" {labels} {digest} {digest} }}}}'
    text = (
        r"{\"v\":1,\"trial\":\"%s\",\"retry\":%s,\"rewards\":{\"reward\":%s},\"stored\":true,\"result\":\"%s\",\"logs\":\"%s\","
        r"\"seconds\":{\"environment_setup\":1.2,\"agent_execution\":34.5,\"verifier\":2.1,\"total\":38.0}}"
    )
    reward = '(ternary "1.0" "0.0" (lt (substr 0 1 (sha256sum .metadata.name)) "8"))'
    return f'{{{{ $verdict := printf "{text}" {labels} {reward} {digest} {digest} }}}}'
