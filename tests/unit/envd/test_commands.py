"""Commands through the real envd: output, ends, users, process groups, and what detached processes may and may not do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from tests.processes import alive, ends

from seatrial_runner.channel import Channel, CommandFailed, Completed, EnvdError, EnvironmentExited, ExitStatus, Process
from seatrial_runner.grade import count_leftovers

from .conftest import Environment, build_envd, wait_until

CONTAINER_CAPABILITIES = (
    "+chown,+dac_override,+fowner,+fsetid,+kill,+setgid,+setuid,+setpcap,+net_bind_service,+net_raw"
    ",+sys_chroot,+mknod,+audit_write,+setfcap"
)
"""What root has in a container that asks for nothing."""


def output_of(channel: Channel, command: str, **options: object) -> str:
    result = channel.run(command, **options)  # type: ignore[arg-type]
    assert (result.status.code, result.stderr) == (0, b"")
    return result.stdout.decode()


def test_output_and_code_are_reported(agent: Channel) -> None:
    result = agent.run("echo out; echo err >&2; exit 3")
    assert result._replace(status=result.status._replace(oom_killed=None)) == Completed(ExitStatus(3, None), b"out\n", b"err\n", False)
    assert result.status.returncode == 3


def test_a_signal_is_reported_as_such(agent: Channel) -> None:
    status = agent.exec("kill -SEGV $$")
    assert (status.code, status.signal, status.returncode) == (None, signal.SIGSEGV, 128 + signal.SIGSEGV)


def test_argv_needs_no_shell_and_is_not_expanded(agent: Channel) -> None:
    assert agent.run(["echo", "$HOME", "*", ""]).stdout == b"$HOME * \n"


def test_shell_commands_run_in_bash(agent: Channel) -> None:
    assert output_of(agent, "[[ x == x ]] && echo ${BASH_VERSION:+bash}") == "bash\n"


def test_environment_and_directory_are_the_containers_plus_the_requests(environment: Environment) -> None:
    path = os.environ["PATH"]
    agent, _ = environment.serve(env={"PATH": path, "FROM_IMAGE": "1", "BOTH": "1", "SEATRIAL_KEY": "secret"}, cwd="/usr")
    printed = output_of(agent, "env; pwd", env={"BOTH": "2", "SPACE": "a b\nc"})
    assert "FROM_IMAGE=1\n" in printed
    assert "BOTH=2\n" in printed
    assert "SPACE=a b\nc\n" in printed
    assert "SEATRIAL" not in printed
    assert printed.endswith("\n/usr\n")
    assert output_of(agent, "pwd", cwd="/etc") == "/etc\n"


def test_many_megabytes_arrive_whole_and_in_order(agent: Channel) -> None:
    received = bytearray()
    status = agent.exec(
        "seq 1 1000000; seq 1 1000 >&2", on_output=lambda stream, data: received.extend(data) if stream == "stdout" else None
    )
    assert status.ok
    assert bytes(received) == b"".join(b"%d\n" % i for i in range(1, 1_000_001))


def test_output_written_just_before_the_end_is_never_lost(agent: Channel) -> None:
    for _ in range(50):
        assert len(agent.run("head -c 60000 /dev/zero").stdout) == 60000


def test_a_slow_reader_blocks_its_own_command_only(agent: Channel) -> None:
    stalled = agent.start(["yes"])
    for _ in range(20):
        assert output_of(agent, "echo quick") == "quick\n"
    stalled.kill(grace_seconds=0)
    assert stalled.wait(20) is not None


def test_stdin_is_delivered_and_closed(agent: Channel) -> None:
    assert agent.run("cat", stdin=b"small").stdout == b"small"
    data = os.urandom(3_000_000)
    assert agent.run("cat", stdin=data, max_output_bytes=len(data)).stdout == data
    assert agent.run("cat", stdin=(b"%d," % i for i in range(3))).stdout == b"0,1,2,"


def test_a_command_that_does_not_read_its_stdin_does_not_hang(agent: Channel) -> None:
    assert agent.run("exec <&-; echo done", stdin=b"x" * 5_000_000).stdout == b"done\n"
    assert agent.run("head -c 1", stdin=b"x" * 5_000_000).stdout == b"x"


def test_without_stdin_a_command_reads_end_of_file(agent: Channel) -> None:
    assert agent.run("cat; echo end").stdout == b"end\n"


def test_fifty_requests_at_once_do_not_mix(agent: Channel) -> None:
    results: dict[int, Completed] = {}

    def one(i: int) -> None:
        results[i] = agent.run(f"for n in $(seq 200); do echo {i}-$n; done; cat; exit {i}", stdin=b"%d" % i)

    threads = [threading.Thread(target=one, args=(i,)) for i in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    expected = {i: (i, "".join(f"{i}-{n}\n" for n in range(1, 201)) + str(i)) for i in range(50)}
    assert {i: (result.status.code, result.stdout.decode()) for i, result in results.items()} == expected


def test_a_timeout_ends_the_whole_process_group(agent: Channel, environment: Environment) -> None:
    pids = environment.folder / "pids"
    started = time.monotonic()
    status = agent.exec(f"sleep 1000 & echo $! $$ > {pids}; wait", timeout_seconds=0.5)
    assert (status.timed_out, status.signal, status.ok) == (True, signal.SIGTERM, False)
    assert time.monotonic() - started < 2
    assert [ends(int(pid)) for pid in pids.read_text().split()] == [True, True]


def test_a_group_that_ignores_term_is_killed_after_the_grace(agent: Channel, environment: Environment) -> None:
    pids = environment.folder / "pids"
    status = agent.exec(f"trap '' TERM; (while :; do sleep 1; done) & echo $! $$ > {pids}; while :; do sleep 1; done", timeout_seconds=0.5)
    assert (status.timed_out, status.signal) == (True, signal.SIGKILL)
    assert [ends(int(pid)) for pid in pids.read_text().split()] == [True, True]


def test_a_command_that_ends_in_its_grace_keeps_its_code(agent: Channel) -> None:
    result = agent.run("trap 'echo saved; exit 5' TERM; while :; do sleep 0.01; done", timeout_seconds=0.3)
    assert (result.status.timed_out, result.status.code, result.stdout) == (True, 5, b"saved\n")


def test_kill_ends_a_running_command_and_no_other(agent: Channel) -> None:
    victim, other = agent.start("sleep 1000"), agent.start("sleep 1000")
    assert victim.wait(0.05) is None
    victim.kill()
    status = victim.wait(20)
    assert status is not None
    assert (status.signal, status.timed_out) == (signal.SIGTERM, False)
    assert other.wait(0.05) is None
    other.kill(grace_seconds=0)
    status = other.wait(20)
    assert status is not None
    assert status.signal == signal.SIGKILL


def test_a_detached_server_survives_and_does_not_hold_the_end_back(agent: Channel, environment: Environment) -> None:
    pid_file, said = environment.folder / "pid", environment.folder / "said"
    # It keeps stdout and stderr of its command, and goes on writing to them.
    server = f"setsid sh -c 'echo $$ > {pid_file}; while :; do echo noise; echo noise >&2; echo x >> {said}; sleep 0.02; done'"
    started = time.monotonic()
    result = agent.run(f"{server} & while [ ! -s {pid_file} ]; do sleep 0.01; done; echo up")
    assert result.status.ok
    assert b"up\n" in result.stdout
    assert time.monotonic() - started < 2
    pid = int(pid_file.read_text())
    before = said.stat().st_size
    wait_until(lambda: said.stat().st_size > before + 5)
    assert alive(pid)
    os.kill(pid, signal.SIGKILL)


def test_a_background_process_of_a_finished_command_stays(agent: Channel, verifier: Channel) -> None:
    assert output_of(agent, "sleep 987 >/dev/null 2>&1 & echo started") == "started\n"
    wait_until(lambda: [process.command for process in leftovers(verifier)] == ["sleep 987"])
    os.kill(leftovers(verifier)[0].pid, signal.SIGKILL)
    wait_until(lambda: leftovers(verifier) == [])


def test_a_detached_process_outlives_the_timeout_of_its_command(agent: Channel, environment: Environment) -> None:
    pid_file = environment.folder / "pid"
    command = f"setsid sh -c 'echo $$ > {pid_file}; exec sleep 1000' & while [ ! -s {pid_file} ]; do sleep 0.01; done; sleep 1000"
    assert agent.exec(command, timeout_seconds=1).timed_out
    pid = int(pid_file.read_text())
    assert alive(pid)
    os.kill(pid, signal.SIGKILL)


def test_orphans_are_reaped(agent: Channel, environment: Environment) -> None:
    pid_file = environment.folder / "pid"
    assert agent.exec(
        f"(setsid sh -c 'echo $$ > {pid_file}; sleep 0.1' >/dev/null 2>&1 &) ; while [ ! -s {pid_file} ]; do sleep 0.01; done"
    ).ok
    pid = int(pid_file.read_text())
    assert f"PPid:\t{environment.processes[0].pid}\n" in Path(f"/proc/{pid}/status").read_text()
    wait_until(lambda: not Path(f"/proc/{pid}").exists())


def test_commands_of_other_users(agent: Channel) -> None:
    assert output_of(agent, "id -u; id -g; id -G; echo $HOME $USER", user="nobody") == "65534\n65534\n65534\n/nonexistent nobody\n"
    assert output_of(agent, "id -u; id -g; id -G; echo $HOME", user=4242) == "4242\n0\n0\n/\n"
    assert output_of(agent, "id -u; id -g", user="4242:4343") == "4242\n4343\n"
    assert output_of(agent, "id -u; id -g", user="nobody:daemon") == "65534\n1\n"
    assert output_of(agent, "id -u", user="root") == "0\n"


def test_supplementary_groups_come_from_the_images_group_file(environment: Environment) -> None:
    (environment.folder / "passwd").write_text("root:x:0:0::/root:/bin/sh\nann:x:1000:1000::/home/ann:/bin/sh\n")
    (environment.folder / "group").write_text("ann:x:1000:\nwheel:x:50:ann\nvideo:x:44:root,ann\n")
    binds = " && ".join(f"mount --bind {environment.folder}/{name} /etc/{name}" for name in ("passwd", "group"))
    environment.listen()
    environment.spawn(["unshare", "--mount", "sh", "-c", binds + ' && exec "$@"', "-", *environment.envd()])
    agent, _ = environment.accept()
    assert output_of(agent, "id -u; id -g; id -G; echo $HOME", user="ann") == "1000\n1000\n1000 44 50\n/home/ann\n"


def test_without_root_the_own_user_runs_and_others_are_refused(environment: Environment) -> None:
    agent, _ = environment.serve(user=65534)
    assert (agent.hello.uid, agent.hello.user, agent.hello.can_switch_user) == (65534, "nobody", False)
    assert output_of(agent, "id -u") == "65534\n"
    assert output_of(agent, "id -u", user="nobody") == "65534\n"
    with pytest.raises(CommandFailed, match="envd runs as uid 65534 without the right to switch users") as refused:
        agent.exec("id", user="root")
    assert refused.value.kind == "cannot-switch"


def test_root_without_capabilities_says_so(environment: Environment) -> None:
    environment.listen()
    environment.spawn(["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--", *environment.envd()])
    agent, _ = environment.accept()
    assert (agent.hello.uid, agent.hello.can_switch_user) == (0, False)
    assert output_of(agent, "id -u", user="root") == "0\n"
    with pytest.raises(CommandFailed) as refused:
        agent.exec("id", user="nobody")
    assert refused.value.kind == "cannot-switch"


@pytest.mark.conforms("H-47")
def test_a_setuid_envd_runs_commands_as_the_images_user_and_root_on_request(environment: Environment) -> None:
    build_envd(environment.binary, default_ctl=environment.ctl)
    environment.binary.chmod(0o4755)
    environment.listen()
    # As in a Pod: the sockets' folder is read-only for the container, for root too.
    mount = f"mount --bind {environment.ctl} {environment.ctl} && mount -o remount,ro,bind {environment.ctl}"
    start = f"exec setpriv --reuid=65534 --regid=65534 --clear-groups -- {environment.binary}"
    environment.spawn(["unshare", "--mount", "sh", "-c", f"{mount} && {start}"])
    agent, _ = environment.accept()
    assert (agent.hello.uid, agent.hello.can_switch_user) == (65534, True)
    assert output_of(agent, "id -u; id -ru; id -g; id -G") == "65534\n65534\n65534\n65534\n"
    assert output_of(agent, "id -u; id -ru; id -g; echo $HOME", user="root") == "0\n0\n0\n/root\n"
    agent.put_bytes(b"1", f"{environment.folder}/made")
    assert ((environment.folder / "made").stat().st_uid, (environment.folder / "made").stat().st_gid) == (0, 0)


def test_a_setuid_envd_serves_no_sockets_of_its_callers_choice(environment: Environment) -> None:
    environment.binary.chmod(0o4755)
    environment.listen()
    process = environment.spawn(environment.envd(), user=65534)
    assert process.wait(20) == 2
    assert "--ctl is not for a user whom the program makes root" in environment.log()


@pytest.mark.parametrize(
    ("command", "options", "kind"),
    [
        pytest.param(["no-such-program"], {}, "not-found", id="unknown program"),
        pytest.param("true", {"cwd": "/no/such/folder"}, "no-cwd", id="missing directory"),
        pytest.param("true", {"user": "no-such-user"}, "no-such-user", id="unknown user"),
        pytest.param(["/etc/passwd"], {}, "cannot-start", id="not a program"),
    ],
)
def test_what_cannot_start_raises_and_the_channel_goes_on(agent: Channel, command: str, options: dict[str, str], kind: str) -> None:
    with pytest.raises(CommandFailed) as failed:
        agent.exec(command, **options)  # type: ignore[arg-type]
    assert failed.value.kind == kind
    assert agent.exec("true").ok


def test_an_argument_that_is_not_text_is_refused_before_it_is_sent(agent: Channel) -> None:
    with pytest.raises(EnvdError) as refused:
        agent.exec(["echo", os.fsdecode(b"\xff")])
    assert refused.value.kind == "bad-request"
    assert agent.exec("true").ok


def leftovers(channel: Channel) -> list[Process]:
    """What commands that have ended left running."""
    return [process for process in channel.processes() if process.origin == "exec" and not process.active]


def test_what_a_command_that_is_just_being_ended_leaves_is_counted(environment: Environment) -> None:
    environment.listen()
    environment.as_pid1(environment.envd())
    agent, verifier = environment.accept()
    agent.start("trap '' TERM; setsid sleep 506 >/dev/null 2>&1 & while :; do sleep 0.1; done")
    wait_until(lambda: "sleep 506" in [p.command for p in verifier.processes()])
    agent.close()
    assert count_leftovers(verifier) == 1
    assert [p.command for p in verifier.processes()] == ["sleep 506"]


HOPS = """import os, time
end = time.monotonic() + 20
while time.monotonic() < end:
    if os.fork():
        os._exit(0)
