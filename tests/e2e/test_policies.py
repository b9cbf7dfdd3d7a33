"""The samples of admission policies on a real API server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import yaml

from .harness import REPOSITORY, evaljob, unique, wait_until
from .ops import TRIALS, Release

pytestmark = pytest.mark.cluster

POLICIES = REPOSITORY / "examples" / "policies"


@pytest.fixture
def policy(request: pytest.FixtureRequest, ops: Release) -> Iterator[str]:
    """One sample, bound to the namespace of these tests alone."""
    name: str = request.param
    text = (POLICIES / f"{name}.yaml").read_text()
    labels = {"policy-test": name, "limits": "small", "images": "known", "queues": "required"}
    chosen = [f"seatrial.dev/{key}={value}" for key, value in labels.items()]
    ops.cluster.kubectl("label", "namespace", TRIALS, "--overwrite", *chosen)
    ops.cluster.kubectl("apply", "-f", "-", given=text)
    # The sample binds itself to the whole cluster or to a label; other tests must not feel it.
    patch = f'{{"spec":{{"matchResources":{{"namespaceSelector":{{"matchLabels":{{"seatrial.dev/policy-test":"{name}"}}}}}}}}}}'
    ops.cluster.kubectl("patch", "validatingadmissionpolicybinding", f"seatrial-{name}", "--type=merge", "--patch", patch)
    yield name
    ops.cluster.kubectl("delete", "-f", "-", given=text)
    ops.cluster.kubectl("label", "namespace", TRIALS, *(f"seatrial.dev/{key}-" for key in labels))


def refusal(ops: Release, *arguments: str, given: str) -> str:
    """What the API server says against a dry run; it is empty when nothing is."""
    done = ops.cluster.run(ops.cluster.env["kubectl"], *arguments, "create", "--dry-run=server", "-f", "-", given=given, check=False)
    return done.err if done.code else ""


def pod(image: str) -> str:
    return f"""
apiVersion: v1
kind: Pod
metadata: {{generateName: sample-, namespace: {TRIALS}, labels: {{seatrial.dev/role: trial}}}}
spec:
  containers: [{{name: main, image: {image}}}]
"""


def eventually(ops: Release, text: str, *arguments: str, given: str) -> bool:
    """A policy takes a moment to be in force."""
    wait_until(lambda: refusal(ops, *arguments, given=given), lambda said: text in said, timeout=30, what=f"refusal: {text}")
    return True


@pytest.mark.parametrize("policy", ["trial-pods-by-operator-only"], indirect=True)
def test_only_the_operator_makes_trial_pods(ops: Release, policy: str) -> None:
    assert eventually(ops, "made by the operator only", given=pod("ghcr.io/seatrial/runner:1"))
    who = "--as=system:serviceaccount:seatrial-system:seatrial"
    said = refusal(ops, who, given=pod("ghcr.io/seatrial/runner:1"))
    assert "made by the operator only" not in said


@pytest.mark.parametrize("policy", ["trial-images"], indirect=True)
def test_trials_run_images_of_known_registries(ops: Release, policy: str) -> None:
    assert eventually(ops, "registry that is not known", given=pod("docker.io/library/python:3"))
    assert refusal(ops, given=pod("registry.example.com/python:3")) == ""


@pytest.mark.parametrize("policy", ["evaljob-limits"], indirect=True)
def test_an_evaljob_may_not_ask_for_too_much(ops: Release, policy: str) -> None:
    def job(**spec: int) -> str:
        return yaml.safe_dump(evaljob(unique("limits"), TRIALS, taskset="smoke", agent={"name": "oracle"}, **spec))

    assert eventually(ops, "at most 50 trials at a time", given=job(concurrency=51))
    assert "at most 10 attempts a task" in refusal(ops, given=job(attempts=11))
    assert refusal(ops, given=job(concurrency=50, attempts=10)) == ""


@pytest.mark.parametrize("policy", ["evaljob-queue"], indirect=True)
def test_an_evaljob_names_a_queue(ops: Release, policy: str) -> None:
    job = evaljob(unique("queue"), TRIALS, taskset="smoke", agent={"name": "oracle"})
    assert eventually(ops, "name a queue by the label", given=yaml.safe_dump(job))
    job["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "team"}
    assert refusal(ops, given=yaml.safe_dump(job)) == ""
