"""Where changed programs of the environment are looked for."""

from __future__ import annotations

from seatrial_runner.channel import Hello
from seatrial_runner.paths import Paths
from seatrial_runner.programs import watched_of

HELLO = Hello(1, "0" * 32, 1, True, 0, 0, "root", None, None, "/", None, "linux", "amd64", True, True)

BESIDE = ("lib", "lib64", "libexec", "share", "include", "pyvenv.cfg")
DEVICES = ("fd", "stdin", "stdout", "stderr", "null", "zero", "full", "random", "urandom")


def test_folders_of_path_are_watched_with_their_libraries_and_none_twice() -> None:
    hello = HELLO._replace(path="/opt/venv/bin/:relative::/:/usr/lib/tool/bin:/srv/tools:/usr/bin", home="/home/me")
    env = {"PATH": "/opt/late/bin:/bin", "PYTHONPATH": "/app/src:/opt/modules", "HOME": "/elsewhere"}
    found = watched_of(hello, Paths(), workdir="/app", user="tester:daemon", env=env)
    assert [path for path in found.paths if not path.startswith(("/root/", "/home/"))] == [
        *("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin", "/opt/venv/bin", "/srv/tools", "/opt/late/bin"),
        *(f"/usr/local/{name}" for name in BESIDE),
        *(f"/usr/{name}" for name in BESIDE),
        *(f"/{name}" for name in BESIDE),
        *(f"/opt/venv/{name}" for name in BESIDE),
        *(f"/opt/late/{name}" for name in BESIDE),
        *("/etc", "/var/spool/cron", "/var/lib/dpkg/info"),
        *(f"/dev/{name}" for name in DEVICES),
        "/opt/modules",
    ]
    assert {"/root/.bashrc", "/root/.local/lib", "/home/me/.bashrc", "/home/me/.local/lib"} <= set(found.paths)
    assert (found.outside, found.user) == ("/app", "tester:daemon")
    assert {"LD_LIBRARY_PATH", "BASH_ENV"} <= set(found.variables)
    assert {".cache/uv", ".profile"} <= set(found.home_names)


def test_a_task_that_works_in_the_root_has_its_variables_watched_all_the_same() -> None:
    found = watched_of(HELLO, Paths(), workdir="/", user=None, env={"PYTHONPATH": "/opt/modules"})
    assert "/opt/modules" in found.paths
    assert found.outside == ""


def test_as_many_folders_as_a_path_can_name_are_no_bad_request() -> None:
    hello = HELLO._replace(path=":".join(f"/p{number}/bin" for number in range(900)))
    found = watched_of(hello, Paths(), workdir="/app", user=None, env={}).paths
    assert len(found) == 400
    assert found[:7] == ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin", "/p0/bin")
