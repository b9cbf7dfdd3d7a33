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


def test_what_is_used_on_occasion_is_given() -> None:
    assert rights.documented("Used on occasion only") < rights.documented("In each namespace of trials")
