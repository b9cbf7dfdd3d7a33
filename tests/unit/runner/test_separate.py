"""Separate verification: the agent's Pod hands its artifacts over, a second Pod grades them. Rules: harbor.md 6.2-6.5."""

from __future__ import annotations

import hashlib
import shutil
from copy import deepcopy
from typing import TYPE_CHECKING

import pytest

from seatrial import contract
from seatrial.contract import StageExit

if TYPE_CHECKING:
    from .conftest import Outcome, Pod


def run_first(pod: Pod) -> Outcome:
    pod.trial["verifier"]["mode"] = "separate"
    pod.trial["artifacts"] = [{"source": str(pod.app / "out"), "destination": "result", "exclude": ["*.tmp"], "service": None}]
    pod.files["solution/solve.sh"] = (
        '#!/bin/bash\nmkdir -p "$APP/out/d"; cd "$APP/out"; echo made > made; chmod 4755 made; touch x.tmp d/deep; ln -s made good; '
        'ln -s /etc/passwd bad; ln -s ../../secret worse; echo p > "$LOGS/artifacts/pub"; echo log > "$LOGS/agent/own.log"\n'
    )
    return pod.run()


def run_second(first: Pod, second: Pod, *, bundled: bool = False, key: bytes | None = None) -> Outcome:
    """The verifier's Pod: same store, another environment. The artifacts' paths stay those of the first folder."""
    store = first.store
    logs, result = (store.objects.pop(f"/bucket/{name}") for name in ("logs.tar.gz", "result.json"))
    store.put("agent-logs", logs)
    store.put("agent-result", result)
    second.trial = deepcopy(first.trial)
    second.trial["retry"] = 1
    second.trial["verifies"] = 0
    second.trial["verifier"]["bundled"] = bundled
    second.key = key or first.key
    second.files = dict(first.files)
    code = second.stage(
        **{
            contract.VAR_AGENT_LOGS_URL: store.url("agent-logs"),
            contract.VAR_AGENT_LOGS_SHA256: hashlib.sha256(logs).hexdigest(),
            contract.VAR_AGENT_RESULT_URL: store.url("agent-result"),
        }
    )
    assert code == 0, (second.root / "termination-stage").read_text()
    second.start_envd()
    second.verify()
    return second.outcome()


@pytest.mark.conforms("H-102", "H-113")
def test_a_second_pod_sees_the_artifacts_at_their_source_and_nothing_else(pod: Pod, second_pod: Pod) -> None:
    first = run_first(pod)
    assert (first.verdict.is_handed_over, first.verdict.rewards, first.error) == (True, None, None)
    shutil.rmtree(pod.app / "out")
    pod.files["tests/test.sh"] = (
        f'#!/bin/bash\ncd {pod.app}/out\nfind . -printf "%P %m %l\\n" | sort\n'
        f"cat made {pod.logs}/artifacts/pub; ls {second_pod.logs}\n"
        'echo 0.5 > "$LOGS/verifier/reward.txt"\n'
    )
    outcome = run_second(pod, second_pod)
    assert (outcome.verdict.rewards, outcome.error, outcome.verdict.is_handed_over) == ({"reward": 0.5}, None, False)
    assert outcome.logs["verifier/test-stdout.txt"].decode() == " 777 \nd 755 \nd/deep 644 \ngood 777 made\nmade 755 \nmade\np\nverifier\n"
    assert outcome.logs["agent/own.log"] == b"log\n"
    assert outcome.logs["artifacts/result/made"] == b"made\n"
    assert outcome.result is not None
    assert first.result is not None
    assert outcome.result["verifier_environment_mode"] == "separate"
    for name in ("started_at", "agent_execution", "agent_result"):
        assert outcome.result[name] == first.result[name]


def test_an_artifact_whose_links_lead_out_through_each_other_shows_no_test(pod: Pod, second_pod: Pod) -> None:
    out = str(pod.app / "out")
    pod.trial["verifier"]["mode"] = "separate"
    pod.trial["artifacts"] = [{"source": out, "destination": "out", "exclude": [], "service": None}]
    up = f"{'here/' * 20}{'../' * 20}{str(second_pod.tests).lstrip('/')}/expected"
    pod.files["solution/solve.sh"] = f"#!/bin/bash\nmkdir {out}; cd {out}; ln -s . here; ln -s {up} answer; ln -s here/x good\n"
    pod.files["tests/expected"] = "42\n"
    pod.files["tests/test.sh"] = (
        f'#!/bin/bash\nls {out}\nif cmp {out}/answer "$TESTS/expected"; then echo 1; else echo 0; fi > "$LOGS/verifier/reward.txt"\n'
    )
    first = pod.run()
    assert first.links == {"artifacts/out/here": ".", "artifacts/out/good": "here/x"}
    shutil.rmtree(out)
    outcome = run_second(pod, second_pod)
    assert (outcome.verdict.rewards, outcome.error) == ({"reward": 0.0}, None)
    assert outcome.logs["verifier/test-stdout.txt"].decode().split("\n")[:2] == ["good", "here"]


