"""Text of a ``task.toml`` to its model, with every problem at once.

Errors are what Harbor refuses. Warnings are what Harbor accepts without a word although it is surely not meant: unknown keys, values
that are dropped, keys of older releases. Source: harbor.md 1.2 and 1.3 (H-1 to H-14, H-20, H-21).

``tomllib`` and not a newer reader: Harbor reads TOML 1.0, and a file that only TOML 1.1 allows would be refused there.
"""

from __future__ import annotations

import difflib
import itertools
import re
import tomllib
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from seatrial.taskpkg.instruction import unify_line_ends
from seatrial.taskpkg.locate import Key, find_line, key_lines
from seatrial.taskpkg.model import TaskConfig, legacy_size_mb

Severity = Literal["error", "warning"]

MAX_PROBLEMS: Final = 200
"""Of one kind in one file; a file with more is no task file, and nobody reads them."""
MAX_DEPTH: Final = 64
MAX_VALUES: Final = 20_000
# Parts of a dotted key, bare or quoted. Possessive, and tried at the start of a word only: linear in the text.
_LONG_KEY: Final = re.compile(r"""(?:(?<![\w-])[\w-]++|"[^"\n]*+"|'[^'\n]*+')(?:[ \t]*+\.[ \t]*+(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')){200}""")


class Problem(NamedTuple):
    """One thing that is wrong or doubtful, and what to do about it."""

    severity: Severity
    rule: str
    """Stable name of the rule, such as ``unknown-key``."""
    file: str
    """Relative to the task folder, or to the suite for problems between tasks."""
    key: str | None
    """Such as ``steps[0].verifier.env.TOKEN``."""
    line: int | None
    """1-based, where known."""
    message: str
    fix: str


# No known key is half as long.
_SUGGEST_CHARS: Final = 60

_Model = TypeVar("_Model", bound=BaseModel)


class TomlDocument:
    """A TOML file that was read, and the lines of its keys (found on first use)."""

    def __init__(self, text: str, data: dict[str, Any], file: str) -> None:
        self.data = data
        self.file = file
        self._text = text
        self._lines: dict[Key, int] | None = None

    def line(self, key: Sequence[str | int]) -> int | None:
        if self._lines is None:
            self._lines = key_lines(self._text)
        return find_line(self._lines, key)

    def problem(self, severity: Severity, rule: str, key: Sequence[str | int], message: str, fix: str) -> Problem:
        return Problem(severity, rule, self.file, key_text(key) or None, self.line(key), message, fix)


def parse_task_toml(text: str | bytes, *, file: str = "task.toml") -> tuple[TaskConfig | None, tuple[Problem, ...]]:
    """Read a ``task.toml``. The config is None exactly if one of the problems is an error; warnings may stand beside a config."""
    document = read_toml(text, file=file)
    if isinstance(document, Problem):
        return None, (document,)
    config, errors = validate_document(TaskConfig, document)
    return config, tuple(sorted((*errors, *_warnings(document)), key=lambda problem: (problem.severity, problem.line or 0)))


def read_toml(text: str | bytes, *, file: str, max_values: int = MAX_VALUES) -> TomlDocument | Problem:
    """Decode and read; line ends are unified first, as Python's text files do it."""
    if isinstance(text, bytes):
        try:
            text = text.decode("utf-8")
        except UnicodeDecodeError as error:
            line = error.object.count(b"\n", 0, error.start) + 1
            return Problem("error", "encoding", file, None, line, "The file is not UTF-8", "Save the file as UTF-8")
    if text.startswith("\ufeff"):
        return Problem("error", "encoding", file, None, 1, "The file starts with a byte order mark", "Save it as UTF-8 without a mark")
    text = unify_line_ends(text)
    if found := _LONG_KEY.search(text):  # tomllib takes minutes for a key of half a million parts
        line = text.count("\n", 0, found.start()) + 1
        return Problem("error", "toml-syntax", file, None, line, "Not a usable key: too many parts", "Shorten the key")
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = re.search(r"\(at line (\d+)", str(error))
        line = int(found[1]) if found else text.count("\n") + 1
        return Problem("error", "toml-syntax", file, None, line, f"Not valid TOML: {error}", "Correct the syntax of this line (TOML 1.0)")
    except RecursionError:
        return Problem("error", "toml-syntax", file, None, None, "Not valid TOML: nested too deeply", "Remove the nesting")
    except ValueError as error:  # such as a date that does not exist, or an integer of thousands of digits
        return Problem("error", "toml-syntax", file, None, None, f"Not valid TOML: {error}", "Correct the value")
    depth, values = _measure(data)
    if depth > MAX_DEPTH:  # whoever writes it as JSON or sends it to another process would fail
        return Problem("error", "toml-syntax", file, None, None, "Not usable: nested too deeply", "Remove the nesting")
    if values > max_values:  # 400,000 wrong elements of a list are 400,000 errors, which take a minute
        return Problem("error", "toml-syntax", file, None, None, f"Not usable: more than {max_values} values", "Move data to other files")
    return TomlDocument(text, data, file)


