"""Results of jobs in every format, comparisons and plots, against a real S3 server and a small Kubernetes API."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import pandas
import pyarrow.parquet
import pytest
from tests.builders import JobBuilder, make_job, make_row, make_task
from tests.judge_server import JudgeServer, Reply, answer

from seatrial.core.bundle import build_tables
from seatrial.core.frozen import encode_plan
from seatrial.core.naming import job_prefix, logs_key, plan_key, result_key, rows_key
from seatrial.core.rows import Row, TrialError, to_lines
from seatrial.core.scores import column_text
from seatrial.core.status import job_summary
from seatrial.effects.metrics import Metrics
from seatrial.effects.store import Store, StoreSettings
from seatrial.sdk.cluster import Cluster, ClusterSettings
from seatrial.sdk.exports import github_annotations, github_summary, junit_xml
from seatrial.sdk.jobs import Job
from seatrial.sdk.local import AgentEvaluator
from seatrial.sdk.saved_trials import tasks_of

if TYPE_CHECKING:
    from .conftest import Ran

EVIL = "bad <b>|pipe|\x1b[31m\n::error::owned & co"
LOST = TrialError("NodeLost", "RuntimeError", "infrastructure", EVIL)


def job_of_ten() -> JobBuilder:
    """Ten tasks."""
    return make_job().tasks(
        *(make_task(f"bench/t{number}", labels={"category": "even" if number % 2 == 0 else "odd"}) for number in range(10))
    )


def rows_of(builder: JobBuilder, values: list[float | None]) -> list[Row]:
    """One final row a trial; None is an infrastructure error."""
    names = [trial.name for trial in builder.plan().trials]
    return [
        make_row(name, outcome="errored", error=LOST)
        if value is None
        else make_row(name, rewards={"reward": value}, stored=True, seconds={"agent_execution": 1.5})
        for name, value in zip(names, values, strict=False)
    ]


SEVEN: list[float | None] = [1.0, 1.0, 1.0, 1.0, 0.0, 1.0, 0.5, None, None, None]


@pytest.fixture
def write_job(kube: Any, store: Store) -> Callable[..., dict[str, Any]]:
    """``write_job("name", values)`` leaves a job behind as the operator does; with ``running=True`` before its end."""

    def write(name: str, values: list[float | None], *, running: bool = False) -> dict[str, Any]:
        builder = job_of_ten()
        rows, spec, plan = rows_of(builder, values), builder.job_spec(), builder.plan()
        item: dict[str, Any] = kube.put(
            "evaljobs", {"kind": "EvalJob", "metadata": {"name": name, "namespace": "evals"}, "spec": {"taskset": "suite"}}
        )
        prefix = job_prefix("evals", name, item["metadata"]["uid"])
        store.put(plan_key(prefix), encode_plan(plan))
        summary = job_summary(rows, spec, {trial.name: trial.key.task for trial in plan.trials})
        if running:
            store.put(rows_key(prefix, 0), to_lines(rows))
        else:
            for file, data in build_tables(plan, spec, {row.trial: (row,) for row in rows}).items():
                store.put(f"{prefix}{file}", data)
        for row in rows:
            if row.stored:
                cost = {"agent_result": {"cost_usd": 0.25}}
                store.put(result_key(prefix, row.trial, 0), json.dumps(cost).encode())
        counts = {kind: sum(row.outcome == kind for row in rows) for kind in ("scored", "errored", "cancelled")}
        item["status"] = {
            "phase": "Running" if running else "Failed",
            "progress": f"{len(rows)}/10",
            "plan": {"key": "k", "sha256": "0" * 64, "tasks": 2, "trials": 10},
            "mean": column_text(summary.scores[0].value) if summary.scores and summary.scores[0].value is not None else "",
            "trials": {"total": 10, "pending": 10 - len(rows), "running": 0, **counts, "retried": 0, "cached": 0},
            "scores": [
                {"name": score.name, "count": score.count, "missing": score.missing}
                | ({} if score.value is None else {"value": str(score.value)})
                for score in summary.scores
            ],
            "thresholds": [{"score": "reward.mean", "atLeast": 0.9, "value": "0.7857", "passed": False}],
            "results": {"prefix": f"s3://bucket/{prefix}"},
            "conditions": [],
        }
        saved: dict[str, Any] = kube.put("evaljobs", item)
        return saved

    return write


MEAN, ZERO = 5.5 / 7, 0.55


@pytest.mark.conforms("N-211", "H-139")
def test_the_mean_its_denominator_the_errors_and_the_zero_filled_mean_are_the_same_everywhere(
    seatrial: Callable[..., Ran], write_job: Callable[..., Any], tmp_path: Path
) -> None:
    item = write_job("job", SEVEN)
    status = {score["name"]: (float(score["value"]), score["count"], score["missing"]) for score in item["status"]["scores"]}
    document = json.loads(seatrial("results", "job", "-o", "json").out)
    scores = {score["name"]: (score["value"], score["count"], score["missing"]) for score in document["aggregates"]}
    assert seatrial("results", "job", "-o", "html", "-f", str(tmp_path / "r.html")).code == 0
    page, table = (tmp_path / "r.html").read_text(), seatrial("results", "job").out
    github = seatrial("results", "job", "-o", "github").out
    metrics = Metrics()
    metrics.show_jobs([item])
    shown = {
        sample.name: sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name.startswith("seatrial_job_mean") or sample.labels.get("state") == "errored"
    }
    assert shown == {
        "seatrial_job_mean": pytest.approx(MEAN),
        "seatrial_job_mean_zero_filled": pytest.approx(ZERO),
        "seatrial_job_trials": 3,
        "seatrial_trials": 3,
    }
    assert item["status"]["trials"]["errored"] == document["trials"]["errored"] == 3
    for found in (status, scores):
        assert found["reward.mean"] == (pytest.approx(MEAN), 7, 3)
        assert found["reward.mean.zero"] == (pytest.approx(ZERO), 10, 0)
    assert "reward.mean 0.786 (7 of 10); reward.mean.zero 0.550 (10, missing as 0)" in page
    assert "10 trials: 7 scored, 3 errored, 0 cancelled" in page
    assert [line.split() for line in table.splitlines() if line.startswith("reward.mean")] == [
        ["reward.mean", "0.786", "7", "3"],
        ["reward.mean.zero", "0.550", "10", "0"],
    ]
    assert "7 of 10 trials scored, 3 errored, 0 cancelled." in github
    assert r"| reward.mean.zero | 0.550 | 10 of 10 |" in github


def test_partial_scores_of_a_running_job_name_their_denominators(seatrial: Callable[..., Ran], write_job: Callable[..., Any]) -> None:
    write_job("job", [1.0, None, 0.0], running=True)
    rows = list(csv.DictReader(io.StringIO(seatrial("results", "job", "-o", "csv").out)))
    assert rows[0] == {"score": "reward.mean", "value": "0.5", "count": "2", "missing": "1"}
    assert "Partial   3/10 trials have ended" in seatrial("results", "job").out
    ranges = json.loads(seatrial("results", "job", "--view", "ranges", "-o", "json").out)
    assert (ranges[0]["name"], ranges[0]["mean"], ranges[0]["count"], ranges[0]["p50"]) == ("harbor_reward.reward", 0.5, 2, 0.5)
    assert "3 trials" not in seatrial("results", "job", "-o", "html").out
    assert "10 trials: 2 scored, 1 errored" in seatrial("results", "job", "-o", "html").out


def test_the_report_of_a_finished_job_is_the_stored_one(seatrial: Callable[..., Ran], write_job: Callable[..., Any], store: Store) -> None:
    item = write_job("job", SEVEN)
    stored = store.get(f"{job_prefix('evals', 'job', item['metadata']['uid'])}report.html", max_bytes=10**8)
    assert seatrial("results", "job", "-o", "html").out.encode().strip() == stored.strip()


def test_junit_counts_failures_errors_and_carries_no_markup(seatrial: Callable[..., Ran], write_job: Callable[..., Any]) -> None:
    write_job("job", SEVEN)
    root = ElementTree.fromstring(seatrial("results", "job", "-o", "junit").out)
    assert (root.tag, root.attrib) == (
        "testsuites",
        {"name": "job", "tests": "10", "failures": "2", "errors": "3", "skipped": "0", "time": "10.500"},
    )
    error = root.findall("testsuite/testcase/error")[0]
    assert (error.attrib, error.text) == ({"type": "RuntimeError", "message": "infrastructure"}, EVIL.replace("\x1b", "\ufffd"))
    assert root.findall("testsuite/testcase/failure")[0].attrib == {"message": "reward is 0"}


def test_junit_skips_what_never_ran() -> None:
    trial: dict[str, Any] = {"trial": "a__1", "task": "a", "state": "pending", "rewards": None, "error": None, "seconds": {}}
    root = ElementTree.fromstring(junit_xml("j", [trial], reward_key="reward"))
    assert root.attrib["skipped"] == "1"


def test_github_text_of_trials_is_no_command_and_no_markup() -> None:
    job = {
        "metadata": {"name": "job"},
        "status": {"phase": "Failed", "thresholds": [{"score": "reward.mean", "atLeast": 0.9, "value": "0.5", "passed": False}]},
    }
    group = {"label": "NodeLost", "task": "a,b", "occurrences": 3, "explanation": EVIL, "severity": None}
    assert github_annotations(job, [group]) == [
        "::error title=job%3A gate::reward.mean is 0.5, at least 0.9 was asked for",
        "::warning title=job%3A NodeLost::3 x a,b: bad <b>|pipe|\x1b[31m%0A::error::owned & co",
    ]
    last = github_summary(job, [], [group]).splitlines()[-1]
    assert last == r"| NodeLost | a,b | 3 | - | bad \<b\>\|pipe\| \[31m ::error::owned & co |"
    assert "| reward.mean | 0.5 | 0.9 | ❌ |" in github_summary(job, [], [])


def test_the_github_summary_goes_to_its_file(
    seatrial: Callable[..., Ran], write_job: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_job("job", SEVEN)
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    out = seatrial("results", "job", "-o", "github").out
    assert (tmp_path / "summary.md").read_text().startswith("### job: Failed\n")
    assert [line.split("::")[1].split(" ")[0] for line in out.splitlines()] == ["error", "warning", "warning", "warning"]


def test_parquet_holds_one_row_a_trial(seatrial: Callable[..., Ran], write_job: Callable[..., Any], tmp_path: Path) -> None:
    write_job("job", SEVEN)
    assert seatrial("results", "job", "-o", "parquet", "-f", str(tmp_path / "r.parquet")).code == 0
    table = pyarrow.parquet.read_table(tmp_path / "r.parquet")
    assert table.num_rows == 10
    assert table.column("reward.reward").to_pylist() == SEVEN
    assert seatrial("results", "job", "-o", "parquet").code == 2


@pytest.fixture
def job(client_environment: StoreSettings, kubeconfig: Path, write_job: Callable[..., Any], store: Store) -> Job:
    """A finished job through the SDK."""
    cluster = Cluster.connect(ClusterSettings(str(kubeconfig), None, "evals"))
    return Job(cluster, lambda: store, write_job("job", SEVEN))


@pytest.mark.conforms("N-133", "N-209")
def test_tables_have_the_columns_of_scores_and_trials(job: Job) -> None:
    frame = job.to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert {"id", "run_id", "task_id", "trial_id", "metric_type", "status", "output.reward", "error", "diagnostics.harbor_reward"} <= set(
        frame
    )
    assert frame["output.reward"].dropna().tolist() == [1.0, 1.0, 1.0, 1.0, 0.0, 1.0, 0.5]
    assert frame["status"].tolist() == ["completed"] * 7 + ["failed"] * 3
    assert frame["reward.reward"].isna().sum() == 3
    aggregate = job.to_pandas("aggregate")
    first = aggregate.set_index("name").loc["harbor_reward.reward"]
    assert (first["mean"], first["count"], first["nan_count"], first["p50"]) == (pytest.approx(MEAN), 7, 3, 1.0)
    assert job.to_table().num_rows == 10
    with pytest.raises(ValueError, match="known: rows, aggregate"):
        job.to_records("other")


@pytest.mark.conforms("N-133")
def test_scores_are_found_under_their_short_and_their_original_names(job: Job) -> None:
    summary = job.summary
    assert summary.score("reward.mean") == pytest.approx(MEAN)
    assert summary.score("harbor_reward.reward") == pytest.approx(MEAN)
    assert summary.score("harbor_reward.reward.pass@1") == pytest.approx(5 / 7)
    assert job.format_summary().splitlines()[:2] == ["reward.mean  0.786  (7 of 10)", "reward.mean.zero  0.550  (10 of 10)"]


def test_compare_lists_regressions_first_and_can_fail(seatrial: Callable[..., Ran], write_job: Callable[..., Any]) -> None:
    write_job("old", [1.0] * 9 + [None])
    write_job("new", [1.0, *[0.0] * 7, None, 1.0])
    write_job("same", [1.0] * 10)
    out = seatrial("compare", "old", "new").out
    lines = out.splitlines()
    assert lines[0].startswith(
        "new against old: WORSE; mean difference -0.875 over 8 tasks, 95 % interval -1.171 to -0.579, p = 0.0156 (mcnemar-exact)"
    )
    assert lines[3].split() == ["bench/t1", "1.000", "0.000", "-1.000", "1/1", "-"]
    assert "bench/t0" not in out
    assert lines[-3:] == ["Scored only by the baseline: bench/t8", "", "Scored only by the new job: bench/t9"]
    assert seatrial("compare", "old", "new", "--fail-if-worse").code == 1
    assert seatrial("compare", "old", "same", "--fail-if-worse").code == 0
    assert seatrial("compare", "old").code == 2
    found = json.loads(seatrial("compare", "old", "new", "same", "-o", "json").out)
    assert [(item["candidate"], item["verdict"]) for item in found] == [("new", "worse"), ("same", "same")]
    rows = list(csv.DictReader(io.StringIO(seatrial("compare", "old", "new", "-o", "csv").out)))
    assert len(rows) == 8


@pytest.mark.parametrize("chart", ["tasks", "durations", "cost"])
def test_charts_are_svg(seatrial: Callable[..., Ran], write_job: Callable[..., Any], tmp_path: Path, chart: str) -> None:
    write_job("job", SEVEN)
    assert seatrial("plot", "job", "--kind", chart, "-f", str(tmp_path / "c.svg")).code == 0
    root = ElementTree.parse(tmp_path / "c.svg").getroot()
    assert root.tag.endswith("}svg")
    circles = [element for element in root.iter() if element.tag.endswith("}circle")]
    assert len(circles) == (7 if chart == "cost" else 0)


def test_a_curve_needs_several_attempts(seatrial: Callable[..., Ran], write_job: Callable[..., Any]) -> None:
    write_job("job", SEVEN)
    ran = seatrial("plot", "job", "--kind", "pass-at-k")
    assert ran.code == 2
    assert "tasks with several scored attempts" in ran.err


@pytest.mark.conforms("N-209")
def test_a_saved_bundle_follows_byte_for_byte_from_its_rows(
    seatrial: Callable[..., Ran], write_job: Callable[..., Any], store: Store
) -> None:
    item = write_job("job", SEVEN)
    ran = seatrial("rescore", "job", "--check")
    assert (ran.code, ran.out.splitlines()) == (
        0,
        [f"{file}: identical" for file in ("metadata.json", "tasks.jsonl", "trials.jsonl", "scores.jsonl", "report.html", "summary.json")],
    )
    key = f"{job_prefix('evals', 'job', item['metadata']['uid'])}summary.json"
    store.put(key, store.get(key, max_bytes=10**7).replace(b"0.55", b"0.95"))
    ran = seatrial("rescore", "job", "--check")
    assert (ran.code, ran.out.splitlines()[-1]) == (1, "summary.json: differs")


def test_rescore_and_rerun_make_jobs_over_the_old_one(seatrial: Callable[..., Ran], write_job: Callable[..., Any], kube: Any) -> None:
    write_job("job", SEVEN)
    assert seatrial("rescore", "job", "--metric", "max:zero", "--threshold", "reward.max=1", "--job-name", "again", "--detach").code == 0
    assert kube.get("evaljobs", "again")["spec"] == {
        "rescore": {"job": "job"},
        "metrics": [{"type": "max", "missing": "zero"}],
        "thresholds": [{"score": "reward.max", "atLeast": 1.0}],
    }
    assert seatrial("rescore", "job", "--metric", "avg").code == 2
    assert seatrial("run", "--from", "job", "--rerun-errors", "NodeLost", "-k", "3", "--job-name", "more", "--detach").code == 0
    assert kube.get("evaljobs", "more")["spec"] == {"taskset": "suite", "cache": {"job": "job", "rerunErrors": ["NodeLost"]}, "attempts": 3}
    assert seatrial("run", "--rerun-errors", "NodeLost", "-d", "suite").code == 2
    assert seatrial("run", "--from", "again", "--detach").code == 2


# --- scored here: metrics, judges, saved trials -----------------------------------------------------------------------------------------


TONE = """
from seatrial.sdk import QualitativeMetric, QualResult

