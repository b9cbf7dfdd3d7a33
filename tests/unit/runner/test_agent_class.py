"""An agent class of the user: the real host process against a real runner and a real envd."""

from __future__ import annotations

import json
import shutil
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from seatrial import contract
from seatrial.taskpkg.pack import pack_task

if TYPE_CHECKING:
    from .conftest import Outcome, Pod

HEAD = """
import asyncio, json, os, time
from harbor.agents.base import BaseAgent
from harbor.agents.capabilities import AgentCapabilities
from harbor.environments.base import BaseEnvironment
from harbor.models.agent.context import AgentContext


class Mine(BaseAgent):
    @staticmethod
    def name():
        return "mine"

    def version(self):
        return "7.1"

    async def setup(self, environment: BaseEnvironment) -> None:
        pass

"""
SAY_HELLO = 'await environment.exec("echo Hello > $APP/hello.txt")'


def host(pod: Pod, body: str, **files: str) -> None:
    """The Pod's agent is the class ``mine:Mine`` with the methods of ``body``."""
    source = pod.root / "source-of-agent"
    for name, text in {"mine.py": HEAD + textwrap.indent(textwrap.dedent(body), "    "), **files}.items():
        file = source / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    pod.trial["agent"] |= {"kind": "importPath", "name": "mine:Mine"}


def run(pod: Pod) -> Outcome:
    """With the source as the operator hands it on."""
    archive = pod.root / "source.tar.gz"
    packed = pack_task(pod.root / "source-of-agent", archive, root_name="source")
    pod.store.put("source", archive.read_bytes())
    staged = pod.stage
    changes = {contract.VAR_SOURCE_URL: pod.store.url("source"), contract.VAR_SOURCE_SHA256: packed.sha256}
    pod.stage = lambda **_: staged(**changes)  # type: ignore[method-assign]
    return pod.run()


RUN = "async def run(self, instruction, environment, context):\n"


@pytest.mark.conforms("N-101", "N-104", "N-105", "H-39")
def test_a_class_gets_model_kwargs_and_variables_and_its_commands_see_them(pod: Pod) -> None:
    host(pod, f"""
        def __init__(self, *args, depth, options, **kwargs):
            super().__init__(*args, **kwargs)
            self.given = [depth, options]

        {RUN}
            {SAY_HELLO}
            told = {{"instruction": instruction, "model": self.model_name, "kwargs": self.given, "env": self.extra_env}}
            seen = await environment.exec("echo $MINE-$KEY-$OWN; echo err >&2; exit 3", env={{"OWN": "own", "MINE": "command's"}})
            told["seen"] = [seen.stdout, seen.stderr, seen.return_code]
            (self.logs_dir / "told.json").write_text(json.dumps(told))
            print("printed")
            context.n_input_tokens, context.cost_usd, context.metadata = 12, 0.5, {{"turns": 2}}
    """)  # fmt: skip
    pod.trial["agent"] |= {
        "model": "mine/model",
        "kwargs": {"depth": 3, "options": {"a": [1, None, True]}},
        "env_names": ["KEY", "MINE"],
    }
    pod.agent_env = {"KEY": "s3cret-value", "MINE": "plain", "OTHER": "not the agent's"}
    outcome = run(pod)
    assert (outcome.verdict.rewards, outcome.error, outcome.message) == ({"reward": 1.0}, None, "")
    assert json.loads(outcome.logs["agent/told.json"]) == {
        "instruction": "Say hello.\n",
        "model": "mine/model",
        "kwargs": [3, {"a": [1, None, True]}],
        "env": {"KEY": "[REDACTED]", "MINE": "plain"},
        "seen": ["plain-[REDACTED]-own\n", "err\n", 3],
    }
    assert outcome.logs["agent/agent.txt"] == b"printed\n"
    assert outcome.result is not None
    assert outcome.result["agent_info"]["name"] == "mine"
    assert outcome.result["agent_info"]["version"] == "7.1"
    known = {name: value for name, value in outcome.result["agent_result"].items() if value is not None}
    assert known == {"n_input_tokens": 12, "cost_usd": 0.5, "metadata": {"turns": 2}}