def _measure(data: Any) -> tuple[int, int]:
    """Levels of nesting (counted a little beyond the bound only) and number of values."""
    depth, values, level = 0, 0, [data]
    while level and depth <= MAX_DEPTH:
        depth += 1
        inner = [item for value in level for item in (value.values() if isinstance(value, dict) else value)]
        values += len(inner)
        level = [item for item in inner if isinstance(item, dict | list)]
    return depth, values


def validate_document(model: type[_Model], document: TomlDocument) -> tuple[_Model | None, tuple[Problem, ...]]:
    """The document as ``model``, or None and one problem for each key that is wrong."""
    try:
        return model.model_validate(document.data), ()
    except ValidationError as error:
        problems: dict[tuple[str, str], Problem] = {}
        for detail in error.errors(include_url=False)[:MAX_PROBLEMS]:
            problem = _problem(detail, document)
            # A union reports each of its types; they are one problem of one key.
            problems.setdefault((problem.key or "", problem.rule), problem)
        return None, tuple(problems.values())


def key_text(key: Sequence[str | int]) -> str:
    """``("steps", 0, "name")`` as ``steps[0].name``."""
    text = ""
    for part in key:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def unknown_keys(
    model: type[BaseModel],
    data: Mapping[str, Any],
    *,
    known: Mapping[Key, frozenset[str]],
) -> Iterator[tuple[Key, str | None]]:
    """Keys of ``data`` that ``model`` does not read, each with the closest known key.

    ``known`` adds keys that are read although no field has their name, by the path of their table (indices left out).
    """
    waiting: list[tuple[Key, type[BaseModel], Any]] = [((), model, data)]
    while waiting:
        path, section, value = waiting.pop(0)
        if isinstance(value, list):
            waiting[:0] = [((*path, index), section, item) for index, item in enumerate(value)]
            continue
        if not isinstance(value, dict):
            continue
        names = section.model_fields.keys() | known.get(tuple(part for part in path if isinstance(part, str)), frozenset())
        below: list[tuple[Key, type[BaseModel], Any]] = []
        for name, item in value.items():
            if name not in names:
                close = difflib.get_close_matches(name, sorted(names), n=1) if len(name) <= _SUGGEST_CHARS else []
                yield (*path, name), close[0] if close else None
            elif name in section.model_fields and (inner := _section_of(section.model_fields[name].annotation)) is not None:
                below.append(((*path, name), inner, item))
        waiting[:0] = below


# --- errors ---------------------------------------------------------------------------------------------------------------------------

_EXPECTED: Final[Mapping[str, str]] = {
    "string_type": "a string in quotes",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing_size": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "dict_type": "a table",
    "model_type": "a table",
    "model_attributes_type": "a table",
    "list_type": "a list",
    "tuple_type": "a list",
    "string_too_short": "text that is not empty",
}
_UNIONS: Final[Mapping[tuple[str, ...], str]] = {
    ("int", "float"): "a number",
    ("str", "int"): "a string or a whole number",
    ("float", "dict[str,float]"): "a number or a table of numbers",
}


def _problem(detail: ErrorDetails, document: TomlDocument) -> Problem:
    key, value, rest = _descend(document.data, detail["loc"])
    rule = detail["type"]
    context = detail.get("ctx", {})
    if "fix" in context:
        below = tuple(int(part) if part.isdigit() else part for part in str(context["key"]).split(".")) if context["key"] else ()
        if below and isinstance(below[0], str) and isinstance(value, dict) and context["key"] in value:
            below = (str(context["key"]),)
        return document.problem("error", rule, (*key, *below), str(context["message"]), str(context["fix"]))
    if rule == "missing":
        return document.problem("error", "missing-key", key, f"{key_text(key)} is missing", f"add {key[-1]} to the table")
    if rule in ("enum", "literal_error"):
        expected = str(context["expected"])
        return document.problem("error", "invalid-value", key, f"{key_text(key)} must be {expected}", f"write {expected}; case counts")
    expected = next((text for names, text in _UNIONS.items() if rest and rest[0] in names), None) or _EXPECTED.get(rule, "")
    if not expected:
        return document.problem("error", "invalid-value", key, f"{key_text(key)}: {detail['msg']}", "correct the value")
    message = f"{key_text(key)} is {_kind(value)}, not {expected}"
    is_author = "authors" in key and expected == "a table"
    return document.problem("error", "wrong-type", key, message, 'write {name = "…"}' if is_author else f"write {expected}")