"""


def test_a_process_that_goes_on_in_ever_new_children_is_counted(environment: Environment, tmp_path: Path) -> None:
    environment.listen()
    environment.as_pid1(environment.envd())
    agent, verifier = environment.accept()
    (tmp_path / "hops.py").write_text(HOPS)
    before = verifier.process_table().ended_orphans
    assert agent.exec(f"setsid {sys.executable} {tmp_path}/hops.py >/dev/null 2>&1 &").ok
    wait_until(lambda: verifier.process_table().ended_orphans > before + 3)
    assert count_leftovers(verifier) >= 1
    verifier.exec("kill -9 -1")


def test_what_somebody_outside_runs_in_the_container_is_counted_if_it_stays(environment: Environment) -> None:
    """The kubelet's probe is such a process, and an agent may make it its own."""
    environment.listen()
    container = environment.as_pid1(environment.envd())
    _, verifier = environment.accept()
    assert count_leftovers(verifier) == 0
    environment.spawn(environment.beside(container, ["sleep", "507"]))
    wait_until(lambda: "sleep 507" in [p.command for p in verifier.processes()])
    assert count_leftovers(verifier) == 1


def test_processes_tell_running_commands_leftovers_and_the_images_own(environment: Environment) -> None:
    environment.listen()
    # The ENTRYPOINT starts something in the background and becomes envd.
    environment.as_pid1(["sh", "-c", 'sleep 501 & exec "$@"', "-", *environment.envd()])
    agent, verifier = environment.accept()
    assert agent.hello.is_pid1
    running = agent.start("sleep 502 & sleep 503")
    assert running.wait(0.05) is None
    wait_until(lambda: len([p for p in verifier.processes() if p.command.startswith("sleep")]) == 3)
    assert agent.exec("setsid sleep 504 >/dev/null 2>&1 &").ok
    wait_until(lambda: "sleep 504" in [p.command for p in leftovers(verifier)])
    seen = {p.command: (p.origin, p.active, p.uid) for p in verifier.processes() if p.command.startswith("sleep")}
    assert seen == {
        "sleep 501": ("image", False, 0),
        "sleep 502": ("exec", True, 0),
        "sleep 503": ("exec", True, 0),
        "sleep 504": ("exec", False, 0),
    }
    assert [p.command for p in leftovers(verifier)] == ["sleep 504"]