class Manners(QualitativeMetric):
    name = "manners"

    async def evaluate(self, given):
        return QualResult("rude" if "!" in given.agent_message else "no failure", "punctuation")
"""


def trajectory_archive(says: str) -> bytes:
    """A trial's logs with an ATIF trajectory of one turn."""
    steps = [{"source": "user", "message": "Book a table."}, {"source": "agent", "message": says}]
    data = json.dumps({"schema_version": "ATIF-v1.7", "steps": steps}).encode()
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        info = tarfile.TarInfo("agent/trajectory.json")
        info.size = len(data)
        archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


@pytest.fixture
def talking_job(write_job: Callable[..., Any], store: Store) -> str:
    """A job of three scored trials, two of which left a trajectory; the third one's is missing."""
    item = write_job("talks", [1.0, 0.0, 1.0, None])
    prefix = job_prefix("evals", "talks", item["metadata"]["uid"])
    names = [trial.name for trial in job_of_ten().plan().trials]
    for name, says in ((names[0], "Booked for you."), (names[1], "No!")):
        store.put(logs_key(prefix, name, 0), trajectory_archive(says))
    return "talks"


@pytest.fixture
def metric_list(tmp_path: Path) -> Callable[..., Path]:
    """``metric_list(endpoint, **more)`` writes a list with a judged, a custom and a plain metric."""

    def write(endpoint: str, **more: Any) -> Path:
        (tmp_path / "manners.py").write_text(TONE)
        body = {
            "metrics": [
                {"type": "exact-match", "config": {"reference": "booked for you"}},
                {"type": "helpfulness"},
                {"class": "manners:Manners", "source": "manners.py"},
            ],
            "judge": {"endpoint": endpoint, "model": "m", "attempts": 2, "pauseSeconds": 0, "promptPrice": 1, "completionPrice": 2},
            **more,
        }
        (tmp_path / "metrics.yaml").write_text(json.dumps(body))
        return tmp_path / "metrics.yaml"

    return write


