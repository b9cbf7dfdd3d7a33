"""Give a task an image that it does not name itself (``--default-image``): one line more in the copy of its task.toml."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Final

from seatrial.errors import InvalidSpec
from seatrial.taskpkg.native import CONFIG_FILE
from seatrial.taskpkg.parse import parse_task_toml
from seatrial.taskpkg.verification import has_image_definition

_HEADER: Final = re.compile(r"^[ \t]*\[[ \t]*environment[ \t]*\][ \t]*(#.*)?$", re.MULTILINE)


def needs_image(task: Path) -> bool:
    """Whether the task at ``task`` neither names nor builds an image."""
    config, _ = parse_task_toml((task / CONFIG_FILE).read_bytes())
    return config is not None and not has_image_definition(task, config)


def set_docker_image(task: Path, image: str) -> None:
    """Write ``[environment].docker_image`` into the task's own task.toml. The rest keeps its bytes.

    Raises:
        InvalidSpec: the file would not be valid afterwards, e.g. because ``environment`` is an inline table.
    """
    (task / "environment").mkdir(exist_ok=True)
    file = task / CONFIG_FILE
    mode = file.stat().st_mode
    text = with_docker_image(file.read_bytes().decode(), image)
    config, _ = parse_task_toml(text)
    if config is None or config.environment.docker_image != image:
        raise InvalidSpec(CONFIG_FILE, f"--default-image cannot add docker_image: write it into [environment] of {task.name} by hand")
    file.write_bytes(text.encode())
    file.chmod(mode & 0o7777)


def with_docker_image(text: str, image: str) -> str:
    """``text`` with the line, below ``[environment]`` where that stands alone, else in a new section at the end."""
    line = f"docker_image = {json.dumps(image)}\n"
    if (found := _HEADER.search(text)) is not None:
        end = text.find("\n", found.start()) + 1 or len(text)
        head = text[:end] if text[:end].endswith("\n") else f"{text[:end]}\n"
        return f"{head}{line}{text[end:]}"
    return f"{text}{'' if not text or text.endswith(chr(10)) else chr(10)}\n[environment]\n{line}"
