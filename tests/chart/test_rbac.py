"""The documented rights are the chart's."""

from __future__ import annotations

import pytest
from tests import rights

from .conftest import Helm
from .test_chart import bound_to_operator, values


@pytest.mark.parametrize(
    ("section", "namespace"),
    [
        ("In each namespace of trials", "evals"),
        ("In the operator's own namespace", "seatrial-system"),
        ("In each of `sharedNamespaces`", "suites"),
    ],
)
def test_the_documented_rights_are_those_of_the_chart(helm: Helm, section: str, namespace: str) -> None:
    found = bound_to_operator(helm.objects(values(namespaces=["evals"], sharedNamespaces=["suites"])))
    (role,) = [item for item in found if item["metadata"]["namespace"] == namespace]
    assert rights.of_rules(role["rules"]) == rights.documented(section)


@pytest.mark.parametrize(
    ("section", "name", "value"),
    [
        ("With `builds.repository`", "seatrial", {"builds": {"repository": "registry.example.com/tasks"}}),
        ("With `kueue.enabled`", "seatrial", {"kueue": {"enabled": True}}),
        ("With `kueue.enabled`, in the cluster", "seatrial-kueue", {"kueue": {"enabled": True}}),
    ],
)
def test_further_rights_come_with_their_value(helm: Helm, section: str, name: str, value: dict[str, object]) -> None:
    def given(**chosen: object) -> set[rights.Right]:
        found = bound_to_operator(helm.objects(values(namespaces=["evals"], **chosen)))
        return {right for item in found if item["metadata"]["name"] == name for right in rights.of_rules(item["rules"])}

    assert given(**value) - given() == rights.documented(section)


def test_what_is_used_on_occasion_is_given() -> None:
    assert rights.documented("Used on occasion only") < rights.documented("In each namespace of trials")