def test_files_go_both_ways_and_links_of_the_environment_lead_nowhere(pod: Pod) -> None:
    host(pod, f"""
        {RUN}
            {SAY_HELLO}
            app = os.environ["APP_DIR"]
            await environment.upload_dir("data", app + "/data")
            await environment.upload_file("data/tool.sh", app + "/renamed")
            ran = await environment.exec(f"{{app}}/data/tool.sh; cat {{app}}/renamed | head -1; ln -s /etc/hostname {{app}}/data/link")
            await environment.download_dir(app + "/data", self.logs_dir / "back")
            await environment.download_file(app + "/renamed", self.logs_dir / "one")
            there = [await environment.is_dir(app + "/data"), await environment.is_file(app), await environment.is_file(app + "/renamed")]
            try:
                await environment.download_file(app + "/none", self.logs_dir / "none")
            except FileNotFoundError:
                there.append("missing")
            try:
                await environment.exec("sleep 30", timeout_sec=0.2)
            except RuntimeError as error:
                there.append(str(error))
            print(json.dumps([ran.stdout, there, sorted(os.listdir(self.logs_dir / "back"))]))
    """, **{"data/tool.sh": "#!/bin/sh\necho tool\n"})  # fmt: skip
    (pod.root / "source-of-agent/data/tool.sh").chmod(0o755)
    pod.agent_env = {"APP_DIR": str(pod.app)}
    outcome = run(pod)
    assert (outcome.verdict.rewards, outcome.error, outcome.message) == ({"reward": 1.0}, None, "")
    assert json.loads(outcome.logs["agent/agent.txt"]) == [
        "tool\n#!/bin/sh\n",
        [True, False, True, "missing", "Command timed out after 0.2 seconds"],
        ["tool.sh"],
    ]
    assert outcome.logs["agent/one"] == b"#!/bin/sh\necho tool\n"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("raise type('ApiRateLimitError', (Exception,), {})('slow down')", ("ApiRateLimitError", "the agent failed: slow down")),
        (
            "os._exit(5)",
            ("NonZeroAgentExitCodeError", "the agent's process ended with exit code 5 while it ran; see its output in agent.txt"),
        ),
        (
            "os.kill(os.getpid(), 9)",
            ("NonZeroAgentExitCodeError", "the agent's process was ended by signal 9 while it ran; see its output in agent.txt"),
        ),
        (
            """os.write(int(__import__("sys").argv[1]), b'{"error": "no object"}\\n'); time.sleep(300)""",
            ("RuntimeError", "the agent failed: "),
        ),
    ],
)
def test_a_class_that_fails_is_graded_under_the_name_of_its_error(pod: Pod, body: str, expected: tuple[str, str]) -> None:
    host(pod, f"""
        {RUN}
            {SAY_HELLO}
            context.n_output_tokens = 4
            {body}
    """)  # fmt: skip
    outcome = run(pod)
    assert (outcome.error, outcome.message) == expected
    assert outcome.verdict.rewards == {"reward": 1.0}


@pytest.mark.conforms("H-65")
@pytest.mark.parametrize("hang", ["await asyncio.sleep(300)", "time.sleep(300)"])
def test_a_class_that_works_too_long_is_ended_and_what_it_reported_counts(pod: Pod, hang: str) -> None:
    host(pod, f"""
        {RUN}
            {SAY_HELLO}
            context.n_output_tokens = 4
            {hang}
    """)  # fmt: skip
    pod.trial["timeouts"]["agent"] = 2.0
    outcome = run(pod)
    assert (outcome.verdict.rewards, outcome.error) == ({"reward": 1.0}, "AgentTimeoutError")
    assert outcome.result is not None
    # Who blocks the loop cannot say anything any more.
    assert outcome.result["agent_result"]["n_output_tokens"] == (4 if hang.startswith("await") else None)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("await asyncio.sleep(300)", ("AgentSetupTimeoutError", "agent", "Agent setup timed out after 1.0 seconds")),
        ("raise RuntimeError('no pip')", ("RuntimeError", "agent", "Agent setup failed: no pip")),
    ],
)
def test_a_failed_setup_is_never_graded(pod: Pod, body: str, expected: tuple[str, str, str]) -> None:
    host(pod, f"""
        async def setup(self, environment):
            {body}

        {RUN}
            pass
    """)  # fmt: skip
    pod.trial["timeouts"]["agent_setup"] = 1.0
    outcome = run(pod)
    error = outcome.verdict.error
    assert error is not None
    assert (error["type"], error["cause"], error["message"]) == expected
    assert outcome.verdict.rewards is None
    assert "agent_execution" not in outcome.verdict.seconds


PASS = f"{RUN}    pass\n"


@pytest.mark.conforms("H-95", "N-1")
@pytest.mark.parametrize(
    ("path", "agent", "words"),
    [
        ("mine:Other", {}, "module mine has no class Other"),
        ("none.such:Mine", {}, "there is no module none"),
        ("broken:Mine", {}, "its module needs not_there"),
        ("harbor.agents.installed.codex:Codex", {}, "pip install 'harbor>=0.20,<0.27'"),
        ("harbor.agents.installed.codex:Codex", {}, "runner-image/Dockerfile.harbor"),
        ("mine:Mine", {"skills": ["skills"]}, "does not support skills"),
        ("mine:Mine", {"mcp_servers": [{"name": "s", "url": "http://x"}]}, "does not support mcp_servers"),
        ("mine:Mine", {"skills": ["none"]}, "holds no SKILL.md"),
    ],
)
def test_a_class_that_cannot_be_used_is_refused_before_the_environment_is_touched(
    pod: Pod, path: str, agent: dict[str, Any], words: str
) -> None:
    host(pod, PASS, **{"broken.py": "import not_there\nclass Mine: pass\n", "skills/greet/SKILL.md": "Greet.\n"})
    pod.trial["agent"] |= {"name": path, **agent}  # type: ignore[typeddict-item]
    outcome = run(pod)
    assert outcome.verdict.error is not None
    assert (outcome.error, outcome.reason, outcome.verdict.error["cause"]) == ("ValueError", "AgentNotLoaded", "user")
    assert words in outcome.message
    assert (outcome.verdict.rewards, set(outcome.verdict.seconds) & {"environment_setup", "agent_execution"}) == (None, set())