def by_answer(body: dict[str, Any]) -> Reply:
    """Marks 5 for a booking and 2 otherwise; merges all groups it is shown."""
    shown = body["messages"][1]["content"]
    if body["response_format"]["json_schema"]["name"] == "MergedGroups":
        ids = [group["id"] for group in json.loads(shown)]
        return answer(json.dumps({"groups": [{"label": "bad manners", "severity": "critical", "ids": ids, "explanation": "shouts"}]}))
    mark = 5 if "Booked" in json.loads(shown)["agent"] else 2
    return answer(json.dumps({"value": mark, "reason": "read"}), prompt_tokens=10, completion_tokens=5)


@pytest.mark.conforms("N-93", "N-185", "N-187", "N-189", "N-191", "N-192")
def test_a_jobs_trials_are_scored_here_with_listed_metrics_and_a_judge(
    seatrial: Callable[..., Ran], talking_job: str, metric_list: Callable[..., Path], tmp_path: Path
) -> None:
    with JudgeServer(by_answer) as server:
        file = metric_list(server.endpoint, thresholds={"helpfulness": 4.0, "manners.failures.mean": 0.0}, judgeGroups=True)
        ran = seatrial("rescore", talking_job, "--metrics", str(file), "-d", str(tmp_path / "out"))
        lines = {line.split()[0]: line.split() for line in ran.out.splitlines() if line}
        assert ran.code == 1
        assert lines["reward.mean"] == ["reward.mean", "0.667", "3", "1", "-"]
        assert lines["exact-match.exact-match.mean"] == ["exact-match.exact-match.mean", "0.333", "3", "1", "-"]
        assert lines["helpfulness.value.mean"] == ["helpfulness.value.mean", "3.500", "2", "2", "missed"]
        assert lines["manners.failures.mean"] == ["manners.failures.mean", "0.500", "2", "2", "passed"]
        assert lines["bad"][:4] == ["bad", "manners", "critical", "1"]
        assert "Judge    m: 3 requests, 20 + 10 tokens, 0.0000 USD" in ran.out
        assert "Missed   helpfulness.value.mean is 3.5, at least 4.0 was asked for" in ran.out
        document = json.loads(seatrial("rescore", talking_job, "--metrics", str(file), "-o", "json").out)
    assert document["judge"]["cost_usd"] == pytest.approx(0.00004)
    turns = [trial["turns"] for trial in document["trials"][:2]]
    assert [turn[0]["metrics"]["manners"]["value"] for turn in turns] == ["no failure", "rude"]
    assert [turn[0]["metrics"]["helpfulness"]["value"] for turn in turns] == [5.0, 2.0]
    saved = json.loads((tmp_path / "out/summary.json").read_text())
    assert saved["metric_coverage"]["helpfulness"]["value"] == {"total": 4, "scored": 2, "failed": 2, "missing": 0}
    assert (tmp_path / "out/report.html").is_file()


