"""How envd starts, who may be at the other end, and how it ends."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import stat
import subprocess
import time
from pathlib import Path

import pytest

from seatrial_runner.channel import Channel, ChannelError, ConnectTimeout, EnvdError, EnvironmentExited, ProtocolViolation

from .conftest import Environment, wait_until

IMAGE_SERVER = ["sh", "-c", "while :; do sleep 0.05; done"]
"""An ENTRYPOINT that stays up and ignores its arguments."""


def test_both_runners_greet_the_same_envd(environment: Environment) -> None:
    agent, verifier = environment.serve(env={"HOME": "/root", "PATH": "/usr/bin:/bin"}, cwd="/usr")
    assert agent.hello == verifier.hello
    hello = agent.hello
    assert hello._replace(instance="", pid=0, arch="") == (
        1,
        "",
        0,
        False,
        0,
        0,
        "root",
        "/root",
        "/usr/bin:/bin",
        "/usr",
        "/usr/bin/bash",
        "linux",
        "",
        True,
        True,
    )
    assert (hello.pid, len(hello.instance)) == (environment.processes[0].pid, 32)


def test_the_sockets_are_gone_after_the_connection(environment: Environment) -> None:
    environment.listen()
    assert sockets(environment) == ["agent/envd.sock", "verifier/envd.sock"]
    environment.spawn(environment.envd())
    environment.accept()
    assert sockets(environment) == []


def sockets(environment: Environment) -> list[str]:
    return sorted(str(path.relative_to(environment.ctl)) for path in environment.ctl.rglob("*") if path.is_socket())


def test_envd_waits_for_runners_that_start_later(environment: Environment) -> None:
    envd = environment.spawn(environment.envd())
    environment.agent_listener = environment.cleanup.enter_context(Channel.listen(environment.ctl / "agent/envd.sock"))
    # Connected to one of two it serves nobody yet.
    with pytest.raises(ConnectTimeout):
        environment.agent_listener.accept(0.3)
    assert envd.poll() is None


def test_envd_serves_nobody_before_both_are_there(environment: Environment) -> None:
    environment.spawn(environment.envd())
    environment.agent_listener = environment.cleanup.enter_context(Channel.listen(environment.ctl / "agent/envd.sock"))
    wait_until(lambda: _pending(environment.ctl / "agent/envd.sock"))
    environment.verifier_listener = environment.cleanup.enter_context(Channel.listen(environment.ctl / "verifier/envd.sock"))
    agent, verifier = environment.accept()
    assert (agent.exec("true").ok, verifier.exec("true").ok) == (True, True)


def _pending(path: Path) -> bool:
    """Whether a connection to the listening socket waits to be accepted or is accepted."""
    lines = [line.split() for line in Path("/proc/net/unix").read_text().splitlines() if line.endswith(str(path))]
    return len(lines) > 1


def test_patience_is_bounded(environment: Environment) -> None:
    envd = environment.spawn(environment.envd("--patience=200ms"))
    assert envd.wait(20) == 1
    assert f"no runner listens in {environment.ctl}" in environment.log()


def test_envd_works_through_a_read_only_mount_and_as_any_user(environment: Environment) -> None:
    mounts = f"mount --bind {environment.ctl} {environment.ctl} && mount -o remount,ro,bind {environment.ctl}"
    script = mounts + ' && exec setpriv --reuid=4242 --regid=4242 --clear-groups -- "$@"'
    environment.listen()
    environment.spawn(["unshare", "--mount", "sh", "-c", script, "-", *environment.envd()])
    agent, _ = environment.accept()
    assert (agent.hello.uid, agent.hello.user) == (4242, None)
    failed = agent.run(f"touch {environment.ctl}/agent.sock")
    assert (failed.status.code, b"Read-only file system" in failed.stderr) == (1, True)


@pytest.mark.parametrize(("writable", "other"), [("agent", "verifier"), ("verifier", "agent")])
def test_in_a_pod_envd_refuses_a_writable_socket_folder(environment: Environment, writable: str, other: str) -> None:
    root = environment.folder / "root"
    ctl = root / "seatrial" / "ctl"
    for name in (writable, other):
        (ctl / name).mkdir(parents=True)
    shutil.copy(environment.binary, root)
    read_only = f"mount -t tmpfs -o ro none {ctl / other}"
    start = ["unshare", "--mount", "sh", "-c", f"{read_only} && exec chroot {root} /envd --patience=5s"]
    assert environment.spawn(start).wait(20) == 1
    assert f"/seatrial/ctl/{writable} is writable in this container: mount it read-only" in environment.log()


# Impostors.


def dial(path: Path) -> socket.socket:
    client = socket.socket(socket.AF_UNIX)
    client.connect(str(path))
    return client


def test_a_process_cannot_take_envds_place_after_it_has_connected(environment: Environment) -> None:
    agent, _ = environment.serve()
    result = agent.run(
        ["python3", "-c", f"import socket; socket.socket(socket.AF_UNIX).connect({str(environment.ctl / 'verifier/envd.sock')!r})"]
    )
    assert (result.status.code, b"FileNotFoundError" in result.stderr) == (1, True)


def test_no_command_runs_while_a_runner_can_still_be_reached(environment: Environment) -> None:
    environment.listen()
    environment.spawn(environment.envd())
    agent = environment.cleanup.enter_context(environment.agent_listener.accept(20))
    started, socket_ = environment.folder / "started", environment.ctl / "verifier/envd.sock"
    running = agent.start(f"touch {started}; test -e {socket_}")
    with pytest.raises(AssertionError, match="still False"):
        wait_until(started.exists, 0.5)
    environment.cleanup.enter_context(environment.verifier_listener.accept(20))
    status = running.wait()
    assert status is not None
    assert status.code == 1
    assert started.exists()


def test_envd_has_no_listening_end(agent: Channel) -> None:
    sockets = Path(f"/proc/{agent.hello.pid}/fd")
    inodes = {os.readlink(fd)[8:-1] for fd in sockets.iterdir() if os.readlink(fd).startswith("socket:")}
    states = {fields[6]: fields[5] for fields in (line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:])}
    assert {inode: states[inode] for inode in inodes} == dict.fromkeys(inodes, "03")  # connected; 01 would be listening
    assert len(inodes) == 2


def test_an_impostor_that_dials_first_is_the_one_connection_and_an_error(environment: Environment) -> None:
    environment.listen()
    with dial(environment.ctl / "agent/envd.sock") as impostor:
        impostor.sendall(b"\0\0\0\2\1\0\0\0\0{}")
        with pytest.raises(ProtocolViolation):
            environment.agent_listener.accept(20)
    assert sockets(environment) == ["verifier/envd.sock"]


def test_a_silent_caller_is_not_waited_for_longer_than_for_none(environment: Environment) -> None:
    environment.listen()
    with dial(environment.ctl / "agent/envd.sock") as impostor:
        impostor.sendall(b"\0")
        with pytest.raises(ConnectTimeout, match="did not greet"):
            environment.agent_listener.accept(0.2)


def test_a_socket_that_was_replaced_is_noticed(environment: Environment) -> None:
    environment.listen()
    path = environment.ctl / "verifier/envd.sock"
    with dial(path), socket.socket(socket.AF_UNIX) as other:
        path.rename(environment.ctl / "kept")
        other.bind(str(path))
        with pytest.raises(ProtocolViolation, match="was replaced"):
            environment.verifier_listener.accept(20)


def test_the_instance_shows_two_different_ends(environment: Environment) -> None:
    environment.listen()
    other = environment.folder / "other"
    (other / "verifier").mkdir(parents=True)
    # An impostor takes the agent's socket with an envd of its own; the true one gets the verifier's only when the agent's runner is fooled.
    (other / "agent").symlink_to(environment.ctl / "agent")
    decoy = environment.cleanup.enter_context(Channel.listen(other / "verifier/envd.sock"))
    environment.spawn([environment.binary, f"--ctl={other}"])
    agent = environment.cleanup.enter_context(environment.agent_listener.accept(20))
    fooled = environment.cleanup.enter_context(decoy.accept(20))
    assert agent.hello.instance == fooled.hello.instance
    environment.agent_listener = environment.cleanup.enter_context(Channel.listen(environment.ctl / "agent/envd.sock"))
    environment.spawn(environment.envd())
    _, verifier = environment.accept()
    assert agent.hello.instance != verifier.hello.instance


def test_a_second_listener_and_a_long_path_are_refused(environment: Environment) -> None:
    environment.listen()
    with pytest.raises(ChannelError, match="cannot listen"):
        Channel.listen(environment.ctl / "agent/envd.sock")
    with pytest.raises(ChannelError, match="cannot listen"):
        Channel.listen(environment.ctl / ("x" * 120))


def test_any_user_may_connect_and_the_socket_is_not_executable(environment: Environment) -> None:
    environment.listen()
    assert stat.S_IMODE((environment.ctl / "agent/envd.sock").stat().st_mode) == 0o666


# Starts: arguments, startup probe, both.


def envds(environment: Environment) -> int:
    """How many processes run this test's binary."""
    count = 0
    for process in Path("/proc").glob("[0-9]*/exe"):
        try:
            count += os.readlink(process) == str(environment.binary)
        except OSError:
            continue
    return count