def test_a_command_cannot_read_envds_memory_or_descriptors(environment: Environment) -> None:
    environment.listen()
    environment.spawn(["setpriv", f"--bounding-set=-all,{CONTAINER_CAPABILITIES}", "--", *environment.envd()])
    agent, _ = environment.accept()
    pid = agent.hello.pid
    assert agent.run(f"cat /proc/{pid}/environ").stderr.endswith(b"Permission denied\n")
    assert agent.run(f"readlink -v /proc/{pid}/fd/0").stderr.endswith(b"Permission denied\n")
    assert agent.run(f"head -c1 /proc/{pid}/mem").stderr.endswith(b"Permission denied\n")
    assert output_of(agent, "head -c4 /proc/self/environ | wc -c") == "4\n"


def test_commands_inherit_no_descriptor_and_no_ignored_signal(agent: Channel) -> None:
    # The fourth is the folder that ls itself reads.
    assert agent.run(["ls", "/proc/self/fd"]).stdout == b"0\n1\n2\n3\n"
    # Signal 32 belongs to the C library: a shell or make above this test may have it ignored, and nobody can change that for a child.
    assert int(output_of(agent, "grep SigIgn /proc/self/status | cut -f2"), 16) & 0x7FFFFFFF == 0
    assert output_of(agent, "grep SigBlk /proc/self/status | cut -f2") == "0000000000000000\n"