@pytest.mark.conforms("H-96")
def test_skills_and_mcp_servers_reach_a_class_that_names_them(pod: Pod) -> None:
    host(pod, f"""
        capabilities = AgentCapabilities(skills=True, mcp_servers=True, mcp_http_headers=True)

        {RUN}
            {SAY_HELLO}
            found = await environment.exec(f"cd {{self.skills_dir}} && find . -type f -perm -444 | sort && cat greet/SKILL.md")
            print(json.dumps([found.stdout, [server.model_dump() for server in self.mcp_servers]]))
    """, **{"skills/greet/SKILL.md": "Greet.\n", "skills/add/SKILL.md": "Add.\n", "more/greet/SKILL.md": "Greet well.\n"})  # fmt: skip
    (pod.root / "source-of-agent/more/greet/SKILL.md").chmod(0o600)
    skills_dir = f"{pod.root}/env/skills"
    Path(skills_dir).mkdir()
    Path(skills_dir, "old").write_text("of the image\n")
    pod.agent_env = {"PLAIN": "word"}
    server: Any = {
        "name": "docs",
        "transport": "sse",
        "url": "http://docs",
        "command": None,
        "args": [],
        "headers": {"X": "a ${PLAIN} ${NO:-b}"},
    }
    pod.trial["agent"] |= {
        "skills": ["skills", "more/greet"],
        "skills_dir": skills_dir,
        "mcp_servers": [server],
        "env_names": ["PLAIN"],
    }
    outcome = run(pod)
    assert (outcome.verdict.rewards, outcome.error, outcome.message) == ({"reward": 1.0}, None, "")
    assert json.loads(outcome.logs["agent/agent.txt"]) == [
        "./add/SKILL.md\n./greet/SKILL.md\nGreet well.\n",
        [{**server, "headers": {"X": "a word b"}}],
    ]


def test_one_object_works_on_all_steps_and_each_step_has_its_own_report(pod: Pod) -> None:
    host(pod, f"""
        count = 0

        {RUN}
            self.count += 1
            context.n_input_tokens = self.count
            print(instruction.strip(), self.count)
            {SAY_HELLO}
    """)  # fmt: skip
    test = pod.files.pop("tests/test.sh")
    del pod.files["instruction.md"]
    names = ("one", "two")
    for name in names:
        pod.files |= {f"steps/{name}/instruction.md": name, f"steps/{name}/tests/test.sh": test}
    pod.files["task.toml"] += "".join(f'[[steps]]\nname = "{name}"\n' for name in names)
    pod.trial["steps"] = [
        {
            "name": name,
            "agent_user": None,
            "verifier_user": None,
            "verifier_env": {},
            "agent_timeout": 20.0,
            "verifier_timeout": 20.0,
            "healthcheck": None,
            "collect": [],
            "artifacts": [],
            "min_reward": None,
        }
        for name in names
    ]
    outcome = run(pod)
    assert (outcome.verdict.rewards, outcome.error, outcome.message) == ({"reward": 1.0}, None, "")
    assert outcome.result is not None
    assert [step["agent_result"]["n_input_tokens"] for step in outcome.result["step_results"]] == [1, 2]
    assert [outcome.logs[f"steps/{name}/agent/agent.txt"] for name in names] == [b"one 1\n", b"two 2\n"]


def test_the_source_is_readable_whatever_its_modes_are(pod: Pod) -> None:
    host(pod, f"{RUN}    import helper\n    {SAY_HELLO}\n", **{"helper/__init__.py": ""})
    (pod.root / "source-of-agent/helper").chmod(0o700)
    (pod.root / "source-of-agent/mine.py").chmod(0o600)
    outcome = run(pod)
    assert (outcome.verdict.rewards, outcome.error, outcome.message) == ({"reward": 1.0}, None, "")
    staged = Path(pod.paths("agent").task, contract.SOURCE_DIR)
    assert {path.stat().st_mode & 0o044 for path in (staged / "mine.py", staged / "helper")} == {0o044}
    shutil.rmtree(staged)
