from __future__ import annotations

import math
from typing import Any

import pytest

from seatrial.scoring.builtin import (
    BUILT_IN,
    Bleu,
    EvidencePresence,
    ExactMatch,
    Metric,
    MetricFailed,
    NumberCheck,
    Rouge,
    StringCheck,
    TokenF1,
    ToolArgumentMatchesInput,
    ToolCallCount,
    bleu,
    longest_common,
    render,
)

CALLS = [{"function_name": "search", "arguments": {"q": "cats"}}, {"function_name": "search", "arguments": {"q": "dogs"}}, "noise"]
ROW: dict[str, Any] = {
    "reference": "Done",
    "inputs": {"query": "dogs", "n": 3},
    "sample": {"output_text": "The task is done!", "trajectory": {"steps": [{"tool_calls": CALLS}, {}, 7]}, "evidence": {"logs": {}}},
}


def texts(reference: str, candidate: str) -> dict[str, Any]:
    return {"reference": reference, "sample": {"output_text": candidate}}


@pytest.mark.parametrize(("text", "value"), [("Done", 1.0), ("  done! ", 1.0), ("The done", 1.0), ("done it", 0.0), ("", 0.0)])
def test_exact_match_ignores_case_punctuation_articles_and_space(text: str, value: float) -> None:
    assert ExactMatch(reference="Done", candidate="{{sample.output_text}}").compute(texts("", text)) == {"exact-match": value}


def test_a_bare_expression_keeps_its_type_and_anything_else_is_text() -> None:
    assert render("{{ inputs.n }}", ROW) == 3
    assert render("n={{inputs.n}}, {{reference}}", ROW) == "n=3, Done"
    assert render("plain", ROW) == "plain"
    for template in ("{{ nothing }}", "{{ inputs.query.upper }}", "{{ inputs.__class__ }}"):
        with pytest.raises(MetricFailed, match="is not defined for this trial"):
            render(template, ROW)
    assert render("{{ inputs['n'] }}{% for x in y %}", ROW) == "{{ inputs['n'] }}{% for x in y %}"


@pytest.mark.parametrize(
    ("operation", "right", "value"),
    [
        ("equals", "abc", 1.0),
        ("==", "ab", 0.0),
        ("!=", "ab", 1.0),
        ("<>", "abc", 0.0),
        ("not equals", "x", 1.0),
        ("contains", "b", 1.0),
        ("not contains", "b", 0.0),
        ("startswith", "ab", 1.0),
        ("endswith", "ab", 0.0),
    ],
)
def test_string_checks(operation: Any, right: str, value: float) -> None:
    assert StringCheck("abc", operation, right).compute({}) == {"string-check": value}


@pytest.mark.parametrize(
    ("left", "operation", "right", "value"),
    [
        ("{{inputs.n}}", "==", "3.0", 1.0),
        ("{{inputs.n}}", "!=", "3", 0.0),
        ("2", "<", "3", 1.0),
        ("3", ">=", "3", 1.0),
        ("4", "<=", "3", 0.0),
        ("4", ">", "3", 1.0),
        ("1.05", "absolute difference", "1", 1.0),
        ("1.2", "absolute difference", "1", 0.0),
    ],
)
def test_number_checks(left: str, operation: Any, right: str, value: float) -> None:
    assert NumberCheck(left, operation, right, epsilon=0.1).compute(ROW) == {"number-check": value}


def test_a_number_check_of_no_number_is_nan_and_so_never_a_score() -> None:
    (value,) = NumberCheck("{{reference}}", "==", "3").compute(ROW).values()
    assert isinstance(value, float)
    assert math.isnan(value)


@pytest.mark.parametrize(
    ("reference", "candidate", "value"),
    [
        ("a cat sat", "the cat sat", 1.0),
        ("cat sat down", "cat ran", 0.4),
        ("x", "y", 0.0),
        ("", "", 1.0),
        ("x", "", 0.0),
        ("b b", "b", 2 / 3),
    ],
)
def test_token_f1(reference: str, candidate: str, value: float) -> None:
    assert TokenF1("{{reference}}").compute(texts(reference, candidate)) == {"f1": pytest.approx(value)}


def test_bleu_has_its_hand_computed_value() -> None:
    reference, candidate = ["the", "cat", "is", "on", "the", "mat"], ["the", "cat", "sat", "on", "the", "mat"]
    precisions = (5 / 6, (3 + 1) / (5 + 1), (1 + 1) / (4 + 1), (0 + 1) / (3 + 1))
    assert bleu(reference, candidate) == pytest.approx(math.prod(precisions) ** 0.25)
    assert bleu(reference, reference) == pytest.approx(1.0)
    assert bleu(reference, reference[:3]) == pytest.approx(math.exp(1 - 6 / 3) * math.prod((1, 1, 1, 1)) ** 0.25)
    assert (bleu([], ["x"]), bleu(["x"], []), bleu(["x"], ["y"])) == (0.0, 0.0, 0.0)
    assert Bleu("{{reference}}").compute(texts("a b c d", "a b c d")) == {"bleu": pytest.approx(1.0)}


def test_rouge_has_its_hand_computed_values() -> None:
    found = Rouge("{{reference}}").compute(texts("The cat sat on the mat.", "the cat lay on a mat"))
    assert found == {
        "rouge_1": pytest.approx(2 * 4 / 12),
        "rouge_2": pytest.approx(2 * 1 / 10),
        "rouge_3": 0.0,
        "rouge_L": pytest.approx(2 * 4 / 12),
    }
    assert longest_common("abcbdab", "bdcaba") == 4


def test_tool_calls_are_counted_and_their_arguments_compared() -> None:
    assert ToolCallCount().compute(ROW) == {"count": 2}
    assert ToolCallCount("fetch").compute(ROW) == {"count": 0}
    assert ToolArgumentMatchesInput("search", "q", "{{inputs.query}}").compute(ROW) == {"matches": True}
    assert ToolArgumentMatchesInput("search", "q", "birds").compute(ROW) == {"matches": False}


def test_a_trial_without_a_trajectory_is_that_metrics_failure() -> None:
    with pytest.raises(MetricFailed, match="no trajectory"):
        ToolCallCount().compute({"sample": {}})


def test_evidence_is_there_or_not() -> None:
    assert EvidencePresence("logs").compute(ROW) == {"present": True}
    assert EvidencePresence("trace").compute(ROW) == {"present": False}


def test_every_metric_declares_what_it_reports() -> None:
    made: list[Metric] = [
        ExactMatch("x"),
        StringCheck("a", "==", "b"),
        NumberCheck("1", "==", "1"),
        TokenF1("x"),
        Bleu("x"),
        Rouge("x"),
        ToolCallCount(),
        ToolArgumentMatchesInput("search", "q", "x"),
        EvidencePresence("x"),
    ]
    assert [metric.type for metric in made] == list(BUILT_IN)
    for metric in made:
        assert [spec.name for spec in metric.outputs] == list(metric.compute(ROW))