def test_the_probe_does_nothing_where_the_arguments_run(environment: Environment) -> None:
    environment.listen()
    container = environment.as_pid1(environment.envd())
    probe = environment.spawn(environment.beside(container, environment.envd("--ensure")))
    assert probe.wait(20) == 0
    agent, _ = environment.accept()
    assert (agent.hello.is_pid1, envds(environment)) == (True, 1)


def test_the_probe_starts_envd_where_the_entrypoint_ignores_its_arguments(environment: Environment) -> None:
    environment.listen()
    container = environment.as_pid1(IMAGE_SERVER)
    probe = environment.spawn(environment.beside(container, environment.envd("--ensure")))
    assert probe.wait(20) == 0
    agent, verifier = environment.accept()
    assert (agent.hello.is_pid1, envds(environment)) == (False, 1)
    assert agent.run("echo works").stdout == b"works\n"
    probe = environment.spawn(environment.beside(container, environment.envd("--ensure")))
    assert (probe.wait(20), envds(environment)) == (0, 1)
    # An orphan comes to envd and not to an ENTRYPOINT that does not reap.
    assert agent.exec("(setsid sleep 505 >/dev/null 2>&1 &)").ok
    wait_until(lambda: [p.ppid for p in verifier.processes() if p.command == "sleep 505"] == [agent.hello.pid])


