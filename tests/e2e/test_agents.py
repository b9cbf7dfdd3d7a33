"""Agents on the real cluster: the user's class with source, skills and variables; secrets; and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from .cases import Finished, case
from .conftest import NAMESPACE
from .harness import Cluster, condition, evaljob, unique

pytestmark = pytest.mark.cluster
SECRET = "model-key-value-4711"
LOCAL = "local-key-value-0815"

AGENT = """
import json
import os

from harbor.agents.base import BaseAgent
from harbor.agents.capabilities import AgentCapabilities

from words import GREETING


class Mine(BaseAgent):
    capabilities = AgentCapabilities(skills=True)

    def __init__(self, *args, depth=0, options=None, **kwargs):
        super().__init__(*args, **kwargs)
        self.given = [depth, options]

    @staticmethod
    def name():
        return "mine"

    def version(self):
        return "7.1"

    async def setup(self, environment):
        done = await environment.exec("id -un > /app/set-up", user="root")
        assert done.return_code == 0, done.stderr

    async def run(self, instruction, environment, context):
        shown = await environment.exec('echo "$A $B $C $D"', env={"C": "command", "D": "command"})
        key = await environment.exec("echo ${#API_KEY} ${#LOCAL_KEY}")
        skill = await environment.exec(f"cat {self.skills_dir}/greet/SKILL.md && id -un")
        told = [instruction.strip(), self.model_name, self.given, shown.stdout, key.stdout, skill.stdout, sorted(self.extra_env)]
        (self.logs_dir / "told.json").write_text(json.dumps(told))
        (self.logs_dir / "leak.txt").write_text(self.extra_env["API_KEY"] + self.extra_env["LOCAL_KEY"])
        print("printed", self.extra_env["API_KEY"])
        line = json.dumps({"resourceSpans": []})
        done = await environment.exec(f"echo {GREETING} > /app/made; mkdir -p /app/traces && echo '{line}' > /app/traces/run.jsonl")
        assert done.return_code == 0, done.stderr
        context.n_input_tokens, context.cost_usd = 12, 0.5
