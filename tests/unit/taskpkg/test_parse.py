from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seatrial.taskpkg.allowlist import HostEntry, HostKind, parse_host
from seatrial.taskpkg.instruction import join_instructions, read_instruction, record_instruction
from seatrial.taskpkg.locate import key_lines
from seatrial.taskpkg.model import NetworkMode, NetworkPolicy, TaskConfig, VerifierMode
from seatrial.taskpkg.names import MAX_CHARS, name_collisions, object_name
from seatrial.taskpkg.parse import Problem, parse_task_toml
from seatrial.taskpkg.templates import Variable, is_sensitive_name, resolve, variable_of


def read(text: str) -> TaskConfig:
    config, problems = parse_task_toml(text)
    assert config is not None, problems
    return config


@pytest.mark.conforms("H-1")
def test_an_empty_file_has_harbors_defaults() -> None:
    config = read("")
    assert (config.agent.timeout_sec, config.verifier.timeout_sec, config.environment.build_timeout_sec) == (None, 600.0, 600.0)
    assert config.baseline_policy() == NetworkPolicy(NetworkMode.PUBLIC)
    assert (config.environment.cpus, config.environment.memory_mb, config.environment.storage_mb, config.environment.gpus) == (None,) * 4
    assert (config.schema_version, config.is_multi_step, config.native_name("folder")) == ("1.4", False, "folder")


@pytest.mark.conforms("H-2", "H-21")
def test_unknown_keys_and_sections_are_accepted_with_a_warning_that_suggests_the_right_key() -> None:
    config, problems = parse_task_toml("[agent]\ntimeout_secs = 5\n[sandbox]\nx = 1\n[metadata]\nanything = 1\n")
    assert config is not None
    assert problems == (
        Problem(
            "warning",
            "unknown-key",
            "task.toml",
            "agent.timeout_secs",
            2,
            "agent.timeout_secs is not a key of task.toml and is ignored",
            "write timeout_sec",
        ),
        Problem(
            "warning",
            "unknown-key",
            "task.toml",
            "sandbox",
            3,
            "sandbox is not a key of task.toml and is ignored",
            "remove it, or keep free-form data in [metadata]",
        ),
    )


@pytest.mark.conforms("H-3", "H-6", "H-7")
def test_lax_and_legacy_values_become_what_harbor_makes_of_them() -> None:
    config = read('[agent]\ntimeout_sec = "60"\n[environment]\ncpus = 2.0\nmemory = "1.5g"\nstorage = "512K"\nallow_internet = false\n')
    assert (config.agent.timeout_sec, repr(config.environment.cpus)) == (60.0, "2")
    assert (config.environment.memory_mb, config.environment.storage_mb) == (1536, 0)
    assert config.baseline_policy() == NetworkPolicy(NetworkMode.NO_NETWORK)


@pytest.mark.conforms("H-21")
def test_dropped_and_deprecated_values_are_visible() -> None:
    text = (
        '[environment]\nmemory = 2048\nstorage = "1G"\nallow_internet = false\nnetwork_mode = "public"\n'
        "[verifier.environment]\nallow_internet = false\n"
    )
    config, problems = parse_task_toml(text)
    assert config is not None
    assert config.environment.memory_mb is None
    assert [(problem.rule, problem.key, problem.line) for problem in problems] == [
        ("dropped-value", "environment.memory", 2),
        ("legacy-key", "environment.storage", 3),
        ("ignored-key", "environment.allow_internet", 4),
        ("legacy-key", "verifier.environment.allow_internet", 7),
    ]


@pytest.mark.conforms("H-14")
def test_a_task_is_named_by_its_section_else_by_its_folder() -> None:
    assert (read('[task]\nname = "org/name"\n').native_name("folder"), read('[task]\nname = "org/name"\n').short_name("folder")) == (
        "org/name",
        "name",
    )
    assert (read("").native_name("folder"), read("").short_name("folder")) == ("folder", "folder")


def test_a_config_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        read("").schema_version = "2"  # type: ignore[misc]


@pytest.mark.conforms("H-10")
def test_the_verifiers_mode_follows_step_then_task_then_environment() -> None:
    text = (
        '[verifier.environment]\ncpus = 1\n[[steps]]\nname = "a"\n[[steps]]\nname = "b"\n[steps.verifier]\nenvironment_mode = "shared"\n'
        '[[steps]]\nname = "c"\n[steps.verifier.environment]\ncpus = 3\n'
    )
    config = read(text)
    assert config.steps is not None
    assert config.verifier_mode() is VerifierMode.SEPARATE
    assert [config.verifier_mode(step) for step in config.steps] == [VerifierMode.SEPARATE, VerifierMode.SHARED, VerifierMode.SEPARATE]
    environments = [config.verifier_environment(step) for step in config.steps]
    assert [environment and environment.cpus for environment in environments] == [1, None, 3]
    assert read("").verifier_mode() is VerifierMode.SHARED


