"""Results of jobs in every format, comparisons and plots, against a real S3 server and a small Kubernetes API."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import pandas
import pyarrow.parquet
import pytest
from tests.builders import JobBuilder, make_job, make_row, make_task

from seatrial.cli.main import main
from seatrial.core.bundle import build_tables
from seatrial.core.frozen import encode_plan
from seatrial.core.naming import job_prefix, plan_key, result_key, rows_key
from seatrial.core.rows import Row, TrialError, to_lines
from seatrial.core.status import job_summary
from seatrial.effects.store import Store, StoreSettings
from seatrial.sdk.cluster import Cluster, ClusterSettings
from seatrial.sdk.exports import github_annotations, github_summary, junit_xml
from seatrial.sdk.jobs import Job

EVIL = "bad <b>|pipe|\x1b[31m\n::error::owned & co"
LOST = TrialError("NodeLost", "RuntimeError", "infrastructure", EVIL)


class Ran(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def seatrial(client_environment: StoreSettings, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    def run(*arguments: str) -> Ran:
        capsys.readouterr()
        code = main(arguments)
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return run


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