@pytest.mark.parametrize(
    "failing",
    [((503, b""), "JudgeUnavailable"), (answer("I would say four"), "JudgeMalformed"), ((401, b""), "JudgeRefused")],
    ids=["outage", "malformed", "refused"],
)
def test_a_judge_that_fails_is_a_named_error_and_the_results_are_saved(
    seatrial: Callable[..., Ran], talking_job: str, metric_list: Callable[..., Path], tmp_path: Path, failing: tuple[Reply, str]
) -> None:
    reply, reason = failing
    with JudgeServer(lambda body: reply) as server:
        file = metric_list(server.endpoint, judgeGroups=True, thresholds={"helpfulness": 4.0})
        ran = seatrial("rescore", talking_job, "--metrics", str(file), "-d", str(tmp_path / "out"))
    assert (ran.code, f"{reason}" in ran.out) == (1, True)
    summary = json.loads((tmp_path / "out/summary.json").read_text())
    scores = {score["name"]: (score["value"], score["count"], score["missing"]) for score in summary["aggregates"]}
    assert scores["reward.mean"] == (pytest.approx(2 / 3), 3, 1)
    assert scores["helpfulness.value.mean"] == (None, 0, 4)
    assert scores["manners.failures.mean"] == (0.5, 2, 2)
    assert summary["judge"]["failures"] == {reason: 3}
    assert summary["judge"]["grouping"].startswith(reason)
    assert {group["label"] for group in summary["failure_groups"]} == {"NodeLost", "manners: rude"}


