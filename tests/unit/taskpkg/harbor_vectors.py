"""Ask Harbor itself, and keep the answers.

Run with an interpreter that has ``harbor==0.26.0`` (Python 3.12 or newer): ``--write`` stores ``data/harbor_*.json``, without it the
stored answers are compared with Harbor's. The other tests of this folder compare seatrial with the stored answers. Nothing here is
needed to run them.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data"

# --- task.toml ------------------------------------------------------------------------------------------------------------------------

ENV = "[environment]\n"
STEP = '[[steps]]\nname = "a"\n'
MCP = '[[environment.mcp_servers]]\nname = "s"\n'
URL = 'url = "http://x"\n'


def config_texts() -> Iterator[str]:
    yield ""
    yield "not toml"
    yield "a = \n"
    yield "a = 1\na = 2\n"
    yield 'unknown = 1\n[strange]\nx = "y"\n[agent]\ntimeout_seconds = 3\n'
    for value in ('"1.0"', '"9.9"', '""', "1.1", "1", "true"):
        yield f"schema_version = {value}\n"
        yield f"version = {value}\n"
    yield 'version = "1.0"\nschema_version = "1.4"\n'
    yield 'version = 3\nschema_version = "1.4"\n'
    yield 'source = "bench"\n'
    yield "source = 3\n"
    for value in ('"mean"', '"final"', '"Mean"', '"max"'):
        yield f"multi_step_reward_strategy = {value}\n"
    for value in ("60", "60.5", '"60"', '"1e3"', "-1", "0", "nan", "inf", "true", '"x"', "[]", '" 7 "'):
        yield f"[agent]\ntimeout_sec = {value}\n"
        yield f"[verifier]\ntimeout_sec = {value}\n"
    for value in ('"agent"', "1000", "true", "1.5", "1.0", '"7"', '""', "[]"):
        yield f"[agent]\nuser = {value}\n"
    for key in ("cpus", "memory_mb", "storage_mb", "gpus"):
        for value in (
            "2",
            '"2"',
            "2.0",
            "0.5",
            "1.5",
            '"1.5"',
            '"2.0"',
            "nan",
            "inf",
            "-1",
            "true",
            '"x"',
            '"0x10"',
            "99999999999999999999",
        ):
            yield f"{ENV}{key} = {value}\n"
    for key in ("memory", "storage"):
        for value in (
            '"1.5g"',
            '"512K"',
            '"2GB"',
            '"2048"',
            '"xG"',
            '"4G"',
            '" 4 g "',
            '"-1G"',
            '"1e2M"',
            '"nanG"',
            '""',
            "2048",
            "true",
            "1.5",
        ):
            yield f"{ENV}{key} = {value}\n"
        for value in ("1", "4096", '"4096"', "4096.0"):
            yield f'{ENV}{key} = "4G"\n{key}_mb = {value}\n'
        yield f"{ENV}{key} = 7\n{key}_mb = 1\n"
        yield f'[verifier.environment]\n{key} = "2G"\n'
        yield f'{STEP}[steps.verifier.environment]\n{key} = "2G"\n'
    for value in ("true", "false", '"yes"', '"off"', "1", "0", "2", '"x"'):
        yield f"{ENV}allow_internet = {value}\n"
    for extra in ('network_mode = "public"', 'network_mode = "allowlist"', "allowed_hosts = []", 'allowed_hosts = ["a.b"]'):
        yield f"{ENV}allow_internet = false\n{extra}\n"
    yield "[verifier.environment]\nallow_internet = false\n"
    yield f"{STEP}[steps.verifier.environment]\nallow_internet = false\n"
    for section in ("environment", "agent", "verifier"):
        for mode in (
            "",
            'network_mode = "public"\n',
            'network_mode = "no-network"\n',
            'network_mode = "allowlist"\n',
            'network_mode = "Public"\n',
        ):
            for hosts in ("", "allowed_hosts = []\n", 'allowed_hosts = ["Example.COM."]\n', 'allowed_hosts = "x"\n'):
                yield f"[{section}]\n{mode}{hosts}"
    for host in hosts_to_try():
        yield f'{ENV}network_mode = "allowlist"\nallowed_hosts = [{json.dumps(host)}]\n'
    for value in ('"linux"', '"LINUX"', '"Windows"', '"mac"', "1"):
        yield f"{ENV}os = {value}\n"
    for value in (
        '{type = "v6e", topology = "2x4"}',
        '{type = "", topology = "2x4"}',
        '{type = "v", topology = " 2x2x1 "}',
        '{type = "v"}',
        '"v"',
    ):
        yield f"{ENV}tpu = {value}\n"
    for topology in ("2", "0x2", "2x", "2X4", "02x4", "2x4\\n"):
        yield f'{ENV}tpu = {{type = "v", topology = "{topology}"}}\n'
    for value in ('"1"', "1", "true", "1.5", '""', "[]"):
        yield f"[environment.env]\nA = {value}\n"
        yield f"[verifier.env]\nA = {value}\n"
        yield f"[solution.env]\nA = {value}\n"
    yield f'{ENV}gpu_types = ["H100"]\n'
    yield f"{ENV}gpu_types = [1]\n"
    yield f"{ENV}docker_image = 3\n"
    yield f'{ENV}docker_image = ""\n'
    yield f'{ENV}skills_dir = "/skills"\nworkdir = "/app"\nbuild_timeout_sec = "9"\n'
    yield "[environment.healthcheck]\n"
    yield '[environment.healthcheck]\ncommand = ""\nretries = "2"\n'
    yield '[environment.healthcheck]\ncommand = "x"\nretries = 2.5\n'
    yield '[environment.healthcheck]\ncommand = "x"\ninterval_sec = "1.5"\ntimeout_sec = -1\nstart_period_sec = 1\nstart_interval_sec = 0\n'
    yield from mcp_texts()
    for name in ("org/name", "o/n\\n", "o", "o/n/m", "/n", "o/", "-o/n", "o/.n", "o/n..m", "o.1_-/n.1_-", "ö/n", ""):
        yield f'[task]\nname = "{name}"\n'
    yield "[task]\n"
    yield '[task]\nname = "o/n"\nversion = ""\n'
    authors = 'authors = [{name = "A"}, {name = "B", email = "b@c"}]\n'
    yield f'[task]\nname = "o/n"\nversion = "any text"\ndescription = "d"\nkeywords = ["k"]\n{authors}'
    yield '[task]\nname = "o/n"\nauthors = ["Name"]\n'
    yield '[task]\nname = "o/n"\nauthors = [{email = "b@c"}]\n'
    yield '[metadata]\nauthors = ["Name"]\nanything = {deep = [1, 2.5, true]}\n'
    yield "metadata = 3\n"
    yield from verifier_texts()
    yield from step_texts()
    yield from artifact_texts()
    for section in ("agent", "verifier", "environment", "solution", "task", "steps"):
        yield f"{section} = 3\n"
        yield f"{section} = []\n"


def hosts_to_try() -> Iterator[str]:
    # Not ::ffff:1.2.3.4: Python itself writes it differently since 3.13.
    yield from ("example.com", "EXAMPLE.com", " example.com ", "example.com..", "localhost", "a", "a-b.c", "1.2.3.4", "1.2.3", "1.2.3.400")
    yield from ("*.example.com", "*.com", "*.1.2.3.4", "*.", "*", "a.*.com", "*a.com", "a*.com", "**.a", "*.a_b", "", " ", ".")
    yield from ("2001:db8::1", "2001:DB8:0:0:0:0:0:1", "::1", "[::1]", "fe80::1%eth0", "2001:db8::/32", "2001:db8::1/32")
    yield from ("10.0.0.0/8", "10.0.0.1/8", "10.0.0.0/33", "10.0.0.0/255.0.0.0", "10.0.0.0/", "/8", "0.0.0.0/0", "10.0.0.1/32")
    yield from (
        "http://a.com",
        "a.com:80",
        "a.com/path",
        "user@a.com",
        "a_b.com",
        "-a.com",
        "a-.com",
        "a..com",
        "ä.com",
        "xn--4ca.com",
        "a b",
    )
    yield from ("a" * 63, "a" * 64, "a." * 100 + "a", "010.0.0.1", "1.2.3.4.", "a.com\n")


def mcp_texts() -> Iterator[str]:
    yield MCP
    yield MCP + URL
    yield "[[environment.mcp_servers]]\n" + URL
    for transport in ("sse", "streamable-http", "http", "stdio", "HTTP", "ws"):
        yield MCP + f'transport = "{transport}"\n'
        yield MCP + f'transport = "{transport}"\n' + URL
        yield MCP + f'transport = "{transport}"\ncommand = "c"\nargs = ["a"]\n'
    yield MCP + 'transport = "stdio"\ncommand = "c"\nheaders = {A = "b"}\n'
    yield MCP + 'url = ""\n'
    headers = (
        ("X-Text", "plain"),
        ("X-Text", "a ${VAR} b"),
        ("X-Text", "${VAR:-default}"),
        ("X-Text", "${TOKEN:-default}"),
        ("X-Text", "${TOKENS:-default}"),
        ("X-Text", "${TOKEN:-}"),
        ("X-Text", "${VAR:-${OTHER}}"),
        ("X-Text", "${1A}"),
        ("X-Text", "${"),
        ("X-Text", "$VAR"),
        ("X-Text", "a\nb"),
        ("Authorization", "Bearer abc"),
        ("Authorization", "Bearer ${TOKEN}"),
        ("Authorization", "bearer  ${A}:${B}"),
        ("Authorization", "${A}-${B} "),
        ("Authorization", "Bearer ${TOKEN:-x}"),
        ("Authorization", "Bearer ${TOKEN:-}"),
        ("Authorization", "Bearer x${TOKEN}"),
        ("Authorization", "Two words ${TOKEN}"),
        ("Authorization", ""),
        ("Authorization", "  "),
        ("Cookie", "a=b"),
        ("Set-Cookie", "${C}"),
        ("X-Api-Key", "k"),
        ("Author", "me"),
        ("X-Max-Tokens", "5"),
        ("Bad Name", "x"),
        ("Bad:Name", "x"),
        ("", "x"),
        ("a!#$%&'*+.^_`|~-", "x"),
    )
    for name, value in headers:
        yield MCP + URL + f"headers = {{{json.dumps(name)} = {json.dumps(value)}}}\n"
    yield MCP + URL + "headers = {A = 1}\n"


def verifier_texts() -> Iterator[str]:
    for mode, table in itertools.product(('"shared"', '"separate"', '"Shared"', None), (True, False)):
        text = "[verifier]\n" + (f"environment_mode = {mode}\n" if mode else "")
        yield text + ("[verifier.environment]\n" if table else "")
    for hook in ('command = "c"', "", 'command = "c"\nservice = " db "', 'command = "c"\nservice = ""', 'command = "c"\nservice = "-x"'):
        yield f"[[verifier.collect]]\n{hook}\n"
    yield '[[verifier.collect]]\ncommand = "c"\nservice = "a_b.c-d"\ntimeout_sec = "5"\nuser = 0\n'


def step_texts() -> Iterator[str]:
    yield "steps = []\n"
    yield "[[steps]]\n"
    for name in step_names():
        yield f"[[steps]]\nname = {json.dumps(name)}\n"
    for pair in (("a", "A"), ("a", "a"), ("a", "b"), ("\u00e9", "e\u0301"), ("stra\u00dfe", "STRASSE")):
        yield "".join(f"[[steps]]\nname = {json.dumps(name)}\n" for name in pair)
    for value in ("0.5", "1", '"0.5"', '"x"', "{a = 1, b = 0.5}", '{a = "1"}', '{a = "x"}', "{}", "[]", "true", "nan"):
        yield STEP + f"min_reward = {value}\n"
    yield STEP + '[steps.agent]\ntimeout_sec = 5\nuser = "u"\n[steps.verifier]\nenv = {A = "1"}\n[steps.healthcheck]\ncommand = "true"\n'
    yield STEP + '[steps.verifier]\nenvironment_mode = "shared"\n[steps.verifier.environment]\n'
    yield STEP + "unknown = 1\n[steps.environment]\ncpus = 1\n"
    yield STEP + "name2 = 2\n" + STEP.replace('"a"', '"b"') + 'artifacts = ["/x", {source = "/y"}]\n'


def step_names() -> Iterator[str]:
    yield from ("a", "a b", " a", "a ", "a.", ".", "..", "", " ", ".a", "a.b", "a/b", "a\\b", "a:b", "a*", "a?", "a<", "a>", "a|", 'a"')
    yield from (
        "a\tb",
        "a\u007f",
        "con",
        "CON",
        "con.txt",
        "CON .txt",
        "console",
        "aux",
        "nul",
        "prn",
        "com1",
        "COM9",
        "com0",
        "com10",
        "lpt\u00b2",
    )
    yield from ("conin$", "CONOUT$", "x" * 255, "x" * 256, "\u00e9" * 127, "\u00e9" * 128, "\u65e5\u672c", "a%b", "a#b")


def artifact_texts() -> Iterator[str]:
    for entry in (
        '"/a"',
        '"a"',
        '"../a"',
        '"/a/../b"',
        '"/a/..b"',
        '""',
        "3",
        "{}",
        '{source = "/a"}',
        '{source = "/a", service = "main"}',
    ):
        yield f"artifacts = [{entry}]\n"
    for source in ("/a", "C:/a", "c:\\\\a", "a", "./a", ""):
        yield f'artifacts = [{{source = "{source}", service = "db"}}]\n'
    for destination in (
        "",
        "a",
        "a/b",
        "/a",
        "../a",
        "a/../b",
        ".",
        "./a",
        "a\\\\b",
        "manifest.json",
        "manifest.json/",
        "./manifest.json",
        "a/manifest.json",
    ):
        yield f'artifacts = [{{source = "/a", destination = "{destination}"}}]\n'
    for service in ("", " db ", "-db", "d b", "main"):
        yield f'artifacts = [{{source = "/a", service = "{service}"}}]\n'
    yield 'artifacts = [{source = "/a", exclude = ["*.tmp"]}, {source = "/a"}, "/a/b"]\n'
    yield 'artifacts = [{source = "/a", exclude = "*.tmp"}]\n'


# --- folders --------------------------------------------------------------------------------------------------------------------------

TOML = 'schema_version = "1.4"\n'
SCRIPT = "#!/bin/bash\necho 1 > /logs/verifier/reward.txt\n"
BASE: dict[str, Any] = {
    "task.toml": TOML,
    "instruction.md": "Do it.\n",
    "environment/Dockerfile": "FROM alpine:3.20\n",
    "tests/test.sh": SCRIPT,
}
STEPS = '[[steps]]\nname = "one"\n[[steps]]\nname = "two"\n'
STEP_FILES: dict[str, Any] = {
    "task.toml": STEPS,
    "environment/Dockerfile": "FROM alpine:3.20\n",
    "tests/test.sh": SCRIPT,
    "steps/one/instruction.md": "1\n",
    "steps/two/instruction.md": "2\n",
}
SEPARATE = '[verifier]\nenvironment_mode = "separate"\n'


def folders() -> Iterator[tuple[str, dict[str, Any]]]:
    """Name and entries: text of a file, None for an empty folder, ``{"link": target}``, ``{"absent": true}`` to drop one of the base."""
    absent = {"absent": True}
    yield "base", BASE
    yield "vector", BASE | {"solution/solve.sh": "#!/bin/bash\ntrue\n", "README.md": "# hi\n"}
    yield "no-toml", BASE | {"task.toml": absent}
    yield "empty-toml", BASE | {"task.toml": ""}
    yield "bad-toml", BASE | {"task.toml": "a ="}
    yield "no-instruction", BASE | {"instruction.md": absent}
    yield "empty-instruction", BASE | {"instruction.md": ""}
    yield "no-environment", BASE | {"environment/Dockerfile": absent}
    yield "image-without-environment", BASE | {"environment/Dockerfile": absent, "task.toml": '[environment]\ndocker_image = "x"\n'}
    yield "empty-environment", BASE | {"environment/Dockerfile": absent, "environment": None}
    yield "compose-yml", BASE | {"environment/Dockerfile": absent, "environment/docker-compose.yml": "x\n"}
    yield "environment-is-a-file", BASE | {"environment/Dockerfile": absent, "environment": "x\n"}
    yield "no-test", BASE | {"tests/test.sh": absent}
    yield "bat-on-linux", BASE | {"tests/test.sh": absent, "tests/test.bat": "x\n"}
    yield "bat-on-windows", BASE | {"task.toml": '[environment]\nos = "windows"\n', "tests/test.sh": absent, "tests/test.bat": "x\n"}
    yield "sh-on-windows", BASE | {"task.toml": '[environment]\nos = "windows"\n'}
    yield "ps1", BASE | {"tests/test.sh": absent, "tests/test.ps1": "x\n"}
    yield "tests-dockerfile-shared", BASE | {"tests/test.sh": absent, "tests/Dockerfile": "FROM x\n"}
    yield "tests-dockerfile-separate", BASE | {"task.toml": SEPARATE, "tests/test.sh": absent, "tests/Dockerfile": "FROM x\n"}
    yield "tests-compose-separate", BASE | {"task.toml": SEPARATE, "tests/test.sh": absent, "tests/docker-compose.yaml": "x\n"}
    yield "tests-compose-yml-separate", BASE | {"task.toml": SEPARATE, "tests/test.sh": absent, "tests/docker-compose.yml": "x\n"}
    yield "verifier-image", BASE | {"task.toml": '[verifier.environment]\ndocker_image = "v"\n', "tests/test.sh": absent}
    yield "verifier-environment-without-image", BASE | {"task.toml": "[verifier.environment]\ncpus = 1\n", "tests/test.sh": absent}
    windows = '[verifier.environment]\nos = "windows"\n'
    yield "windows-verifier", BASE | {"task.toml": windows, "tests/test.sh": absent, "tests/test.bat": "x\n"}
    inherited = '[environment]\nos = "windows"\n[verifier.environment]\ncpus = 1\n'
    yield "verifier-inherits-os", BASE | {"task.toml": inherited, "tests/test.sh": absent, "tests/test.bat": "x\n"}
    yield "link-out-of-tests", BASE | {"tests/x": {"link": "../../outside"}}
    yield "absolute-link-in-tests", BASE | {"tests/x": {"link": "@outside"}}
    yield "link-out-of-environment", BASE | {"environment/x": {"link": "../../outside"}}
    yield "link-out-of-environment-context", BASE | {"task.toml": SEPARATE, "environment/x": {"link": "../../outside"}}
    yield "link-out-of-solution", BASE | {"solution/x": {"link": "@outside"}}
    yield "dangling-link", BASE | {"tests/x": {"link": "nowhere"}}
    yield "link-inside", BASE | {"tests/x": {"link": "../environment/Dockerfile"}, "tests/folder": {"link": "../environment"}}
    yield "link-cycle", BASE | {"tests/x": {"link": "."}}
    yield "link-cycle-up", BASE | {"tests/a/x": {"link": ".."}}
    yield "excluded-link-out", BASE | {"tests/x": {"link": "@outside"}, "tests/.harborignore": "x\n"}
    yield "tests-is-a-link", BASE | {"tests/test.sh": absent, "real/test.sh": SCRIPT, "tests": {"link": "real"}}
    yield "instruction-is-a-link", BASE | {"instruction.md": {"link": "environment/Dockerfile"}}
    yield "steps", STEP_FILES
    yield "steps-no-root-test", STEP_FILES | {"tests/test.sh": absent, "steps/one/tests/test.sh": SCRIPT, "steps/two/tests/test.sh": SCRIPT}
    yield "steps-one-test-only", STEP_FILES | {"tests/test.sh": absent, "steps/one/tests/test.sh": SCRIPT}
    yield "steps-no-folder", STEP_FILES | {"steps/two/instruction.md": absent}
    yield "steps-no-instruction", STEP_FILES | {"steps/two/instruction.md": absent, "steps/two/workdir/x": "x\n"}
    yield "steps-empty-list", BASE | {"task.toml": "steps = []\n"}
    yield "steps-link-out", STEP_FILES | {"steps/one/workdir/x": {"link": "@outside"}}
    yield "steps-folder-link-out", STEP_FILES | {"steps/two/instruction.md": absent, "steps/two": {"link": "@outside-folder"}}
    per_step = STEPS.replace('"two"\n', '"two"\n[steps.verifier.environment]\ndocker_image = "v"\n')
    yield "steps-own-verifier-image", STEP_FILES | {"task.toml": per_step, "tests/test.sh": absent, "steps/one/tests/test.sh": SCRIPT}
    built = STEPS + '[verifier]\nenvironment_mode = "separate"\n'
    yield "steps-built-verifier", STEP_FILES | {"task.toml": built, "tests/test.sh": absent, "tests/Dockerfile": "FROM x\n"}
    yield (
        "workdir-and-trajectory",
        STEP_FILES | {"steps/one/workdir/setup.sh": "x\n", "steps/one/trajectory.json": "{}\n", "trajectory.json": "{}\n"},
    )
    yield from ignore_folders()
    yield (
        "default-ignores",
        BASE | {"tests/__pycache__/a.pyc": "x", "tests/b.pyc": "x", "tests/.DS_Store": "x", "tests/c.swp": "x", "tests/d~": "x"},
    )
    yield "own-gitignore", BASE | {".gitignore": "*.log\n!keep.log\n", "tests/a.log": "x", "tests/keep.log": "x", "tests/b.pyc": "x"}
    yield (
        "gitignore-folder",
        BASE | {".gitignore": "/tests/data/\nbuild\n", "tests/data/a": "x", "solution/build": "x", "environment/build/y": "x"},
    )
    yield "gitignore-reinclude", BASE | {".gitignore": "/tests/data/\n!/tests/data/keep\n", "tests/data/keep": "x", "tests/data/a": "x"}
    yield "gitignore-everything", BASE | {".gitignore": "*\n"}
    yield "gitignore-negate-all", BASE | {".gitignore": "*\n!*.md\n!*/\n"}
    yield "gitignore-comments", BASE | {".gitignore": "# x\n\n\\#a\n a\nb \n", "tests/#a": "x", "tests/a": "x", "tests/b": "x"}
    yield "nested-gitignore-has-no-effect", BASE | {"tests/.gitignore": "*\n", "tests/x": "x"}
    yield (
        "links-in-digest",
        BASE | {"tests/x": {"link": "test.sh"}, "environment/folder": {"link": "../tests"}, "tests/bad": {"link": "nowhere"}},
    )
    yield "other-root-files", BASE | {"LICENSE": "x\n", "notes/a": "x\n", "README.md": "r\n"}
    yield "odd-names", BASE | {"tests/\u00e9": "x", "tests/a b": "y", "tests/a-b": "1", "tests/a.b": "2", "tests/a/b": "3", "tests/A": "4"}
    yield "git-in-environment", BASE | {"environment/.git/config": "x", "environment/__pycache__/x": "x", "environment/.DS_Store": "x"}
    yield "empty-files", BASE | {"tests/empty": "", "environment/empty": ""}


def ignore_folders() -> Iterator[tuple[str, dict[str, Any]]]:
    yield "ignore-file", BASE | {"tests/.harborignore": "data.txt\n", "tests/data.txt": "x", "tests/keep.txt": "y"}
    yield "ignore-test-script", BASE | {"tests/.harborignore": "*.sh\n"}
    yield "ignore-and-reinclude", BASE | {"tests/.harborignore": "*.sh\n!test.sh\n", "tests/other.sh": "x"}
    yield "ignore-inherited", BASE | {"tests/.harborignore": "*.log\n", "tests/a/b/x.log": "x", "tests/a/b/y": "y"}
    yield "ignore-inner-overrides", BASE | {"tests/.harborignore": "*.log\n", "tests/a/.harborignore": "!x.log\n", "tests/a/x.log": "x"}
    yield "ignore-folder-stays-ignored", BASE | {"tests/.harborignore": "a/\n!a/x\n", "tests/a/.harborignore": "!x\n", "tests/a/x": "x"}
    yield "ignore-anchored", BASE | {"tests/.harborignore": "/x\n", "tests/x": "1", "tests/a/x": "2"}
    yield "ignore-in-solution", BASE | {"solution/.harborignore": "secret\n", "solution/secret": "x", "solution/solve.sh": "y"}
    yield "ignore-in-environment-has-no-rules", BASE | {"environment/.harborignore": "Dockerfile\n"}
    yield "ignore-at-root-has-no-rules", BASE | {".harborignore": "tests/\n"}
    yield "ignore-in-step-tests", STEP_FILES | {"steps/one/tests/.harborignore": "x\n", "steps/one/tests/x": "x", "steps/one/tests/y": "y"}
    yield "ignore-in-step-workdir-has-no-rules", STEP_FILES | {"steps/one/workdir/.harborignore": "x\n", "steps/one/workdir/x": "x"}
    yield "ignore-linked-target", BASE | {"tests/.harborignore": "real\n", "tests/real": "x", "tests/alias": {"link": "real"}}
    yield "ignore-is-a-folder", BASE | {"tests/.harborignore/x": "x"}
    yield "ignore-is-an-inner-link", BASE | {"tests/.harborignore": {"link": "rules"}, "tests/rules": "x\n", "tests/x": "1"}
    yield "ignore-leads-out", BASE | {"tests/.harborignore": {"link": "@outside"}}
    yield "ignore-all", BASE | {"tests/.harborignore": "*\n"}
    yield "ignore-named-elsewhere", BASE | {"tests/x": {"link": "../environment/.harborignore"}, "environment/.harborignore": "a\n"}


def build_folder(root: Path, entries: dict[str, Any]) -> None:
    """Make a folder of ``folders()``, and beside it a file and a folder that links can lead to; used by the tests too.

    ``@outside`` as a link's target is the absolute path of that file.
    """
    root.mkdir(parents=True)
    (root.parent / "outside").write_text("outside\n")
    (root.parent / "outside-folder").mkdir(exist_ok=True)
    (root.parent / "outside-folder" / "instruction.md").write_text("outside\n")
    for path, content in entries.items():
        file = root / path
        if isinstance(content, dict):
            if "link" in content:
                file.parent.mkdir(parents=True, exist_ok=True)
                os.symlink(content["link"].replace("@", f"{root.parent}/"), file)
            continue
        if content is None:
            file.mkdir(parents=True, exist_ok=True)
            continue
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content, encoding="utf-8", newline="")


# --- texts ----------------------------------------------------------------------------------------------------------------------------


def instructions() -> Iterator[str]:
    yield from ("", "\n", "a", "a\n", "\n\na\n", "a\r\nb\r\n", "a\rb", "  \n\t\na\n", "\n a")
    yield from (
        "<!-- canary 1 -->\na",
        "# my CANARY deployment\n\ntext",
        "\n# canary\na",
        "# canary\n# canary two\n\n\na\n# canary",
        "#canary",
        "a # canary",
    )
    yield from (
        "<!-- canary -->",
        "  <!-- Canary -->  \r\n\r\na",
        "<!-- canary\n-->\na",
        "<!-- harbor-canary GUID x -->\nDo it.\n",
        "<!-- x -->\n# canary\na",
    )
    yield from ("\u2028# canary\na", "\x0c\na", "# ca\nnary")


def version_lists() -> Iterator[list[str]]:
    yield from (["1.0", "head", "2.0"], ["1.0", "1.10", "1.9"], ["a", "b"], ["1.0rc1", "1.0"], ["1.0.dev1", "1.0a1"], ["1.0.post1", "1.0"])
    yield from (
        ["1.0", "1.0.0"],
        ["1.0.0", "1.0"],
        ["v2", "1.9"],
        ["1!0.1", "9"],
        ["x", "0.1"],
        ["1.0+a", "1.0"],
        ["1.0+2", "1.0+10", "1.0+a"],
    )
    yield from (
        ["2024-01-01", "2024.1.2"],
        ["1.0-1", "1.0"],
        ["latest", "stable"],
        ["1.0b2", "1.0b10", "1.0rc1"],
        ["1.0.dev2", "1.0.post1.dev1", "1.0"],
    )
    yield from (["HEAD", "1"], ["1.0.alpha", "1.0.beta-2"], ["1.0pre1", "1.0c2"])


# --- Harbor's answers -----------------------------------------------------------------------------------------------------------------


def answers() -> dict[str, Any]:
    from harbor.environments.definition import environment_content_hash  # type: ignore[import-not-found]
    from harbor.models.task.config import TaskConfig  # type: ignore[import-not-found]
    from harbor.models.task.task import Task, strip_canary  # type: ignore[import-not-found]
    from harbor.publisher.packager import Packager  # type: ignore[import-not-found]
    from harbor.registry.client.base import resolve_version  # type: ignore[import-not-found]

    configs: list[dict[str, Any]] = []
    for text in config_texts():
        try:
            config = TaskConfig.model_validate_toml(text)
        except (ValueError, ArithmeticError):
            configs.append({"toml": text, "config": None})
        else:
            configs.append({"toml": text, "config": reduced(config.model_dump(mode="json", exclude_defaults=True))})
    tasks: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as temporary:
        for name, entries in folders():
            folder = Path(temporary) / name
            build_folder(folder, entries)
            answer: dict[str, Any] = {
                "name": name,
                "entries": entries,
                "valid": Task.is_valid_dir(folder),
                "valid_without_verification": Task.is_valid_dir(folder, disable_verification=True),
            }
            try:
                answer["digest"] = Packager.compute_content_hash(folder)[0]
                answer["files"] = [str(file.relative_to(folder)) for file in Packager.collect_files(folder)]
            except (OSError, ValueError):
                answer["digest"] = answer["files"] = None
            answer["environment_id"] = environment_content_hash(folder / "environment", docker_image="image:1")
            tasks.append(answer)
        texts: list[dict[str, str]] = []
        for text in instructions():
            file = Path(temporary) / "instruction.md"
            file.write_text(text, encoding="utf-8", newline="")
            texts.append({"text": text, "instruction": strip_canary(file.read_text())})
    versions = [{"versions": names, "chosen": resolve_version(names)} for names in version_lists()]
    return {"configs": configs, "tasks": tasks, "instructions": texts, "versions": versions}


def reduced(config: dict[str, Any]) -> dict[str, Any]:
    """A dump without defaults: sections that say nothing left out, artifacts as tables, only numbers that JSON has."""
    for holder in (config, *(config.get("steps") or ())):
        if "artifacts" in holder:
            holder["artifacts"] = [{"source": entry} if isinstance(entry, str) else entry for entry in holder["artifacts"]]
    return {key: plain(value) for key, value in config.items() if value != {}}


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return f"float {value}"
    return value


def main() -> int:
    warnings.simplefilter("ignore")
    found = answers()
    status = 0
    for name, value in found.items():
        file = DATA / f"harbor_{name}.json"
        text = "[\n" + ",\n".join(json.dumps(item, sort_keys=True) for item in value) + "\n]\n"
        if "--write" in sys.argv:
            file.write_text(text)
        elif json.loads(file.read_text()) != json.loads(text):
            print(f"{file.name} differs from what Harbor says", file=sys.stderr)
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
