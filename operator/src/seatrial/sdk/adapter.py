"""Turn another benchmark into Harbor tasks: the class contract, and how it is run.

Example, in ``adapter.py`` with a folder ``template`` beside it:
    class MyAdapter(TaskAdapter):
        def load_instances(self):
            yield from json.loads((self.source / "problems.json").read_text())

        def generate_task(self, instance, output_dir):
            (output_dir / instance["id"] / "instruction.md").write_text(instance["instruction"])

    if __name__ == "__main__":
        raise SystemExit(MyAdapter.main())
"""

from __future__ import annotations

import argparse
import importlib.util
import inspect
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from seatrial.errors import InvalidSpec
from seatrial.sdk.scaffold import SCRIPT_MODE, File
from seatrial.taskpkg.paths import is_safe_path

TEMPLATE: Final = "template"
_METHODS: Final = ("load_instances", "generate_task")


class TaskAdapter:
    """Base class of adapters; any class with the same methods will do."""

    template: Path | None = None
    """Copied into each task first; None: the folder ``template`` beside the class's file, where there is one."""

    def __init__(self, source: Path) -> None:
        self.source = Path(source)

    def load_instances(self) -> Iterable[Mapping[str, Any]]:
        """One mapping a task, with at least ``id``."""
        raise NotImplementedError

    def generate_task(self, instance: Mapping[str, Any], output_dir: Path) -> None:
        """Write the task's files below ``output_dir / instance["id"]``, which exists and holds the template."""
        raise NotImplementedError

    @classmethod
    def main(cls, arguments: Sequence[str] | None = None) -> int:
        """A program with the arguments ``--source`` and ``--output`` that prints each id."""
        parser = argparse.ArgumentParser(description=inspect.getdoc(cls))
        parser.add_argument("--source", type=Path, required=True, help="what load_instances reads")
        parser.add_argument("--output", type=Path, required=True, help="folder for the tasks")
        given = parser.parse_args(arguments)
        for identifier in run_adapter(cls, source=given.source, output=given.output):
            sys.stdout.write(f"{identifier}\n")
        return 0


def run_adapter(adapter: Callable[[Path], Any], *, source: Path, output: Path) -> Iterator[str]:
    """Generate all tasks; yields each id when its folder is complete. Test scripts are made executable.

    Raises:
        InvalidSpec: an id is missing, comes twice, cannot name a folder, or its folder exists.
    """
    made = adapter(source)
    template = _template_of(made)
    output.mkdir(parents=True, exist_ok=True)
    for instance in made.load_instances():
        identifier = instance.get("id")
        if not isinstance(identifier, str) or "/" in identifier or not is_safe_path(identifier):
            raise InvalidSpec("id", f"{identifier!r} cannot name a task's folder: load_instances must give each mapping a plain id")
        task = output / identifier
        if task.exists():
            raise InvalidSpec(identifier, f"{task} exists already: ids must be unique, and --output new")
        if template is not None:
            shutil.copytree(template, task, symlinks=True)
        else:
            task.mkdir()
        made.generate_task(instance, output)
        for script in task.rglob("*.sh"):
            if script.is_file() and not script.is_symlink():
                script.chmod(SCRIPT_MODE)
        yield identifier


def load_adapter(place: str) -> Callable[[Path], Any]:
    """The adapter class of ``file.py`` or ``file.py:Class``.

    Raises:
        InvalidSpec: no such file, no adapter in it, or several.
    """
    name, _, wanted = place.partition(":")
    file = Path(name)
    if not file.is_file():
        raise InvalidSpec("ADAPTER", f"{name} is not a file")
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise InvalidSpec("ADAPTER", f"{name} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    # Classes find their file through their module.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    found = {
        key: value
        for key, value in vars(module).items()
        if inspect.isclass(value) and value is not TaskAdapter and all(callable(getattr(value, method, None)) for method in _METHODS)
    }
    if wanted:
        found = {key: value for key, value in found.items() if key == wanted}
    if len(found) != 1:
        raise InvalidSpec("ADAPTER", f"{name} has {len(found)} classes with load_instances and generate_task: name one as FILE:CLASS")
    return next(iter(found.values()))


def adapter_files(name: str) -> tuple[File, ...]:
    """The files of a new adapter."""
    return (
        File("adapter.py", _ADAPTER.format(name=name)),
        File("template/environment/Dockerfile", "FROM debian:12-slim\nWORKDIR /app\n"),
        File(
            "template/tests/test.sh",
            "#!/bin/bash\n# Write the reward: a number between 0 and 1.\necho 0 > /logs/verifier/reward.txt\n",
            True,
        ),
    )


def _template_of(adapter: Any) -> Path | None:
    given = getattr(adapter, "template", None)
    if given is not None:
        return Path(given)
    beside = Path(inspect.getfile(type(adapter))).parent / TEMPLATE
    return beside if beside.is_dir() else None


_ADAPTER: Final = '''\
"""Makes Harbor tasks of {name}: python adapter.py --source DATA --output TASKS"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from seatrial.sdk.adapter import TaskAdapter


class Adapter(TaskAdapter):
    """Reads one JSON object a line: id, instruction, and whatever the tests need."""

    def load_instances(self) -> Iterator[Mapping[str, Any]]:
        for line in self.source.read_text().splitlines():
            yield json.loads(line)

    def generate_task(self, instance: Mapping[str, Any], output_dir: Path) -> None:
        task = output_dir / instance["id"]
        (task / "instruction.md").write_text(instance["instruction"])
        (task / "task.toml").write_text(
            f"""[task]
name = "{name}/{{instance["id"]}}"

[metadata]
difficulty = "{{instance.get("difficulty", "medium")}}"

[agent]
timeout_sec = 600.0

[verifier]
timeout_sec = 120.0
"""
        )


if __name__ == "__main__":
    raise SystemExit(Adapter.main())
'''