@pytest.mark.conforms("N-98", "N-134")
def test_a_harbor_job_directory_gives_the_scores_of_the_job_it_came_from(
    seatrial: Callable[..., Ran], exported: Path, tmp_path: Path
) -> None:
    (tmp_path / "metrics.yaml").write_text("metrics: [{type: exact-match, config: {reference: x}}]")
    document = json.loads(seatrial("rescore", "--harbor-job", str(exported), "--metrics", str(tmp_path / "metrics.yaml"), "-o", "json").out)
    scores = {score["name"]: (score["value"], score["count"], score["missing"]) for score in document["scores"]}
    assert scores["reward.mean"] == (1.0, 2, 1)
    assert scores["reward.mean.zero"] == (pytest.approx(2 / 3), 3, 0)


@pytest.mark.conforms("N-98")
def test_a_harbor_job_directory_is_stored_for_a_job_that_scores_it(
    seatrial: Callable[..., Ran], exported: Path, kube: Any, store: Store
) -> None:
    member_line = json.dumps({"ref": "evals/t0#x", "archive": "filesets/evals/s/a", "sha256": "0" * 64}) + "\n"
    store.put("filesets/evals/tasksets/suite.jsonl", member_line.encode())
    digest = hashlib.sha256(member_line.encode()).hexdigest()
    manifest = {"ref": "filesets/evals/tasksets/suite.jsonl", "sha256": digest}
    place = {"namespace": "evals"}
    kube.put("tasks", {"kind": "Task", "metadata": {"name": "t0", **place}, "spec": {}, "status": {"nativeTaskId": "bench/t0"}})
    kube.put("tasksets", {"kind": "Taskset", "metadata": {"name": "suite", **place}, "spec": {}, "status": {"manifest": manifest}})
    ran = seatrial("rescore", "--harbor-job", str(exported), "--taskset", "suite", "--job-name", "old", "--detach")
    assert ran.code == 0, ran.err
    spec = kube.get("evaljobs", "old")["spec"]
    ref, sha256 = spec["rescore"]["trials"]["ref"], spec["rescore"]["trials"]["sha256"]
    assert (spec["rescore"]["taskset"], spec["rewardKey"], ref) == ("suite", "reward", f"evals/saved-trials#{sha256[:20]}/trials.jsonl")
    key = f"filesets/{ref.replace('#', '/')}"
    data = store.get(key, max_bytes=10**6)
    assert hashlib.sha256(data).hexdigest() == sha256
    lines = [json.loads(line) for line in data.splitlines()]
    assert [line["task_id"] for line in lines] == ["bench/t0", "bench/t0"]
    for line in lines:
        for kind in ("result", "logs"):
            stored = store.get(f"{key.removesuffix('trials.jsonl')}{line['evidence'][kind]['ref']}", max_bytes=10**6)
            assert hashlib.sha256(stored).hexdigest() == line["evidence"][kind]["sha256"]