@pytest.mark.conforms("H-8")
def test_network_policies_of_phases_fall_back_to_their_baseline() -> None:
    text = (
        '[environment]\nnetwork_mode = "allowlist"\n[agent]\nnetwork_mode = "no-network"\n'
        '[verifier.environment]\nnetwork_mode = "allowlist"\nallowed_hosts = ["A.com."]\n'
        '[[steps]]\nname = "a"\n[steps.agent]\nnetwork_mode = "public"\n'
    )
    config = read(text)
    assert config.steps is not None
    assert config.baseline_policy() == NetworkPolicy(NetworkMode.ALLOWLIST, ())
    assert (config.agent_policy(), config.agent_policy(config.steps[0])) == (
        NetworkPolicy(NetworkMode.NO_NETWORK),
        NetworkPolicy(NetworkMode.PUBLIC),
    )
    assert config.verifier_policy() == NetworkPolicy(NetworkMode.ALLOWLIST, ("a.com",))
    assert read('[environment]\nnetwork_mode = "no-network"\n').verifier_policy() == NetworkPolicy(NetworkMode.NO_NETWORK)


@pytest.mark.parametrize(
    ("text", "rule", "line"),
    [
        pytest.param(b"a = 1\n# \xff\n", "encoding", 2, id="not-utf8"),
        pytest.param("\ufeffa = 1\n", "encoding", 1, id="byte-order-mark"),
        pytest.param("a = 1\nb = [1,\n", "toml-syntax", 3, id="open-list"),
        pytest.param("a = {\n  b = 1,\n}\n", "toml-syntax", 1, id="toml-1.1"),
        pytest.param("a = " + "[" * 5000 + "]" * 5000, "toml-syntax", None, id="nested"),
        pytest.param("a = 2024-13-01\n", "toml-syntax", None, id="date"),
        pytest.param("a = " + "9" * 5000, "toml-syntax", None, id="huge-number"),
    ],
)
def test_text_that_is_no_toml_is_one_problem_with_its_line(text: str | bytes, rule: str, line: int | None) -> None:
    config, problems = parse_task_toml(text)
    assert config is None
    assert [(problem.severity, problem.rule) for problem in problems] == [("error", rule)]
    assert line is None or problems[0].line == line


def test_every_key_is_found_on_its_line() -> None:
    text = (
        'a = 1\n# b = 2\n"q k".c = """x\n[no]\n"""\n'
        "[t]\nlist = [\n  1, # one\n  {x = 1, y = '''\n[n]'''}, 2\n]\n"
        "[[s]]\nname = 'a'\n[[s.u]]\nv = 1\n[[s]]\n[s.w]\nz = 1979-05-27 07:32:00 # c\nend = '\"'\n"
    )
    assert key_lines(text) == {
        ("a",): 1,
        ("q k",): 3,
        ("q k", "c"): 3,
        ("t",): 6,
        ("t", "list"): 7,
        ("t", "list", 0): 8,
        ("t", "list", 1): 9,
        ("t", "list", 1, "x"): 9,
        ("t", "list", 1, "y"): 9,
        ("t", "list", 2): 10,
        ("s",): 12,
        ("s", 0): 12,
        ("s", 0, "name"): 13,
        ("s", 0, "u"): 14,
        ("s", 0, "u", 0): 14,
        ("s", 0, "u", 0, "v"): 15,
        ("s", 1): 16,
        ("s", 1, "w"): 17,
        ("s", 1, "w", "z"): 18,
        ("s", 1, "w", "end"): 19,
    }


@pytest.mark.conforms("H-9")
@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        (" Example.COM. ", HostEntry("example.com", HostKind.HOST)),
        ("localhost", HostEntry("localhost", HostKind.HOST)),
        ("*.a.b", HostEntry("*.a.b", HostKind.WILDCARD)),
        ("10.0.0.1", HostEntry("10.0.0.1", HostKind.ADDRESS)),
        ("2001:DB8:0::1", HostEntry("2001:db8::1", HostKind.ADDRESS)),
        ("10.0.0.0/8", HostEntry("10.0.0.0/8", HostKind.NETWORK)),
        ("2001:db8::/32", HostEntry("2001:db8::/32", HostKind.NETWORK)),
    ],
)
def test_allowed_hosts_are_normalised_and_classified(entry: str, expected: HostEntry) -> None:
    assert parse_host(entry) == expected


@pytest.mark.conforms("H-9")
@pytest.mark.parametrize(
    "entry",
    [
        "https://a.com",
        "a.com:443",
        "a.com/x",
        "[::1]",
        "*",
        "a.*.com",
        "",
        " ",
        "10.0.0.1/8",
        "a_b.com",
        "*.1.2.3.4",
        "fe80::1%eth0",
        "a" * 64,
    ],
)
def test_other_texts_are_no_allowed_hosts(entry: str) -> None:
    with pytest.raises(ValueError, match=re.escape(repr(entry)) if entry.strip() else "empty"):
        parse_host(entry)


@pytest.mark.conforms("H-18")
def test_extra_instructions_follow_after_a_blank_line() -> None:
    assert join_instructions(read_instruction("# canary\r\n\r\nDo it.\r\n"), ["more", "last"]) == "Do it.\n\n\nmore\n\nlast"


