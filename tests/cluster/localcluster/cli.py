"""The commands of ``python3 tests/cluster``."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from localcluster import gobuild, release, shell
from localcluster import provider as providers
from localcluster.kind import KindProvider
from localcluster.native import NativeProvider
from localcluster.provider import ComponentStatus, Provider
from localcluster.settings import S3_BUCKET, S3_REGION, S3_TEST_BUCKET, ClusterError, Settings, load

CHECKOUT = Path(__file__).resolve().parents[3]


def main(argv: Sequence[str]) -> int:
    """Run one command; returns the exit code."""
    arguments = _parser().parse_args(argv)
    try:
        settings = load(os.environ, checkout=CHECKOUT)
        return _run(arguments, settings)
    except ClusterError as error:
        shell.say(f"error: {error}")
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python3 tests/cluster", description="A local Kubernetes with an S3 server in it.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("up", help="start what is missing; safe to repeat")
    commands.add_parser("down", help="end the cluster and remove all that it left; builds stay cached")
    status = commands.add_parser("status", help="the parts and their health; exit code 1 if one is not healthy")
    status.add_argument("--json", action="store_true")
    commands.add_parser("kubeconfig", help="print the path of the kubeconfig")
    env = commands.add_parser("env", help="print, as JSON, where everything is")
    env.add_argument("--shell", action="store_true", help="print commands for eval that set KUBECONFIG and PATH instead")
    install = commands.add_parser("install", help="install the operator from charts/seatrial, with this cluster's S3 server and images")
    install.add_argument("--namespace", action="append", required=True, help="where evaluations run; made if missing; repeat for more")
    install.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a further value of the chart, as for helm")
    images = commands.add_parser("images", help="build what changed and give it to the node")
    images.add_argument("names", nargs="*", metavar="NAME", help="such as runner, operator, smoke/hello-pass; all without one")
    commands.add_parser("registry", help="start a registry in the cluster, with the base image in it; prints addresses as JSON")
    binary = commands.add_parser("binary", help="print the path of a Go binary, built if need be; needs no cluster")
    binary.add_argument("name", choices=sorted(gobuild.BINARIES))
    load_image = commands.add_parser("load", help="give an image archive to the node")
    load_image.add_argument("archive", type=Path)
    for name, what in (("start", "start a component that does not run"), ("restart", "end and start a component")):
        commands.add_parser(name, help=what).add_argument("component")
    kill = commands.add_parser("kill", help="send a signal to a component")
    kill.add_argument("component")
    kill.add_argument("--signal", default="KILL", help="name as in kill(1), default KILL")
    return parser


def _run(arguments: argparse.Namespace, settings: Settings) -> int:
    provider = make_provider(settings, providers.recorded_choice(settings))
    match arguments.command:
        case "up":
            with shell.locked(settings.lock_file), shell.step("cluster is up"):
                shell.write(settings.state_dir / "provider", providers.recorded_choice(settings))
                provider.up()
            print(settings.kubeconfig)
        case "down":
            with shell.locked(settings.lock_file), shell.step("cluster is down"):
                provider.down()
        case "status":
            return _status(provider, as_json=arguments.json)
        case "kubeconfig":
            print(settings.kubeconfig)
        case "env":
            print(shell_environment(settings, provider) if arguments.shell else json.dumps(environment(settings, provider), indent=2))
        case "install":
            with shell.locked(settings.lock_file), shell.step("operator installed"):
                release.install(settings, provider, namespaces=arguments.namespace, extra=arguments.set)
        case "images":
            with shell.locked(settings.lock_file):
                for name, digest in provider.give_images(arguments.names):
                    print(name, digest)
        case "registry":
            with shell.locked(settings.lock_file):
                print(json.dumps(asdict(provider.start_registry()), indent=2))
        case "binary":
            print(gobuild.build(settings, arguments.name))
        case "load":
            provider.load_archive(arguments.archive)
        case "start":
            provider.start(arguments.component)
        case "restart":
            provider.restart(arguments.component)
        case "kill":
            provider.kill(arguments.component, signal_number(arguments.signal))
        case other:
            raise AssertionError(other)
    return 0


def make_provider(settings: Settings, name: str) -> Provider:
    """The provider of this name."""
    return KindProvider(settings) if name == "kind" else NativeProvider(settings)


def signal_number(name: str) -> int:
    """9 for "KILL", "SIGKILL" and "9"."""
    if name.isdecimal():
        return int(name)
    try:
        return signal.Signals[f"SIG{name.upper().removeprefix('SIG')}"].value
    except KeyError as error:
        raise ClusterError(f"no signal {name!r}; use a name such as TERM, KILL or STOP") from error


def environment(settings: Settings, provider: Provider) -> dict[str, object]:
    """What scripts and tests need to know."""
    endpoints = provider.endpoints()
    return {
        "provider": providers.recorded_choice(settings),
        "stateDir": str(settings.state_dir),
        "cacheDir": str(settings.cache_dir),
        "kubeconfig": str(settings.kubeconfig),
        "kubectl": str(endpoints.tools / "kubectl"),
        "helm": str(endpoints.tools / "helm"),
        "auditLog": str(settings.audit_log),
        "s3": {
            "internalEndpoint": endpoints.s3_internal,
            "externalEndpoint": endpoints.s3_external,
            "region": S3_REGION,
            "bucket": S3_BUCKET,
            "testBucket": S3_TEST_BUCKET,
            "credentialsFile": str(settings.s3_file),
        },
    }


def shell_environment(settings: Settings, provider: Provider) -> str:
    """Lines for ``eval``."""
    path = f"{shlex.quote(str(provider.endpoints().tools))}:$PATH"
    return f"export KUBECONFIG={shlex.quote(str(settings.kubeconfig))}\nexport PATH={path}"


def format_status(rows: Sequence[ComponentStatus]) -> str:
    """The table of ``status``."""
    lines = [f"{'COMPONENT':<20} {'PID':<8} {'HEALTHY':<8} DETAIL"]
    lines += [f"{row.name:<20} {row.pid or '-':<8} {'yes' if row.healthy else 'no':<8} {row.detail}".rstrip() for row in rows]
    return "\n".join(lines)


def _status(provider: Provider, *, as_json: bool) -> int:
    rows = provider.status()
    print(json.dumps([asdict(row) for row in rows], indent=2) if as_json else format_status(rows))
    return 0 if all(row.healthy for row in rows) else 1


def run() -> None:
    sys.exit(main(sys.argv[1:]))