@pytest.mark.parametrize(
    "arguments",
    [(), ("job", "--harbor-job", "x"), ("--trials", "x", "--harbor-job", "y"), ("--trials", "nothing.jsonl"), ("--harbor-job", "nothing")],
)
def test_a_rescore_needs_exactly_one_source_and_saved_trials_their_taskset(
    seatrial: Callable[..., Ran], arguments: tuple[str, ...]
) -> None:
    assert seatrial("rescore", *arguments).code == 2


@pytest.mark.conforms("N-133", "N-134")
def test_a_finished_jobs_result_is_of_the_same_kind_as_a_local_one_and_can_be_scored_again(job: Job) -> None:
    result = job.result()
    tasks = tasks_of(result.trials)
    again = AgentEvaluator().run_sync(tasks, trials=result.trials)
    assert type(again) is type(result)
    for name in ("scores", "error_trial_ids", "harbor_metrics", "outcome", "task_metric_values", "failure_groups"):
        assert again.summary.raw[name] == result.summary.raw[name], name
    assert [trial.metadata for trial in again.trials] == [
        {**trial.metadata, "harbor_trial_dir": f"trials/{trial.id}/0"} for trial in result.trials
    ]
    assert {record["metric_type"] for record in again.to_records()} == {"harbor_reward"}
    assert again.to_records("aggregate")[0]["name"] == "harbor_reward.reward"


