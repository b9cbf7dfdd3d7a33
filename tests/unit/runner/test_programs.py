"""Where changed programs of the environment are looked for."""

from __future__ import annotations

from seatrial_runner.channel import Hello
from seatrial_runner.paths import Paths
from seatrial_runner.programs import watched_paths

HELLO = Hello(1, "0" * 32, 1, True, 0, 0, "root", None, None, "/", None, "linux", "amd64", True, True)

BESIDE = ("lib", "lib64", "libexec", "share", "include", "pyvenv.cfg")


def test_folders_of_path_are_watched_with_their_libraries_and_none_twice() -> None:
    hello = HELLO._replace(path="/opt/venv/bin/:relative::/:/usr/lib/tool/bin:/srv/tools:/usr/bin", home="/home/me")
    found = watched_paths(hello, Paths(), user="tester:daemon")
    assert [path for path in found if not path.startswith(("/root/", "/home/"))] == [
        *("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin", "/opt/venv/bin", "/srv/tools"),
        *(f"/usr/local/{name}" for name in BESIDE),
        *(f"/usr/{name}" for name in BESIDE),
        *(f"/{name}" for name in BESIDE),
        *(f"/opt/venv/{name}" for name in BESIDE),
        *("/etc", "/var/spool/cron", "/var/lib/dpkg/info"),
    ]
    assert {"/root/.bashrc", "/root/.local/lib", "/home/me/.bashrc", "/home/me/.local/lib", "/home/tester/.cache/uv"} <= set(found)


def test_as_many_folders_as_a_path_can_name_are_no_bad_request() -> None:
    found = watched_paths(HELLO._replace(path=":".join(f"/p{number}/bin" for number in range(900))), Paths(), user=None)
    assert len(found) == 400
    assert found[:7] == ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin", "/p0/bin")
