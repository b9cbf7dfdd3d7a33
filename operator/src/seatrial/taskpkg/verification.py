"""Where a separate verifier gets its image and its tests from. Source: harbor.md 6.2."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

from seatrial.taskpkg.model import EnvironmentSection, StepSection, TaskConfig

DOCKERFILE: Final = "Dockerfile"
COMPOSE_FILE: Final = "docker-compose.yaml"


class VerifierDefinition(NamedTuple):
    environment: EnvironmentSection
    """Settings, with the image that really runs (None: build ``folder``)."""
    folder: Path
    """Build context."""
    is_bundled: bool
    """The image already holds ``/tests``: nothing is uploaded and the task needs no test script."""


def verifier_definition(config: TaskConfig, task_dir: Path, step: StepSection | None = None) -> VerifierDefinition | None:
    """The definition for one step, or for the task; None in shared mode."""
    settings = config.verifier_environment(step)
    if settings is None:
        return None
    places = [(config.verifier.environment, task_dir / "tests")]
    if step is not None:
        places.insert(0, (step.verifier.environment, task_dir / "steps" / step.name / "tests"))
    for environment, folder in places:
        if environment is not None and environment.docker_image:
            return VerifierDefinition(settings.model_copy(update={"docker_image": environment.docker_image}), folder, True)
        if (folder / DOCKERFILE).is_file() or (folder / COMPOSE_FILE).is_file():
            return VerifierDefinition(settings.model_copy(update={"docker_image": None}), folder, True)
    os = settings.os if "os" in settings.model_fields_set else config.environment.os
    update = {"docker_image": config.environment.docker_image, "os": os}
    return VerifierDefinition(settings.model_copy(update=update), task_dir / "environment", False)


def has_image_definition(task_dir: Path, config: TaskConfig) -> bool:
    """True if the environment can start at all: an image, a Dockerfile or a compose file of the exact name."""
    environment = task_dir / "environment"
    return bool(config.environment.docker_image) or any((environment / name).exists() for name in (DOCKERFILE, COMPOSE_FILE))
