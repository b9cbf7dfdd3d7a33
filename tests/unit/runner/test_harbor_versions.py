"""Agent classes over Harbor's own base classes, with every minor version of Harbor that the extra ``harbor`` allows."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.harbor_python import harbor_python

from seatrial_runner import hosted

from .conftest import REPOSITORY
from .test_agent_class import run

if TYPE_CHECKING:
    from .conftest import Pod

MINORS = range(20, 27)
AGENT = """
import json
from harbor.agents.base import BaseAgent
from harbor.agents.installed.base import BaseInstalledAgent, with_prompt_template
from harbor.environments.base import ExecResult


class Plain(BaseAgent):
    @staticmethod
    def name():
        return "plain"

    def version(self):
        return "1"

    async def setup(self, environment):
        assert (await environment.exec("true")).return_code == 0

    async def run(self, instruction, environment, context):
        await environment.exec("echo Hello > $APP/hello.txt")
        context.n_input_tokens = 3


class Installed(BaseInstalledAgent):
    @staticmethod
    def name():
        return "installed"

    async def install(self, environment):
        await self.exec_as_agent(environment, command="echo installed > $APP/installed")

    def get_version_command(self):
        return "echo 4.2"

    @with_prompt_template
    async def run(self, instruction, environment, context):
        assert instruction.startswith("Be brief.") and "hello" in instruction, instruction
        await self.exec_as_agent(environment, command="cat $APP/installed && echo Hello > $APP/hello.txt")

    def populate_context_post_run(self, context):
        context.n_output_tokens = 5
"""


@pytest.mark.conforms("N-2")
def test_the_versions_tested_here_are_those_of_the_extra() -> None:
    extras = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert re.match(r"harbor>=0\.(\d+),<0\.(\d+);", extras["harbor"][0]).groups() == ("20", "27")  # type: ignore[union-attr]
    assert (MINORS.start, MINORS.stop) == (20, 27)


@pytest.mark.conforms("N-2")
@pytest.mark.skipif(not os.environ.get("SEATRIAL_HARBOR_PYTHON"), reason="no interpreter with Harbor (make test-unit looks for one)")
@pytest.mark.parametrize(("minor", "name"), [*((minor, "Plain") for minor in MINORS), (MINORS[0], "Installed"), (MINORS[-1], "Installed")])
def test_a_class_over_harbors_own_base_runs(pod: Pod, monkeypatch: pytest.MonkeyPatch, minor: int, name: str) -> None:
    python = harbor_python(f"0.{minor}.0")
    assert python is not None
    monkeypatch.setattr(hosted, "PYTHON", str(python))
    source = Path(pod.root, "source-of-agent")
    source.mkdir()
    (source / "mine.py").write_text(AGENT)
    (source / "prompt.j2").write_text("Be brief.\n{{ instruction }}")
    pod.trial["agent"] |= {"kind": "importPath", "name": f"mine:{name}", "model": "anthropic/claude-x"}
    if name == "Installed":
        pod.trial["agent"]["kwargs"] = {"prompt_template_path": "prompt.j2"}
    pod.trial["timeouts"] |= {"agent_setup": 60.0, "agent": 60.0}
    outcome = run(pod)
    assert (outcome.verdict.rewards, outcome.error, outcome.message) == ({"reward": 1.0}, None, "")
    assert outcome.result is not None
    key, tokens = ("n_input_tokens", 3) if name == "Plain" else ("n_output_tokens", 5)
    assert (outcome.result["agent_info"]["name"], outcome.result["agent_result"][key]) == (name.lower(), tokens)