def test_the_probe_ends_although_somebody_reads_its_output(environment: Environment) -> None:
    environment.listen()
    container = environment.as_pid1(IMAGE_SERVER)
    started = time.monotonic()
    probe = subprocess.run(environment.beside(container, environment.envd("--ensure")), capture_output=True, timeout=20, check=True)
    assert (probe.stdout, probe.stderr) == (b"", b"")
    assert time.monotonic() - started < 5
    environment.accept()


@pytest.mark.parametrize("delay_ms", [0, 1, 2, 5, 20, 100, 240, 250, 260, 400])
def test_when_both_start_exactly_one_serves_and_the_container_stays(environment: Environment, delay_ms: int) -> None:
    """An ENTRYPOINT that prepares for a while and then runs its arguments, beside the probe."""
    environment.listen()
    script = f'sleep {delay_ms / 1000}; exec "$@"'
    container = environment.as_pid1(["sh", "-c", script, "-", *environment.envd()])
    probe = environment.spawn(environment.beside(container, environment.envd("--ensure")))
    agent, verifier = environment.accept()
    assert probe.wait(20) == 0
    assert agent.hello.instance == verifier.hello.instance
    if not agent.hello.is_pid1:
        # The arguments come too late: they wait beside the serving one, because their end would be the container's.
        wait_until(lambda: "standing by" in environment.log())
    wait_until(lambda: envds(environment) == (1 if agent.hello.is_pid1 else 2))
    assert verifier.run("echo served").stdout == b"served\n"
    verifier.shutdown()
    assert container.wait(20) == 0


def test_a_stand_by_passes_sigterm_on_and_outlives_it(environment: Environment) -> None:
    environment.listen()
    container = environment.as_pid1(["sh", "-c", 'sleep 1; exec "$@"', "-", *environment.envd()])
    probe = environment.spawn(environment.beside(container, environment.envd("--ensure")))
    agent, verifier = environment.accept()
    assert probe.wait(20) == 0
    wait_until(lambda: envds(environment) == 2)
    wait_until(lambda: "standing by" in environment.log())
    pid1 = int(Path(f"/proc/{container.pid}/task/{container.pid}/children").read_text())
    os.kill(pid1, signal.SIGTERM)
    wait_until(lambda: _refused(agent))
    assert verifier.exec("true").ok
    verifier.close()
    assert container.wait(20) == 1


def _refused(agent: Channel) -> bool:
    try:
        agent.exec("true")
    except EnvdError as error:
        return error.kind == "refused"
    return False


# Ends.


def test_shutdown_ends_envd_with_code_zero(environment: Environment) -> None:
    agent, verifier = environment.serve()
    verifier.shutdown()
    assert environment.processes[0].wait(20) == 0
    assert (agent.wait_closed(20), verifier.wait_closed(20)) == (True, True)
    with pytest.raises(EnvironmentExited, match="the environment exited"):
        agent.exec("true")


