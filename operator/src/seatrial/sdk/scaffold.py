"""New tasks and datasets, ready to be completed. Everything that ``seatrial init`` writes passes ``seatrial check``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final, NamedTuple

from seatrial.errors import InvalidSpec
from seatrial.taskpkg.dataset import DATASET_FILE, METRIC_FILE
from seatrial.taskpkg.digest import content_digest
from seatrial.taskpkg.model import is_task_name

SCRIPT_MODE: Final = 0o755


class File(NamedTuple):
    """One file of a scaffold."""

    path: str
    text: str
    is_script: bool = False


def task_files(name: str, *, description: str = "", author: str | None = None, steps: int = 0, solution: bool = True) -> tuple[File, ...]:
    """The files of a new task ``org/name``.

    Raises:
        InvalidSpec: the name is not of that form, or ``steps`` is negative.
    """
    _check_name(name)
    if steps < 0:
        raise InvalidSpec("--steps", "must not be negative")
    short = name.rpartition("/")[2]
    files = [
        File("task.toml", _task_toml(name, description=description, author=author, steps=steps)),
        File("environment/Dockerfile", _DOCKERFILE),
    ]
    folders = [f"steps/step-{number}/" for number in range(1, steps + 1)] or [""]
    for folder in folders:
        what = f"{short}, {folder.split('/')[1]}" if folder else short
        files.append(File(f"{folder}instruction.md", _INSTRUCTION.format(what=what)))
        files.append(File(f"{folder}tests/test.sh", _TEST, is_script=True))
        if solution:
            files.append(File(f"{folder}solution/solve.sh", _SOLVE, is_script=True))
    return tuple(files)


def dataset_files(name: str, *, description: str = "", author: str | None = None, metric: bool = False) -> tuple[File, ...]:
    """The files of a new dataset ``org/name``; ``metric`` adds a ``metric.py``.

    Raises:
        InvalidSpec: the name is not of that form.
    """
    _check_name(name)
    text = f'schema_version = "1.0"\n\n[dataset]\nname = {json.dumps(name)}\nversion = "1.0.0"\ndescription = {json.dumps(description)}\n'
    if author:
        text += f"authors = [{{ name = {json.dumps(author)} }}]\n"
    files = [File(DATASET_FILE, text + _DATASET_END)]
    if metric:
        # Without a digest, so that the script can be changed without a stale one.
        files[0] = files[0]._replace(text=f'{files[0].text}\n[[files]]\npath = "{METRIC_FILE}"\ndigest = ""\n')
        files.append(File(METRIC_FILE, _METRIC))
    return tuple(files)


def write_files(target: Path, files: tuple[File, ...]) -> None:
    """Write a scaffold below ``target``, a new or empty folder.

    Raises:
        InvalidSpec: the folder has files; nothing is overwritten.
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InvalidSpec(str(target), "exists and is not empty: choose another name or another --output-dir")
    for file in files:
        path = target / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(file.text)
        if file.is_script:
            path.chmod(SCRIPT_MODE)


def add_to_dataset(task: Path, name: str) -> bool:
    """List the task in the ``dataset.toml`` beside its folder; False where there is none."""
    manifest = task.parent / DATASET_FILE
    if not manifest.is_file():
        return False
    text = manifest.read_text()
    end = "" if text.endswith("\n") else "\n"
    manifest.write_text(f'{text}{end}\n[[tasks]]\nname = {json.dumps(name)}\ndigest = "sha256:{content_digest(task)}"\n')
    return True


def _check_name(name: str) -> None:
    if not is_task_name(name):
        raise InvalidSpec("NAME", f"{name!r} is not of the form ORG/NAME, of letters, digits, '.', '_' and '-'")


def _task_toml(name: str, *, description: str, author: str | None, steps: int) -> str:
    parts = ['schema_version = "1.4"\n', f"[task]\nname = {json.dumps(name)}\n"]
    if description:
        parts[-1] += f"description = {json.dumps(description)}\n"
    if author:
        parts[-1] += f"authors = [{{ name = {json.dumps(author)} }}]\n"
    parts.append(
        "[agent]\ntimeout_sec = 600.0\n",
    )
    parts.append("[verifier]\ntimeout_sec = 600.0\n")
    parts.append(
        "[environment]\n"
        "# The cluster runs this image; build it from environment/Dockerfile and push it.\n"
        '# docker_image = "registry.example.org/my-task:1"\n'
        "cpus = 1\nmemory_mb = 2048\nstorage_mb = 10240\n"
    )
    parts += [f'[[steps]]\nname = "step-{number}"\n' for number in range(1, steps + 1)]
    return "\n".join(parts)


_DOCKERFILE: Final = """\
FROM debian:12-slim
WORKDIR /app
# Install what the task needs. The agent works here; tests/ and solution/ are not part of the image.
"""

_INSTRUCTION: Final = """\
# {what}

Say here what the agent shall do, and where the result must be.

For example: write the text `done` into the file `/app/result.txt`.
"""

_TEST: Final = """\
#!/bin/bash
# Runs in the environment after the agent has ended. Write one number to reward.txt, or several to reward.json:
#   {"reward": 0.5, "style": 1}
if [ "$(cat /app/result.txt 2>/dev/null)" = "done" ]; then
    echo 1 > /logs/verifier/reward.txt
else
    echo 0 > /logs/verifier/reward.txt
fi
"""

_SOLVE: Final = """\
#!/bin/bash
# What the agent "oracle" runs: proof that the task can be solved.
mkdir -p /app
echo done > /app/result.txt
"""

_DATASET_END: Final = """\

# Tasks are folders beside this file; `seatrial check .` compares them with the digests here:
#   [[tasks]]
#   name = "org/name"
#   digest = "sha256:..."
"""

_METRIC: Final = '''\
# /// script
# requires-python = ">=3.11"
# ///
"""How the rewards of all trials become the scores of the job.

Called as: metric.py -i rewards.jsonl -o scores.json
Each line is the rewards of one trial, such as {"reward": 1.0}, or null where there is none. Harbor counts null as 0; so does this.
"""

import argparse
import json
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("-i", "--input-path", type=Path, required=True)
    parser.add_argument("-o", "--output-path", type=Path, required=True)
    arguments = parser.parse_args()
    rows = [json.loads(line) for line in arguments.input_path.read_text().splitlines() if line]
    values = [0.0 if row is None else float(row.get("reward", 0.0)) for row in rows]
    mean = sum(values) / len(values) if values else 0.0
    arguments.output_path.write_text(json.dumps({"mean": mean}))


if __name__ == "__main__":
    main()
'''