@pytest.mark.conforms("H-117")
def test_a_skipped_artifact_does_not_appear_under_anothers_source(pod: Pod, second_pod: Pod) -> None:
    out, other = str(pod.app / "out"), str(pod.app / "other")
    pod.trial["verifier"]["mode"] = "separate"
    pod.trial["artifacts"] = [
        {"source": out, "destination": "same", "exclude": [], "service": None},
        {"source": other, "destination": "same", "exclude": [], "service": None},
    ]
    pod.files["solution/solve.sh"] = f"#!/bin/bash\nmkdir {out} {other}; touch {out}/a {other}/b\n"
    assert pod.run().verdict.is_handed_over
    shutil.rmtree(out)
    shutil.rmtree(other)
    pod.files["tests/test.sh"] = f'#!/bin/bash\n[ -e {out}/a ] && [ ! -e {other} ] && echo 1 > "$LOGS/verifier/reward.txt"\n'
    assert run_second(pod, second_pod).verdict.rewards == {"reward": 1.0}


@pytest.mark.conforms("H-68")
def test_an_error_of_the_agent_stays_the_first_one(pod: Pod, second_pod: Pod) -> None:
    pod.trial["timeouts"]["agent"] = 0.5
    pod.trial["verifier"]["mode"] = "separate"
    pod.files["solution/solve.sh"] = "#!/bin/bash\nsleep 20\n"
    first = pod.run()
    assert (first.verdict.is_handed_over, first.error) == (True, "AgentTimeoutError")
    pod.files["tests/test.sh"] = '#!/bin/bash\necho 1 > "$LOGS/verifier/reward.txt"\n'
    outcome = run_second(pod, second_pod)
    assert (outcome.verdict.rewards, outcome.error) == ({"reward": 1.0}, "AgentTimeoutError")
    assert outcome.result is not None
    assert outcome.result["reward_valid"] is True


def test_a_failed_preparation_is_final_and_hands_nothing_over(pod: Pod) -> None:
    pod.trial["environment"]["healthcheck"] = contract.HealthcheckInput(
        command="false", interval_sec=0.01, timeout_sec=5.0, start_period_sec=0.0, start_interval_sec=0.01, retries=1
    )
    first = run_first(pod)
    assert (first.verdict.is_handed_over, first.error) == (False, "HealthcheckError")


@pytest.mark.conforms("H-104")
def test_bundled_tests_are_run_from_the_image(pod: Pod, second_pod: Pod) -> None:
    run_first(pod)
    second_pod.tests.mkdir()
    (second_pod.tests / "test.sh").write_text('#!/bin/bash\necho 0.75 > "$LOGS/verifier/reward.txt"\n')
    outcome = run_second(pod, second_pod, bundled=True)
    assert (outcome.verdict.rewards, outcome.error) == ({"reward": 0.75}, None)


def test_a_result_without_the_jobs_signature_is_not_graded(pod: Pod, second_pod: Pod) -> None:
    run_first(pod)
    outcome = run_second(pod, second_pod, key=b"another key")
    assert (outcome.verdict.rewards, outcome.reason) == (None, "RunnerCrashed")


def test_a_verifier_image_that_must_be_built_is_refused_before_the_agent_runs(pod: Pod) -> None:
    pod.trial["verifier"]["mode"] = "separate"
    pod.files["tests/Dockerfile"] = "FROM x\n"
    assert pod.stage() == StageExit.TASK_UNSUPPORTED
    assert "tests/Dockerfile" in (pod.root / "termination-stage").read_text()


def test_artifacts_that_are_too_large_are_an_error_and_no_verdict(pod: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    from seatrial_runner import evidence

    monkeypatch.setattr(evidence, "SEPARATE_CAPS", evidence.Caps(total_bytes=1000, file_bytes=100))
    pod.trial["verifier"]["mode"] = "separate"
    pod.files["solution/solve.sh"] = '#!/bin/bash\nhead -c 5000 /dev/zero > "$LOGS/artifacts/large"\n'
    outcome = pod.run()
    assert (outcome.verdict.is_handed_over, outcome.verdict.rewards, outcome.reason) == (False, None, "ArtifactsIncomplete")