# --- as Harbor's job directory ----------------------------------------------------------------------------------------------------------


def stored_result(trial: str, *, cost: float | None) -> dict[str, Any]:
    """A trial result as the verifier stores it."""
    span = {"started_at": "2026-03-04T11:00:00Z", "finished_at": "2026-03-04T11:00:01Z"}
    return {
        "schema_version": 1,
        "id": "773a0096-0000-0000-0000-000000000000",
        "task_name": "bench/t0",
        "trial_name": trial,
        "trial_uri": "seatrial://evals/job/x",
        "task_id": {"path": "bench/t0"},
        "source": "my__set",
        "task_checksum": "c" * 64,
        "config": {"task": {"path": "bench/t0"}, "job_id": "00000000-0000-0000-0000-000000000000"},
        "agent_info": {"name": "oracle", "version": "1.0.0", "model_info": {"name": "opus", "provider": "anthropic"}},
        "agent_result": {"n_input_tokens": 10, "n_cache_tokens": None, "n_output_tokens": 5, "cost_usd": cost},
        "verifier_result": {"rewards": {"reward": 1.0}},
        "verifier_environment_mode": "shared",
        "exception_info": None,
        **span,
        "environment_setup": span,
        "agent_setup": None,
        "agent_execution": span,
        "verifier": span,
        "step_results": None,
        "reward_valid": True,
        "seatrial": {"schema": 1},
    }


@pytest.fixture
def exported(seatrial: Callable[..., Ran], write_job: Callable[..., Any], store: Store, tmp_path: Path) -> Path:
    """The folder of an exported job: three trials with results, one of them scored without any, one errored."""
    item = write_job("job", [1.0, 1.0, None])
    prefix = job_prefix("evals", "job", item["metadata"]["uid"])
    names = [trial.name for trial in job_of_ten().plan().trials]
    for name, cost in ((names[0], 0.25), (names[1], 0.5)):
        store.put(result_key(prefix, name, 0), json.dumps(stored_result(name, cost=cost)).encode())
    ran = seatrial("artifacts", "job", "-d", str(tmp_path / "jobs"), "--layout", "harbor")
    assert ran.code == 0, ran.err
    return Path(ran.out.strip())