def test_closing_the_channel_ends_its_commands_and_serves_the_other(agent: Channel, verifier: Channel, environment: Environment) -> None:
    pid_file = environment.folder / "pid"
    running = agent.start(f"echo $$ > {pid_file}; sleep 1000")
    wait_until(lambda: pid_file.exists() and pid_file.read_text())
    pid = int(pid_file.read_text())
    agent.close()
    with pytest.raises(EnvironmentExited, match="the channel was closed"):
        running.wait()
    wait_until(lambda: not alive(pid))
    assert output_of(verifier, "echo served") == "served\n"


def test_a_callback_that_raises_ends_the_command(agent: Channel, environment: Environment) -> None:
    pid_file = environment.folder / "pid"

    def refuse(stream: str, data: bytes) -> None:
        raise ValueError("enough")

    with pytest.raises(ValueError, match="enough"):
        agent.exec(f"echo $$ > {pid_file}; echo x; sleep 1000", on_output=refuse)
    pid = int(pid_file.read_text())
    wait_until(lambda: not alive(pid))
    assert agent.exec("true").ok


def test_an_image_with_the_binary_alone_runs_argv_and_has_no_shell(environment: Environment) -> None:
    root = environment.folder / "root"
    for name in ("agent", "verifier"):
        (root / "ctl" / name).mkdir(parents=True)
    binary = root / "envd"
    binary.write_bytes(environment.binary.read_bytes())
    binary.chmod(0o755)
    environment.ctl = root / "ctl"
    environment.listen()
    environment.spawn(["/usr/sbin/chroot", root, "/envd", "--ctl=/ctl"], env={})
    agent, verifier = environment.accept()
    hello = agent.hello._replace(instance="", pid=0)
    assert (hello.user, hello.home, hello.cwd, hello.shell, hello.has_passwd) == (None, None, "/", None, False)
    with pytest.raises(CommandFailed, match="the image has neither bash nor sh") as refused:
        agent.exec("true")
    assert refused.value.kind == "no-shell"
    result = agent.run(["/envd", "--version"], user=1234)
    assert (result.status.code, result.stdout[:9]) == (0, b"envd dev ")
    with pytest.raises(EnvdError) as unsupported:
        verifier.processes()
    assert unsupported.value.kind == "unsupported"
    verifier.put_bytes(b"1", "/logs/verifier/reward.txt")
    assert verifier.read_file("/logs/verifier/reward.txt", max_bytes=10) == b"1"


def test_an_out_of_memory_kill_is_told_where_the_kernel_counts_it(agent: Channel) -> None:
    counted = subprocess.run(
        "cat /sys/fs/cgroup/memory.events /sys/fs/cgroup/memory/memory.oom_control", shell=True, capture_output=True, check=False
    )
    expected = False if b"oom_kill " in counted.stdout else None
    assert agent.exec("true").oom_killed is expected
