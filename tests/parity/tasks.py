"""The tasks of the comparison: each is one rule of Harbor's life cycle, small enough that two systems run all of them in a minute."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

IMAGE: Final = "seatrial.local/smoke/hello-pass:dev"
HEAD: Final = """schema_version = "1.4"
{top}
[task]
name = "parity/{name}"
[agent]
timeout_sec = {agent_seconds}
[verifier]
timeout_sec = {verifier_seconds}
[environment]
docker_image = "{image}"
cpus = 1
memory_mb = 128
storage_mb = 256
build_timeout_sec = 120.0
{environment}
{sections}
"""


class ParityTask(NamedTuple):
    """One task; scripts are shell bodies, ``None`` leaves the file out."""

    about: str
    solve: str | None = "true"
    test: str | None = "echo 1 > /logs/verifier/reward.txt"
    top: str = ""
    environment: str = ""
    sections: str = ""
    agent_seconds: float = 60.0
    verifier_seconds: float = 60.0
    files: Mapping[str, str] = {}


def _steps(*names: str) -> str:
    return "".join(f'[[steps]]\nname = "{name}"\n' for name in names)


def _step_files(**scripts: str) -> dict[str, str]:
    files = {}
    for name, script in scripts.items():
        files[f"steps/{name}/instruction.md"] = f"Step {name}.\n"
        files[f"steps/{name}/tests/test.sh"] = f"#!/bin/bash\n{script}\n"
    return files


REWARD: Final = "/logs/verifier/reward.txt"

TASKS: Final[dict[str, ParityTask]] = {
    "passes": ParityTask("the solution is right", solve="echo Hello > /tmp/made", test=f"grep -c Hello /tmp/made > {REWARD}"),
    "fails": ParityTask("the solution is wrong", test=f"[ -e /tmp/made ] && echo 1 > {REWARD} || echo 0 > {REWARD}"),
    "partial": ParityTask("a fraction", test=f"echo 0.25 > {REWARD}"),
    "many-keys": ParityTask("several rewards", test='echo \'{"reward": 0.5, "style": 2}\' > /logs/verifier/reward.json'),
    "json-first": ParityTask("both files", test=f"echo 1 > {REWARD}; echo '{{\"reward\": 0.5}}' > /logs/verifier/reward.json"),
    "bad-json": ParityTask("a bad file beside a good one", test=f"echo 1 > {REWARD}; echo '{{' > /logs/verifier/reward.json"),
    "negative": ParityTask("a reward from an EXIT trap", test=f"trap 'echo -1 > {REWARD}' EXIT\nexit 1"),
    "exits-7": ParityTask("the tests' exit code", test=f"echo 1 > {REWARD}; exit 7"),
    "no-reward": ParityTask("no reward", test="true"),
    "empty-reward": ParityTask("an empty file", test=f": > {REWARD}"),
    "bad-reward": ParityTask("no number", test=f"echo good > {REWARD}"),
    "planted": ParityTask("a reward written by the agent", solve=f"echo 1 > {REWARD}", test="true"),
    "solve-fails": ParityTask("the solution's exit code", solve="touch /tmp/made; exit 3", test=f"[ -e /tmp/made ] && echo 1 > {REWARD}"),
    "no-solution": ParityTask("no solve.sh", solve=None, test=f"echo 0 > {REWARD}", files={"solution/README.md": "nothing\n"}),
    "agent-late": ParityTask("the agent's limit", solve="touch /tmp/made; sleep 60", agent_seconds=3.0),
    "tests-late": ParityTask("the tests' limit", test="sleep 60", verifier_seconds=3.0),
    "unhealthy": ParityTask(
        "a healthcheck that fails", sections="[environment.healthcheck]\ncommand = 'exit 1'\ninterval_sec = 0.1\nretries = 2\n"
    ),
    "workdir": ParityTask(
        "a working directory",
        environment='workdir = "/usr/local"',
        solve="pwd > /tmp/where",
        test=f'[ "$(cat /tmp/where)-$PWD" = /usr/local-/usr/local ] && echo 1 > {REWARD}',
    ),
    "variables": ParityTask(
        "variables of environment, solution and tests",
        environment='env = { A = "a", B = "b" }',
        sections='[solution.env]\nB = "solution"\n[verifier.env]\nA = "tests"\n',
        solve='echo "$A-$B" > /tmp/seen',
        test=f'[ "$(cat /tmp/seen)-$A-$B" = a-solution-tests-b ] && echo 1 > {REWARD}',
    ),
    "server": ParityTask(
        "a server that the agent leaves running",
        solve="mkdir -p /tmp/www && cd /tmp/www && echo served > page\nnohup python3 -m http.server 8123 >/dev/null 2>&1 &\nsleep 1",
        test=f"python3 -c \"import urllib.request as u; print(u.urlopen('http://127.0.0.1:8123/page').read())\" | grep -q served "
        f"&& echo 1 > {REWARD}",
    ),
    "steps-mean": ParityTask(
        "the mean of steps",
        sections=_steps("one", "two"),
        files=_step_files(one=f"echo 1 > {REWARD}", two=f"echo 0.5 > {REWARD}"),
        test=None,
    ),
    "steps-stop": ParityTask(
        "a step below its least reward",
        top='multi_step_reward_strategy = "final"',
        sections='[[steps]]\nname = "one"\nmin_reward = 0.5\n[[steps]]\nname = "two"\n',
        files=_step_files(one=f"echo 0.25 > {REWARD}", two=f"echo 1 > {REWARD}"),
        test=None,
    ),
}


def write_suite(folder: Path) -> Path:
    """All tasks as folders below ``folder``."""
    for name, task in TASKS.items():
        fields = {key: value for key, value in task._asdict().items() if isinstance(value, str | float)}
        files = {
            "task.toml": HEAD.format(**fields, name=name, image=IMAGE),
            "instruction.md": f"Task {name}.\n",
            # Harbor wants one even beside docker_image; nothing builds it.
            "environment/Dockerfile": f"FROM {IMAGE}\n",
            **task.files,
        }
        if task.sections.startswith("[[steps]]"):
            del files["instruction.md"]
        for path, script in (("solution/solve.sh", task.solve), ("tests/test.sh", task.test)):
            if script is not None:
                files[path] = f"#!/bin/bash\n{script}\n"
        for path, text in files.items():
            file = folder / name / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
            file.chmod(0o755 if path.endswith(".sh") else 0o644)
    return folder