def test_shutdown_ends_running_commands(environment: Environment) -> None:
    agent, verifier = environment.serve()
    pid_file = environment.folder / "pid"
    agent.start(f"trap '' TERM; echo $$ > {pid_file}; while :; do sleep 1; done")
    wait_until(lambda: pid_file.exists() and pid_file.read_text())
    verifier.shutdown()
    assert environment.processes[0].wait(20) == 0
    assert not Path(f"/proc/{int(pid_file.read_text())}").exists()


def test_the_agent_cannot_shut_down(environment: Environment) -> None:
    agent, verifier = environment.serve()
    with pytest.raises(EnvdError) as refused:
        agent.shutdown()
    assert refused.value.kind == "refused"
    assert verifier.exec("true").ok


def test_a_verifier_that_is_gone_ends_envd_with_an_error(environment: Environment) -> None:
    agent, verifier = environment.serve()
    verifier.close()
    assert environment.processes[0].wait(20) == 1
    assert agent.wait_closed(20)


def test_an_environment_that_exits_is_noticed_at_once(environment: Environment) -> None:
    environment.listen()
    container = environment.as_pid1(IMAGE_SERVER)
    environment.spawn(environment.beside(container, environment.envd("--ensure"))).wait(20)
    agent, verifier = environment.accept()
    running = agent.start("sleep 1000")
    started = time.monotonic()
    container.kill()
    with pytest.raises(EnvironmentExited):
        running.wait(20)
    assert verifier.wait_closed(20)
    assert time.monotonic() - started < 2


def test_after_sigterm_the_verifier_is_served_and_the_agent_refused(environment: Environment) -> None:
    agent, verifier = environment.serve()
    go_on = environment.folder / "go-on"
    said: list[bytes] = []
    running = agent.start(f"echo started; while [ ! -e {go_on} ]; do sleep 0.01; done", on_output=lambda _, data: said.append(data))
    wait_until(lambda: running.wait(0.01) is None and said)
    environment.processes[0].send_signal(signal.SIGTERM)
    wait_until(lambda: _refused(agent))
    assert verifier.run(f"echo served; touch {go_on}").stdout == b"served\n"
    status = running.wait(20)
    assert status is not None
    assert status.ok
    verifier.shutdown()
    assert environment.processes[0].wait(20) == 0


def test_after_sigterm_envd_does_not_wait_for_ever(environment: Environment) -> None:
    _, verifier = environment.serve("--term-time=300ms")
    environment.processes[0].send_signal(signal.SIGTERM)
    assert environment.processes[0].wait(20) == 1
    assert verifier.wait_closed(20)


def test_other_signals_do_not_end_envd(environment: Environment) -> None:
    agent, _ = environment.serve()
    for number in ("HUP", "QUIT", "USR1", "USR2", "PIPE", "ALRM", "ABRT", "XCPU", "TSTP", "TTIN", "TTOU", "VTALRM", "IO"):
        assert agent.run(f"kill -{number} {agent.hello.pid} && echo sent").stdout == b"sent\n"
    assert agent.exec("true").ok


def test_the_client_for_agent_images_without_a_command_prints_its_usage(environment: Environment) -> None:
    link = environment.folder / "seatrial-env"
    link.symlink_to(environment.binary)
    result = subprocess.run([link], capture_output=True, check=False, timeout=30)
    assert (result.returncode, result.stdout) == (2, b"")
    assert result.stderr.startswith(b"usage: seatrial-env exec")


def test_unknown_arguments_print_the_usage(environment: Environment) -> None:
    result = subprocess.run([environment.binary, "--listen"], capture_output=True, check=False)
    assert (result.returncode, b'unknown argument "--listen"' in result.stderr, b"usage: envd" in result.stderr) == (2, True, True)


def test_the_binary_is_static_and_small(envd_binary: Path) -> None:
    assert envd_binary.stat().st_size < 6_000_000
    assert b"INTERP" not in subprocess.run(["readelf", "-l", envd_binary], capture_output=True, check=True).stdout


def test_it_builds_for_arm64(tmp_path: Path) -> None:
    from .conftest import SOURCE

    environment = {**os.environ, "CGO_ENABLED": "0", "GOARCH": "arm64"}
    subprocess.run(["go", "build", "-trimpath", "-ldflags=-s -w", "-o", tmp_path / "envd", "."], cwd=SOURCE, env=environment, check=True)
    assert (tmp_path / "envd").stat().st_size < 6_000_000