def _descend(data: Any, location: Sequence[str | int]) -> tuple[Key, Any, tuple[str | int, ...]]:
    """The part of an error's location that is a path in the file, the value there, and the rest (names of union members)."""
    value: Any = data
    for depth, part in enumerate(location):
        child = _child(value, part)
        if child is _ABSENT:
            if isinstance(value, dict) and depth == len(location) - 1 and part != "[key]":
                return tuple(location), None, ()  # the missing key itself
            return tuple(location[:depth]), value, tuple(location[depth:])
        value = child
    return tuple(location), value, ()


_ABSENT: Final = object()


def _child(value: Any, part: str | int) -> Any:
    if isinstance(value, dict):
        return value.get(part, _ABSENT)
    if isinstance(value, list) and isinstance(part, int) and part < len(value):
        return value[part]
    return _ABSENT


def _kind(value: Any) -> str:
    match value:
        case bool():
            return "a boolean"
        case int():
            return "a whole number"
        case float():
            return "a fractional number"
        case str():
            return "a string"
        case list():
            return "a list"
        case dict():
            return "a table"
        case _:
            return "a date or time"


# --- warnings -------------------------------------------------------------------------------------------------------------------------

_LEGACY_ENVIRONMENT: Final = frozenset({"memory", "storage"})
_KNOWN: Final[Mapping[Key, frozenset[str]]] = {
    (): frozenset({"version"}),
    ("environment",): _LEGACY_ENVIRONMENT,
    ("verifier", "environment"): _LEGACY_ENVIRONMENT,
    ("steps", "verifier", "environment"): _LEGACY_ENVIRONMENT,
}


def _warnings(document: TomlDocument) -> Iterator[Problem]:
    data = document.data
    for key, close in itertools.islice(unknown_keys(TaskConfig, data, known=_KNOWN), MAX_PROBLEMS):
        fix = f"write {close}" if close else "remove it, or keep free-form data in [metadata]"
        yield document.problem("warning", "unknown-key", key, f"{key_text(key)} is not a key of task.toml and is ignored", fix)
    if "version" in data and "schema_version" in data:
        yield document.problem("warning", "ignored-key", ("version",), "version is ignored beside schema_version", "remove version")
    elif "version" in data:
        yield document.problem("warning", "legacy-key", ("version",), "version is the old name of schema_version", "rename it")
    for key, table in _environments(data):
        yield from _environment_warnings(document, key, table)


def _environments(data: Mapping[str, Any]) -> Iterator[tuple[Key, Mapping[str, Any]]]:
    steps = data.get("steps")
    places: list[tuple[Key, Any]] = [((), data), (("verifier",), data.get("verifier"))]
    if isinstance(steps, list):
        places += [(("steps", index, "verifier"), step.get("verifier")) for index, step in enumerate(steps) if isinstance(step, dict)]
    for key, holder in places:
        table = holder.get("environment") if isinstance(holder, dict) else None
        if isinstance(table, dict):
            yield (*key, "environment"), table


def _environment_warnings(document: TomlDocument, key: Key, table: Mapping[str, Any]) -> Iterator[Problem]:
    for old, new in (("memory", "memory_mb"), ("storage", "storage_mb")):
        if old not in table:
            continue
        if isinstance(table[old], str):
            megabytes = legacy_size_mb(table[old])
            if megabytes is None:
                continue  # an error already
            message = f"{key_text((*key, old))} is the old form of {new}"
            yield document.problem("warning", "legacy-key", (*key, old), message, f"write {new} = {megabytes}")
        else:
            message = f"{key_text((*key, old))} is not a string and is dropped: there is no limit"
            yield document.problem("warning", "dropped-value", (*key, old), message, f"write {new} = <megabytes>")
    if "allow_internet" in table:
        is_ignored = "network_mode" in table or "allowed_hosts" in table
        message = "allow_internet is ignored beside network_mode or allowed_hosts" if is_ignored else "allow_internet is an old key"
        mode = "no-network" if table["allow_internet"] is False else "public"
        fix = "remove it" if is_ignored else f'write network_mode = "{mode}"'
        yield document.problem("warning", "ignored-key" if is_ignored else "legacy-key", (*key, "allow_internet"), message, fix)


def _section_of(annotation: Any) -> type[BaseModel] | None:
    """The model inside a field's type: ``X``, ``X | None`` or ``tuple[X, ...]``."""
    if isinstance(annotation, type) and not isinstance(annotation, types.GenericAlias):
        return annotation if issubclass(annotation, BaseModel) else None
    if typing.get_origin(annotation) is dict:
        return None
    return next((found for argument in typing.get_args(annotation) if (found := _section_of(argument)) is not None), None)
