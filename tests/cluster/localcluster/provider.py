"""What a provider of the local cluster can do, and which one is taken."""

from __future__ import annotations

import shutil
from collections.abc import Set
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from localcluster import shell
from localcluster.settings import ClusterError, Settings


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
    kubectl: str
    helm: str


class Provider(Protocol):
    def up(self) -> None: ...
    def down(self) -> None: ...
    def start(self, component: str) -> None: ...
    def kill(self, component: str, number: int) -> None: ...
    def restart(self, component: str) -> None: ...
    def status(self) -> list[ComponentStatus]: ...
    def endpoints(self) -> Endpoints: ...
    def import_images(self, archive: Path) -> None: ...
    def blobs_on_node(self) -> Set[str]: ...
    def images_on_node(self) -> dict[str, str]: ...


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


def make(settings: Settings, name: str) -> Provider:
    """The provider of this name."""
    from localcluster.native import NativeProvider

    if name == "native":
        return NativeProvider(settings)
    raise ClusterError(f"no provider {name!r}; use native or kind")