@pytest.mark.conforms("N-5")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (" a \n", "a"),
        ("<!-- SPDX-License-Identifier: MIT -->\na", "a"),
        ("<!--\nSPDX-FileCopyrightText: x\nSPDX-License-Identifier: MIT\n-->\n\n<!-- SPDX-License-Identifier: y -->a", "a"),
        ("<!-- other -->\na", "<!-- other -->\na"),
        ("a <!-- SPDX-License-Identifier: MIT -->", "a <!-- SPDX-License-Identifier: MIT -->"),
        ("<!-- one --> <!-- SPDX-License-Identifier: MIT -->", "<!-- one --> <!-- SPDX-License-Identifier: MIT -->"),
    ],
)
def test_leading_spdx_comments_are_no_part_of_a_record(text: str, expected: str) -> None:
    assert record_instruction(text) == expected


@pytest.mark.parametrize(
    ("value", "variable"),
    [
        ("${A}", Variable("A", None)),
        ("${A:-}", Variable("A", "")),
        ("${A:-x}y}", Variable("A", "x}y")),
        ("${ A }", Variable(" A ", None)),
        ("${A-d}", Variable("A-d", None)),
        ("x${A}", None),
        ("$A", None),
        ("${}", None),
        ("${A:x}", None),
    ],
)
def test_only_a_whole_value_is_a_template(value: str, variable: Variable | None) -> None:
    assert variable_of(value) == variable


def test_a_template_is_resolved_and_an_empty_value_beats_the_default() -> None:
    assert [resolve(value, {"A": "", "B": "b"}) for value in ("${A:-x}", "${B}", "${C:-x}", "C")] == ["", "b", "x", "C"]
    with pytest.raises(KeyError, match="C"):
        resolve("${C}", {})


def test_names_of_secrets_are_recognised() -> None:
    sensitive = ["API_KEY", "my_token", "AUTHOR", "keyboard", "DB_PASSWORD", "credentials"]
    assert [name for name in [*sensitive, "MAX_TOKENS", "PATH"] if is_sensitive_name(name)] == sensitive


@pytest.mark.parametrize(
    ("native_id", "name"),
    [
        ("org/name", "org-name"),
        ("My-Org/Fix_the bug", "my-org-fix-the-bug"),
        ("a..b", "a.b"),
        ("-a.-b-", "a.b"),
        ("org/v1.2", "org-v1.2"),
        ("x" * 200, "x" * 200),
        ("日本", "task-cf2abf0c5b"),
    ],
)
def test_an_object_name_is_derived_from_the_native_id(native_id: str, name: str) -> None:
    assert object_name(native_id) == name
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", object_name(native_id))


def test_long_names_that_begin_alike_stay_different() -> None:
    names = [object_name(f"org/{'x' * 60}-{index}") for index in range(100)] + [
        object_name(f"org/{'x' * 300}-{index}") for index in range(100)
    ]
    assert len(set(names)) == 200
    assert max(map(len, names)) <= MAX_CHARS


def test_colliding_names_are_listed_with_their_ids() -> None:
    assert name_collisions(["a/b", "a-b", "c/d"]) == {"a-b": ("a/b", "a-b")}


@given(st.text(max_size=400))
@settings(max_examples=300, deadline=None)
def test_every_text_has_a_legal_object_name(native_id: str) -> None:
    name = object_name(native_id)
    assert len(name) <= 253
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", name)


TOML_VALUES: Any = st.recursive(
    st.one_of(st.booleans(), st.integers(-(2**40), 2**40), st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), max_size=8)),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=5,
)


def as_toml(value: object) -> str:
    match value:
        case bool():
            return str(value).lower()
        case int():
            return str(value)
        case list():
            return f"[{', '.join(as_toml(item) for item in value)}]"
        case _:
            return '"' + str(value).replace("\\", "\\\\").replace('"', '\\"') + '"'


@given(
    st.sampled_from(["agent", "verifier", "environment", "environment.env", "environment.healthcheck", "solution", "task", "metadata"]),
    st.dictionaries(
        st.sampled_from(
            ["timeout_sec", "user", "cpus", "memory_mb", "memory", "env", "os", "name", "command", "network_mode", "allowed_hosts"]
        ),
        TOML_VALUES,
        max_size=4,
    ),
)
@settings(max_examples=300, deadline=None)
def test_errors_name_keys_of_the_file_and_their_lines(section: str, values: dict[str, object]) -> None:
    lines = [f"[{section}]", *[f"{key} = {as_toml(value)}" for key, value in values.items()]]
    config, problems = parse_task_toml("\n".join(lines))
    errors = [problem for problem in problems if problem.severity == "error"]
    assert (config is None) == bool(errors)
    for problem in errors:
        assert problem.key is not None
        assert problem.key.startswith(section)
        key = problem.key.removeprefix(section).lstrip(".").split(".")[0].split("[")[0]
        assert problem.line == (list(values).index(key) + 2 if key in values else 1)
