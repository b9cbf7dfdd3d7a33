from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seatrial.core import naming
from seatrial.core.naming import TrialKey

KEY = TrialKey(task="bench/hello-world", agent="oracle", attempt=1)
LABEL = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")


def test_names_are_the_same_for_ever() -> None:
    assert naming.trial_name("uid-1", KEY) == "hello-world__f89006d"
    assert naming.pod_name("Smoke_Oracle", "uid-1", KEY, 0) == "smoke-oracle-7cianwjn2z-0"
    assert naming.secret_name("smoke", "uid-1") == "smoke-jje2z6fgxv-key"


@pytest.mark.parametrize(
    ("task", "stem"),
    [
        pytest.param("org/run1", "run1", id="last part"),
        pytest.param("x" * 40, "x" * 32, id="cut to 32"),
        pytest.param("a" * 31 + "-b", "a" * 31, id="no hyphen at the end"),
        pytest.param("two words!", "two-words", id="other characters"),
        pytest.param("###", "task", id="nothing left"),
    ],
)
def test_the_stem_of_a_trial_is_harbors(task: str, stem: str) -> None:
    assert naming.trial_name("uid", KEY._replace(task=task)).split("__")[0] == stem


@given(st.text(min_size=1, max_size=80), st.text(max_size=80), st.integers(0, 9999))
def test_every_name_is_legal_whatever_the_task_is_called(task: str, job: str, retry: int) -> None:
    key = TrialKey(task, "oracle", 1)
    trial, pod = naming.trial_name("uid", key), naming.pod_name(job, "uid", key, retry)
    assert LABEL.fullmatch(trial)
    assert len(trial) <= 63
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", pod)
    assert len(pod) <= 63
    assert LABEL.fullmatch(naming.label_value(task))
    assert len(naming.label_value(task)) <= 63


def test_a_job_made_again_under_its_name_gets_other_pods() -> None:
    assert naming.pod_name("job", "uid-1", KEY, 0) != naming.pod_name("job", "uid-2", KEY, 0)


def test_a_long_label_is_cut_and_ends_in_a_hash() -> None:
    first, second = naming.label_value("a" * 70 + "1"), naming.label_value("a" * 70 + "2")
    assert first != second
    assert first.startswith("a" * 54)


def test_keys_follow_the_published_layout() -> None:
    prefix = naming.job_prefix("evals", "job", "uid")
    assert prefix == "jobs/evals/job-uid/"
    assert naming.plan_key(prefix) == "jobs/evals/job-uid/plan.json"
    assert naming.result_key(prefix, "t__1", 2) == "jobs/evals/job-uid/trials/t__1/2/result.json"
    assert naming.logs_key(prefix, "t__1", 2) == "jobs/evals/job-uid/trials/t__1/2/logs.tar.gz"
    assert naming.revision_key("evals", "task", "hello", 3) == "revisions/evals/task/hello/3.json"


def test_objects_of_trials_are_recognised_and_others_are_not() -> None:
    prefix = naming.job_prefix("evals", "job", "uid")
    assert naming.parse_trial_object(prefix, naming.result_key(prefix, "t__1", 12)) == ("t__1", 12, "result.json")
    assert naming.parse_trial_object(prefix, f"{prefix}rows/00000001.jsonl") is None
    assert naming.parse_trial_object(prefix, f"{prefix}trials/t__1/x/result.json") is None
