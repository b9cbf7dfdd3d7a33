"""Where changed programs of the environment are looked for."""

from __future__ import annotations

from seatrial_runner.channel import Hello
from seatrial_runner.paths import Paths
from seatrial_runner.programs import watched_paths

HELLO = Hello(1, "0" * 32, 1, True, 0, 0, "root", None, None, "/", None, "linux", "amd64", True, True)


def test_folders_of_path_are_watched_with_their_libraries_and_none_twice() -> None:
    hello = HELLO._replace(path="/opt/venv/bin/:relative::/:/usr/lib/tool/bin:/srv/tools:/usr/bin", home="/home/me")
    found = watched_paths(hello, Paths())
    assert [path for path in found if not path.startswith(("/root/", "/home/me/"))] == [
        *("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin", "/opt/venv/bin", "/srv/tools"),
        *("/usr/local/lib", "/usr/local/lib64", "/usr/local/libexec", "/usr/lib", "/usr/lib64", "/usr/libexec"),
        *("/lib", "/lib64", "/libexec", "/opt/venv/lib", "/opt/venv/lib64", "/opt/venv/libexec", "/etc", "/var/spool/cron"),
    ]
    assert {"/root/.bashrc", "/root/.local/lib", "/home/me/.bashrc", "/home/me/.local/lib"} <= set(found)


def test_as_many_folders_as_a_path_can_name_are_no_bad_request() -> None:
    found = watched_paths(HELLO._replace(path=":".join(f"/p{number}/bin" for number in range(400))), Paths())
    assert len(found) == 100
    assert found[:7] == ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin", "/p0/bin")
