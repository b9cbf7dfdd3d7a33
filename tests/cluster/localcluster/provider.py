"""What a provider of the local cluster can do, and which one is taken."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from localcluster import shell
from localcluster.settings import Settings


@dataclass(frozen=True)
class ComponentStatus:
    name: str
    pid: int | None
    """Seen from the machine; None for what runs in a Pod or does not run."""
    healthy: bool
    detail: str


@dataclass(frozen=True)
class Endpoints:
    s3_internal: str
    """For Pods."""
    s3_external: str
    """For the machine."""
    tools: Path
    """Folder with kubectl and helm."""


@dataclass(frozen=True)
class Registry:
    address: str
    """Host and port, the same for the machine, the node and Pods; plain HTTP."""
    base: str
    """The base image in it."""
    executor: str
    """Image on the node that builds images in Pods."""


class Provider(Protocol):
    """One way to have a cluster."""

    def up(self) -> None:
        """Start what is missing; what runs stays as it is."""

    def down(self) -> None:
        """End the cluster and remove all that it left on the machine; the build cache stays."""

    def status(self) -> list[ComponentStatus]:
        """The parts and their health."""
        ...

    def endpoints(self) -> Endpoints:
        """Addresses and tools of the running cluster."""
        ...

    def give_images(self, names: Sequence[str]) -> list[tuple[str, str]]:
        """Build what changed, give the node what it lacks; name and digest of each image, of all images without names."""
        ...

    def start_registry(self) -> Registry:
        """A registry in the cluster with the base image in it, and what builds images in Pods."""
        ...

    def load_archive(self, archive: Path) -> None:
        """Give the node an archive of images; each image in it carries its name."""

    def start(self, component: str) -> None:
        """Start a component if it does not run, and wait until it is healthy."""

    def kill(self, component: str, number: int) -> None:
        """Send a signal to a component."""

    def restart(self, component: str) -> None:
        """End a component, start it again and wait until it is healthy."""


def choose(settings: Settings) -> str:
    """kind where a Docker daemon answers and kind is installed, else native; SEATRIAL_PROVIDER decides otherwise."""
    if settings.provider != "auto":
        return settings.provider
    if shutil.which("kind") and shutil.which("docker") and shell.succeeds(["docker", "info"]):
        return "kind"
    return "native"


def recorded_choice(settings: Settings) -> str:
    """The provider that the running cluster was started with; that of ``choose`` without one."""
    path = settings.state_dir / "provider"
    return path.read_text().strip() if path.exists() else choose(settings)