"""

TEST = """
[ "$(cat /app/made)" = Hello ] && [ "$(cat /app/set-up)" = root ] && [ -s "$TRACE_DIR/run.jsonl" ] || exit 0
[ -z "$API_KEY$LOCAL_KEY" ] && [ "$A $B $C $D" = "task job job job" ] && echo 1 > /logs/verifier/reward.txt
"""
VARIABLES = 'env = { A = "task", B = "task", C = "task", D = "task" }\n'


@pytest.fixture(scope="module")
def own_class(installed: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """Two tasks by one command line: the class from a folder, model, arguments, variables of every kind, a skill."""
    folder = tmp_path_factory.mktemp("agent")
    suite, source = folder / "suite", folder / "source"
    case(suite, "by-root", test=TEST, environment=VARIABLES)
    sections = '[agent]\ntimeout_sec = 60.0\nuser = "nobody"\n[environment.healthcheck]\ncommand = "chmod 777 /app"\n'
    case(suite, "by-nobody", test=TEST, environment=f'{VARIABLES}skills_dir = "/opt/skills"\n', sections=sections)
    for name, text in {"mine.py": AGENT, "words.py": 'GREETING = "Hello"\n', "skills/greet/SKILL.md": "Greet.\n"}.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(text)
    installed.apply(_secret("agent-model-key", token=SECRET))
    name = unique("own-class")
    command = ["run", str(suite), "-a", "mine:Mine", "--agent-dir", str(source), "-m", "mine/model", "-n", "2", "--skill", "skills"]
    command += ["--ak", "depth=3", "--ak", 'options={"a": [1, null]}', "--ae", "D=agent", "--ee", "B=job", "--ee", "C=job", "--ee", "D=job"]
    command += ["--agent-env-secret", "API_KEY=agent-model-key:token", "--env-secret", "LOCAL_KEY=mine/local-key"]
    command += ["--trace-dir", "/app/traces", "--job-name", name, "--namespace", NAMESPACE]
    installed.run("env", f"MINE_LOCAL_KEY={LOCAL}", "seatrial", *command)
    return Finished(installed, name, NAMESPACE)


def _secret(name: str, **values: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": NAMESPACE}, "stringData": values}


@pytest.mark.conforms("N-101", "N-106", "N-171")
@pytest.mark.parametrize("task", ["by-root", "by-nobody"])
def test_a_class_from_a_folder_runs_by_one_command_line(own_class: Finished, task: str) -> None:
    assert own_class[task] == (1.0, None)
    result = own_class.result(task)
    model = {"name": "mine/model", "provider": None}
    assert result["agent_info"] == {"name": "mine", "version": "7.1", "model_info": model}
    assert (result["agent_result"]["n_input_tokens"], result["agent_result"]["cost_usd"]) == (12, 0.5)


@pytest.mark.conforms("H-39", "H-96", "N-104", "N-105")
@pytest.mark.parametrize(("task", "user"), [("by-root", "root"), ("by-nobody", "nobody")])
def test_what_the_class_and_its_commands_see(own_class: Finished, task: str, user: str) -> None:
    lengths = f"{len(SECRET)} {len(LOCAL)}\n"
    expected = [
        f"Case {task}.",
        "mine/model",
        [3, {"a": [1, None]}],
        "task job command agent\n",
        lengths,
        f"Greet.\n{user}\n",
        ["API_KEY", "D", "LOCAL_KEY"],
    ]
    assert json.loads(own_class.logs(task)["agent/told.json"]) == expected


@pytest.mark.conforms("N-208")
def test_traces_are_collected_as_traces(own_class: Finished) -> None:
    logs = own_class.logs("by-root")
    assert logs["artifacts/traces/run.jsonl"] == b'{"resourceSpans": []}\n'
    rows = json.loads(logs["artifacts/manifest.json"])
    assert [row["source"] for row in rows][:2] == ["/logs/artifacts", "/app/traces"]


@pytest.mark.conforms("N-114", "H-101")
def test_no_secret_value_is_in_any_object_file_event_or_log(own_class: Finished) -> None:
    cluster, prefix = own_class.cluster, own_class.cluster.prefix(own_class.name, NAMESPACE)
    store = cluster.store()
    seen = {item.key.removeprefix(prefix): store.get(item.key, max_bytes=64 * 1024 * 1024) for item in store.list(prefix)}
    assert {"plan.json", "metadata.json", "trials.jsonl", "summary.json", "report.html"} <= set(seen)
    for task in ("by-root", "by-nobody"):
        seen |= {f"{task}/{name}": data for name, data in own_class.logs(task).items()}
        assert own_class.logs(task)["agent/agent.txt"] == b"printed [REDACTED]\n"
    seen["evaljob"] = json.dumps(cluster.job(own_class.name, NAMESPACE)).encode()
    seen["events"] = json.dumps(cluster.get("events.events.k8s.io", "-n", NAMESPACE)).encode()
    logs = ("logs", "-n", "seatrial-system", "-l", "app.kubernetes.io/name=seatrial", "--tail=-1", "--prefix")
    seen["operator"] = cluster.kubectl(*logs).encode()
    assert seen["operator"]
    assert [name for name, data in seen.items() if SECRET.encode() in data or LOCAL.encode() in data] == []


@pytest.mark.conforms("N-112")
def test_a_secret_of_the_users_machine_is_owned_by_its_job(own_class: Finished) -> None:
    job = own_class.cluster.job(own_class.name, NAMESPACE)
    reference = job["spec"]["agent"]["envSecrets"]["LOCAL_KEY"]
    secret = own_class.cluster.get("secret", reference["name"], "-n", NAMESPACE)
    assert [owner["uid"] for owner in secret["metadata"]["ownerReferences"]] == [job["metadata"]["uid"]]
    assert set(secret["data"]) == {reference["key"]}


@pytest.mark.conforms("N-113")
def test_a_secret_is_read_in_the_jobs_namespace_and_a_missing_one_costs_no_finished_trial(installed: Cluster, tmp_path: Path) -> None:
    case(tmp_path, "keyed", test='[ "$(cat /app/key)" = yes ] && echo 1 > /logs/verifier/reward.txt')
    name, other = unique("keyed"), "default"
    installed.seatrial("publish", str(tmp_path), "--taskset", name, "--namespace", NAMESPACE)
    installed.apply(_secret(name, token=SECRET), {**_secret(name, token="another"), "metadata": {"name": name, "namespace": other}})
    agent = {"command": f'[ "$API_KEY" = {SECRET} ] && echo yes > /app/key', "envSecrets": {"API_KEY": {"name": name, "key": "token"}}}
    # The command names the value to compare with, which a real job never would.
    installed.apply(evaljob(name, NAMESPACE, taskset=name, agent=agent))
    installed.finished(name, NAMESPACE)
    assert Finished(installed, name, NAMESPACE)["keyed"] == (1.0, None)
    installed.kubectl("delete", "secret", name, "-n", NAMESPACE)
    again = unique("keyless")
    installed.apply(evaljob(again, NAMESPACE, taskset=name, agent=agent, attempts=2, cache={"job": name}))
    installed.finished(again, NAMESPACE, timeout=240)
    found = {row["attempt"]: (row["outcome"], (row.get("error") or {}).get("type")) for row in installed.rows(again, NAMESPACE)}
    assert sorted(found.values(), key=str) == [("errored", "ContainerConfigError"), ("scored", None)]
    message = next(row["error"]["message"] for row in installed.rows(again, NAMESPACE) if row.get("error"))
    assert name in message


@pytest.mark.conforms("H-95")
def test_skills_for_an_agent_that_cannot_use_them_fail_the_job_before_any_pod(installed: Cluster, smoke: str) -> None:
    name = unique("unskilled")
    installed.apply(evaljob(name, NAMESPACE, taskset=smoke, agent={"name": "nop", "skills": ["/skills"]}))
    job = installed.finished(name, NAMESPACE)
    assert (job["status"]["phase"], condition(job, "Failed")["reason"]) == ("Failed", "UnsupportedAgent")
    assert "supports neither skills nor mcpServers" in condition(job, "Failed")["message"]
    assert installed.trial_pods(NAMESPACE, name) == []
