"""Write the CRDs from the models: ``python -m seatrial.api.crdgen [--check]``.

Why our own generator: a structural schema knows fewer words than JSON Schema, and the API server refuses the rest. What pydantic
emits is translated here, and a list of allowed keywords at the end catches what was missed.
"""

from __future__ import annotations

import argparse
import copy
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from seatrial.api.evaljob import EvalJob
from seatrial.api.meta import CEL, INT_OR_STRING, LIST_MAP_KEYS, LIST_TYPE, PRESERVE, Resource
from seatrial.api.names import CATEGORY, GROUP, PLURALS, VERSION
from seatrial.api.task import Task
from seatrial.api.taskset import Taskset

KINDS: Final[tuple[type[Resource], ...]] = (Task, Taskset, EvalJob)

Schema = dict[str, Any]

WORDS: Final = (
    *("description", "type", "format", INT_OR_STRING, "anyOf", "enum", "pattern", "minLength", "maxLength"),
    *("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum", "default", "minItems", "maxItems", LIST_TYPE, LIST_MAP_KEYS),
    *("minProperties", "maxProperties", PRESERVE, CEL, "required", "properties", "items", "additionalProperties"),
)
"""Every keyword that may come out, in the order in which a schema is written."""

_HEADER: Final = "# Generated from operator/src/seatrial/api by `make generate`; do not edit.\n"


class NotStructural(Exception):
    """A model uses something that a structural schema cannot express."""


# --- schema ---------------------------------------------------------------------------------------------------------------------------


def structural_schema(kind: type[Resource]) -> Schema:
    """OpenAPI v3 schema of one kind.

    Raises:
        NotStructural: the model has a union, a tuple of fixed length, or another word that the API server refuses.
    """
    emitted = kind.model_json_schema(by_alias=True, mode="validation")
    definitions = emitted.pop("$defs", {})
    properties = emitted["properties"]
    spec = _translate(properties["spec"], definitions, path="spec")
    status = _without_defaults(_translate(properties["status"], definitions, path="status"))
    schema: Schema = {
        "type": "object",
        "description": _one_line(kind.__doc__ or ""),
        **({CEL: [rule.raw() for rule in kind.RULES]} if kind.RULES else {}),
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string", "description": "Version of this shape: seatrial.dev/v1alpha1."},
            "kind": {"type": "string", "description": f"Name of this kind: {kind.__name__}."},
            "metadata": {"type": "object"},
            "spec": spec,
            "status": status,
        },
    }
    _check(schema, path=kind.__name__)
    return schema


def _translate(node: Mapping[str, Any], definitions: Mapping[str, Schema], *, path: str) -> Schema:
    node = _inline(node, definitions, path=path)
    result: Schema = {}
    for word, value in node.items():
        match word:
            case "title":
                pass
            case "properties":
                result[word] = {name: _translate(item, definitions, path=f"{path}.{name}") for name, item in value.items()}
            case "items":
                result[word] = _translate(value, definitions, path=f"{path}[]")
            case "additionalProperties":
                if PRESERVE not in node and isinstance(value, Mapping):
                    result[word] = _translate(value, definitions, path=f"{path}{{}}")
            case "const":
                result["enum"] = [value]
            case "exclusiveMinimum":
                result |= {"minimum": value, "exclusiveMinimum": True}
            case "exclusiveMaximum":
                result |= {"maximum": value, "exclusiveMaximum": True}
            case "description":
                result[word] = _one_line(value)
            case _:
                result[word] = value
    if result.get(INT_OR_STRING):
        del result["type"]
        result["anyOf"] = [{"type": "integer"}, {"type": "string"}]
    if "default" in result:
        default = _prune_default(result["default"], result)
        if default is None:
            del result["default"]
        else:
            result["default"] = default
    # A foreign keyword goes last; _check refuses it by its path.
    return {word: result[word] for word in (*WORDS, *sorted(result.keys() - set(WORDS))) if word in result}


def _inline(node: Mapping[str, Any], definitions: Mapping[str, Schema], *, path: str) -> Schema:
    """``node`` with its reference or its ``anyOf: [X, null]`` put in place; what the field says wins over what the type says."""
    result = dict(node)
    while True:
        if "$ref" in result:
            result = _merge(definitions[result.pop("$ref").removeprefix("#/$defs/")], result)
        elif "anyOf" in result:
            options = [option for option in result.pop("anyOf") if option != {"type": "null"}]
            if len(options) != 1:
                raise NotStructural(f"{path}: a union of {len(options)} types")
            result = _merge(options[0], result)
        elif "prefixItems" in result:
            raise NotStructural(f"{path}: a tuple of fixed length")
        else:
            return result


def _merge(inner: Mapping[str, Any], outer: Mapping[str, Any]) -> Schema:
    rules = [*inner.get(CEL, ()), *outer.get(CEL, ())]
    return {**inner, **outer, **({CEL: rules} if rules else {})}