@pytest.mark.conforms("H-121", "H-124", "H-127", "H-130", "H-131")
def test_the_exported_job_result_has_harbors_fields_and_no_trial(exported: Path) -> None:
    result = json.loads((exported / "result.json").read_text())
    names = sorted(path.name for path in exported.iterdir() if path.is_dir())
    stats = result["stats"]
    assert set(result) == {"schema_version", "id", "started_at", "updated_at", "finished_at", "n_total_trials", "stats"}
    assert result["finished_at"].endswith("Z")
    assert (result["n_total_trials"], stats["n_completed_trials"], stats["n_errored_trials"], stats["n_pending_trials"]) == (10, 3, 1, 7)
    assert {name: stats[name] for name in ("n_input_tokens", "n_cache_tokens", "n_output_tokens", "cost_usd")} == {
        "n_input_tokens": 20,
        "n_cache_tokens": None,
        "n_output_tokens": 10,
        "cost_usd": 0.75,
    }
    assert stats["evals"]["oracle__opus__my__set"] == {
        "n_trials": 2,
        "n_errors": 0,
        "metrics": [{"mean": 1.0}],
        "pass_at_k": {},
        "reward_stats": {"reward": {"1.0": names[:2]}},
        "exception_stats": {},
    }
    assert stats["evals"]["oracle__adhoc"]["exception_stats"] == {"RuntimeError": names[2:]}


@pytest.mark.conforms("H-120", "H-122")
def test_an_exported_trial_has_harbors_files(exported: Path) -> None:
    first, _, errored = sorted(path for path in exported.iterdir() if path.is_dir())
    assert {path.name for path in exported.iterdir() if path.is_file()} == {"config.json", "lock.json", "result.json", "job.log"}
    assert {path.name for path in first.iterdir()} == {
        "config.json",
        "lock.json",
        "result.json",
        "trial.log",
        "agent",
        "verifier",
        "artifacts",
    }
    assert json.loads((first / "result.json").read_text()) == {
        key: value for key, value in stored_result(first.name, cost=0.25).items() if key != "seatrial"
    }
    told = json.loads((errored / "result.json").read_text())
    assert (told["exception_info"]["exception_type"], told["verifier_result"], told["reward_valid"]) == ("RuntimeError", None, False)
    assert told["exception_info"]["occurred_at"].endswith("Z")
    assert "NodeLost (infrastructure)" in (errored / "exception.txt").read_text()


@pytest.mark.conforms("H-128")
def test_the_exported_lock_names_tasks_by_digest(exported: Path) -> None:
    lock = json.loads((exported / "lock.json").read_text())
    assert (lock["schema_version"], len(lock["trials"])) == (3, 3)
    assert lock["trials"][0]["task"] == {"name": "bench/t0", "type": "local", "digest": f"sha256:{'c' * 64}"}
    assert lock["trials"][2]["task"] == {"name": "bench/t2", "type": "local", "digest": f"sha256:{'c' * 64}"}
    folders = sorted(path for path in exported.iterdir() if path.is_dir())
    assert [json.loads((folder / "lock.json").read_text()) for folder in folders] == lock["trials"]


def test_an_export_never_overwrites(seatrial: Callable[..., Ran], exported: Path) -> None:
    ran = seatrial("artifacts", "job", "-d", str(exported.parent), "--layout", "harbor")
    assert ran.code == 2
    assert "is not empty" in ran.err or "exists" in ran.err


# --- metric scripts ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.conforms("N-164", "N-166")
def test_a_script_of_ones_own_reads_the_rewards_of_a_job(
    seatrial: Callable[..., Ran], write_job: Callable[..., Any], tmp_path: Path
) -> None:
    write_job("job", SEVEN)
    script = tmp_path / "metric.py"
    script.write_text(
        "import json, sys\n"
        "rows = [json.loads(line) for line in open(sys.argv[2])]\n"
        "json.dump({'n': len(rows), 'null': rows.count(None)}, open(sys.argv[4], 'w'))\n"
    )
    ran = seatrial("rescore", "job", "--script", str(script), "-o", "json")
    assert (ran.code, [(item["name"], item["value"]) for item in json.loads(ran.out)]) == (0, [("script.n", 10.0), ("script.null", 3.0)])
    script.write_text("raise KeyError('reward')")
    ran = seatrial("rescore", "job", "--script", str(script))
    assert (ran.code, "KeyError: 'reward'" in ran.err) == (1, True)
    assert seatrial("rescore", "job", "--check").code == 0
