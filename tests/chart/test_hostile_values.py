"""What values of the chart may hold, and that nothing in them becomes YAML of its own."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

import pytest

from seatrial.effects.settings import Settings

from .conftest import CHART, Helm, Refused
from .test_chart import PERMUTATIONS, merged, one, values

SCHEMA = json.loads((CHART / "values.schema.json").read_text())
EVERYTHING = merged(
    merged(copy.deepcopy(PERMUTATIONS["registry"]), PERMUTATIONS["full"]),
    {
        "bundledStore": {"enabled": True, "persistence": {"storageClassName": "fast"}},
        "bundledRegistry": {"persistence": {"enabled": True, "storageClassName": "fast"}},
        "builds": {"args": {"BASE": "debian"}, "pushSecret": "push", "registrySecret": "pull"},
        "sharedNamespaces": ["suites"],
        "metrics": {"service": {"enabled": True}, "dashboards": {"enabled": True}},
        "crds": {"install": False},
    },
)
Path = tuple[str | int, ...]


def texts(node: Mapping[str, Any], chosen: Any, path: Path = ()) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """Every place of a text in the values, with its schema; of maps and lists, those that ``chosen`` has."""
    if node.get("type") == "string":
        yield path, node
    for name, item in node.get("properties", {}).items():
        yield from texts(item, chosen.get(name) if isinstance(chosen, Mapping) else None, (*path, name))
    if isinstance(chosen, Mapping):
        for name in chosen:
            for pattern, item in node.get("patternProperties", {}).items():
                if item and re.search(pattern, name):
                    yield from texts({"type": "string", **item}, chosen[name], (*path, name))
            if isinstance(node.get("additionalProperties"), Mapping):
                yield from texts(node["additionalProperties"], chosen[name], (*path, name))
    if isinstance(chosen, list) and isinstance(node.get("items"), Mapping):
        for number, item in enumerate(chosen):
            yield from texts(node["items"], item, (*path, number))


def takes(node: Mapping[str, Any], text: str) -> bool:
    """Whether the schema takes the text there; ``$`` is the end, as in Go."""
    patterns = [(node.get("pattern", ""), True), (node.get("not", {}).get("pattern"), False)]
    fits = all((re.search(re.sub(r"\$(?=\)|$)", r"\\Z", pattern), text) is not None) is wanted for pattern, wanted in patterns if pattern)
    return fits and len(text) >= node.get("minLength", 0) and "enum" not in node


def put(target: Any, path: Path, text: str) -> None:
    for step in path[:-1]:
        target = target.setdefault(step, {}) if isinstance(target, dict) else target[step]
    target[path[-1]] = text


def shape(node: Any) -> Any:
    """The document without its texts: an injected key, item or other type changes it."""
    if isinstance(node, dict):
        return {name: shape(item) for name, item in node.items()}
    return [shape(item) for item in node] if isinstance(node, list) else type(node)


def shapes(objects: list[dict[str, Any]]) -> list[str]:
    """Of all objects, whatever they are called now."""
    return sorted(json.dumps([item["kind"], shape(item)], default=str, sort_keys=True) for item in objects)


@pytest.mark.parametrize(
    "text",
    [
        'x"y: {z} #\n  - injected: "true"\n---\nkind: Secret',
        "{{ .Release.Name }}",
        "1e3",
        "0123",
        "true",
        "null",
        "~",
        "y: z",
        "- a",
        "a #b",
        "!!x",
    ],
)
def test_every_text_stays_the_text_that_it_was(helm: Helm, text: str) -> None:
    """All at once, wherever the schema takes it."""
    chosen = copy.deepcopy(EVERYTHING)
    # A shared namespace that is one of the trials' too has no Role of its own.
    places = [path for path, node in texts(SCHEMA, EVERYTHING) if takes(node, text) and path[0] != "sharedNamespaces"]
    assert len(places) >= 3
    for path in places:
        put(chosen, path, text)
    assert shapes(helm.objects(chosen)) == shapes(helm.objects(EVERYTHING))


@pytest.mark.parametrize("name", ["true", "null", "1e3", "007", "on"])
def test_names_that_look_like_other_types_stay_names(helm: Helm, name: str) -> None:
    own = {**EVERYTHING, "signingKey": {}}
    expected = shapes(helm.objects(own))
    for chosen, namespace in (({"namespaces": [name]}, "seatrial-system"), ({"fullnameOverride": name}, name)):
        objects = helm.objects({**own, **chosen}, namespace=namespace, release=name)
        assert shapes(objects) == expected
        assert name in {item["metadata"].get("namespace") for item in objects}


URLS = [
    ("s3", "endpoint"),
    ("s3", "externalEndpoint"),
    ("s3", "presignEndpoint"),
    ("webhook", "url"),
    ("tracing", "endpoint"),
]


@pytest.mark.parametrize("path", URLS, ids="/".join)
def test_a_password_in_a_url_is_refused(helm: Helm, path: tuple[str, str]) -> None:
    """These go into ConfigMaps."""
    with pytest.raises(Refused, match="/".join(path)):
        helm.template(values(**{path[0]: {path[1]: "https://user:secret@store.example.com"}}))


def test_a_password_in_a_build_argument_is_refused(helm: Helm) -> None:
    with pytest.raises(Refused, match="builds/args/INDEX"):
        helm.template(values(builds={"repository": "r.example.com/tasks", "args": {"INDEX": "https://user:secret@pip.example.com/simple"}}))


@pytest.mark.parametrize("name", [item.name.upper() for item in fields(Settings) if not item.repr])
def test_a_secret_is_no_setting(helm: Helm, name: str) -> None:
    with pytest.raises(Refused, match="operator/settings"):
        helm.template(values(operator={"settings": {name: "x"}}))


def test_a_setting_that_the_chart_makes_from_a_value_is_refused_by_name(helm: Helm) -> None:
    assert one(helm.objects(values(operator={"settings": {"WORKERS": 8}})), "ConfigMap", "seatrial")["data"]["SEATRIAL_WORKERS"] == "8"
    with pytest.raises(Refused, match=r"operator\.settings\.NAMESPACES: the chart sets it from a value of its own"):
        helm.template(values(operator={"settings": {"NAMESPACES": "kube-system"}}))


@pytest.mark.parametrize(
    "place",
    [
        ("commonLabels",),
        ("operator", "podLabels"),
        ("metrics", "serviceMonitor", "labels"),
        ("metrics", "podMonitor", "labels"),
        ("metrics", "rules", "labels"),
        ("metrics", "dashboards", "labels"),
    ],
    ids=".".join,
)
def test_labels_by_which_the_release_is_chosen_cannot_be_replaced(helm: Helm, place: tuple[str, ...]) -> None:
    chosen = copy.deepcopy(EVERYTHING)
    put(chosen, (*place, "app.kubernetes.io/component"), "other")
    with pytest.raises(Refused, match="/".join(place)):
        helm.template(chosen)


def test_large_numbers_reach_the_operator_as_numbers(helm: Helm) -> None:
    chosen = values(operator={"maxPods": 1_000_000, "settings": {"MAX_TRIALS": 2_000_000, "WRITE_RATE": 2.5}})
    data = one(helm.objects(chosen), "ConfigMap", "seatrial")["data"]
    found = [data[f"SEATRIAL_{name}"] for name in ("MAX_PODS", "MAX_TRIALS", "WRITE_RATE")]
    assert found == ["1000000", "2000000", "2.5"]