def _prune_default(default: Any, schema: Schema) -> Any:
    """``default`` without nulls and without what the nested defaults say anyway; None if it is null itself."""
    if not isinstance(default, Mapping) or "properties" not in schema:
        return default
    properties = schema["properties"]
    pruned = {name: _prune_default(value, properties[name]) for name, value in default.items() if value is not None}
    return {name: value for name, value in pruned.items() if value != properties[name].get("default")}


def _without_defaults(schema: Schema) -> Schema:
    """A default in status would be shown as if the operator had said so."""
    result = {word: value for word, value in schema.items() if word != "default"}
    if "properties" in result:
        result["properties"] = {name: _without_defaults(item) for name, item in result["properties"].items()}
    for word in ("items", "additionalProperties"):
        if word in result:
            result[word] = _without_defaults(result[word])
    return result


def _check(schema: Schema, *, path: str) -> None:
    if foreign := schema.keys() - set(WORDS):
        raise NotStructural(f"{path}: {', '.join(sorted(foreign))}")
    if schema.get("type") == "array" and ("maxItems" not in schema or LIST_TYPE not in schema):
        raise NotStructural(f"{path}: a list needs maxItems and a list type")
    if schema.get("type") == "string" and not schema.keys() & {"maxLength", "enum"} and path.count(".") > 1:
        raise NotStructural(f"{path}: a string needs maxLength")
    if schema.keys() & {"additionalProperties", PRESERVE} and "maxProperties" not in schema:
        raise NotStructural(f"{path}: a map needs maxProperties")
    for name, item in schema.get("properties", {}).items():
        if "description" not in item and name != "metadata":
            raise NotStructural(f"{path}.{name}: no description")
        _check(item, path=f"{path}.{name}")
    for word, suffix in (("items", "[]"), ("additionalProperties", "{}")):
        if word in schema:
            _check(schema[word], path=path + suffix)


def _one_line(text: str) -> str:
    return " ".join(text.split())


# --- CRD ------------------------------------------------------------------------------------------------------------------------------


def build_crd(kind: type[Resource]) -> dict[str, Any]:
    """The CustomResourceDefinition of one kind."""
    name = kind.__name__
    plural = PLURALS[name]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "names": {
                "categories": [CATEGORY],
                "kind": name,
                "listKind": f"{name}List",
                "plural": plural,
                "shortNames": list(kind.SHORT_NAMES),
                "singular": name.lower(),
            },
            "scope": "Namespaced",
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "additionalPrinterColumns": [_column(column) for column in kind.COLUMNS],
                    "schema": {"openAPIV3Schema": structural_schema(kind)},
                    "subresources": {"status": {}},
                }
            ],
        },
    }


def _column(column: Any) -> dict[str, Any]:
    body = {"name": column.name, "type": column.type, "jsonPath": column.path, "description": column.description}
    return {**body, "priority": column.priority} if column.priority else body


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def render(value: object) -> str:
    """YAML in the order of ``value``, without anchors."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, width=130, allow_unicode=True)


def render_template(crd: Mapping[str, Any]) -> str:
    """The chart's copy: behind a switch, and kept when the chart goes."""
    body = copy.deepcopy(dict(crd))
    body["metadata"] = {**body["metadata"], "annotations": {"helm.sh/resource-policy": "keep"}}
    text = render(body).replace("{{", '{{ "{{" }}')
    return f"{_HEADER}{{{{- if .Values.crds.install }}}}\n{text}{{{{- end }}}}\n"


def generated_files(root: Path) -> dict[Path, str]:
    """Every generated file below ``root`` with its content."""
    files: dict[Path, str] = {}
    for kind in KINDS:
        crd = build_crd(kind)
        name = f"{PLURALS[kind.__name__]}.yaml"
        files[root / "crds" / name] = _HEADER + render(crd)
        files[root / "charts/seatrial/templates/crds" / name] = render_template(crd)
    return files


def main(arguments: list[str] | None = None) -> int:
    """Exit code 0, or 1 when ``--check`` finds a file that differs."""
    parser = argparse.ArgumentParser(prog="python -m seatrial.api.crdgen", description="Write the CRDs from the models.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail when a file differs")
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[4], help="folder of the repository")
    options = parser.parse_args(arguments)
    changed = [path for path, text in generated_files(options.root).items() if not path.is_file() or path.read_text() != text]
    for path in changed:
        if options.check:
            sys.stderr.write(f"{path.relative_to(options.root)} differs from the models: run `make generate`\n")
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(generated_files(options.root)[path])
        sys.stdout.write(f"wrote {path.relative_to(options.root)}\n")
    return 1 if changed and options.check else 0


if __name__ == "__main__":
    raise SystemExit(main())
