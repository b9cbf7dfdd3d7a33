"""Metrics over turns: what they get, how they fail, how they add up, and a judge that speaks the real protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, Literal

import pytest
from pydantic import BaseModel
from tests.judge_server import JudgeServer, answer

from seatrial.scoring.groups import FailureGroup, reaches
from seatrial.sdk.judge import ChatJudge, JudgeError, JudgeSettings
from seatrial.sdk.turns import (
    Conversation,
    JudgeMissing,
    QualitativeMetric,
    QualResult,
    QuantitativeMetric,
    QuantResult,
    ScoreInput,
    ToolCall,
    Turn,
    TurnMetric,
    TurnResult,
    evaluate,
    failures,
    input_of,
    turn_outputs,
    turns_of,
)
from seatrial.testing import FakeLLM


class Tone(BaseModel):
    score: float
    label: Literal["on brand", "off brand", "no failure"] = "no failure"


class Words(QuantitativeMetric):
    """Counts words; needs no model."""

    name = "words"

    async def score(self, given: ScoreInput) -> QuantResult:
        return QuantResult(len(given.agent_message.split()), "counted")


class Judged(QuantitativeMetric):
    name = "tone"

    async def score(self, given: ScoreInput) -> QuantResult:
        answer = await self.llm.generate_object(Tone, [{"role": "user", "content": given.agent_message}])
        return QuantResult(answer.score, "judged")


class Brand(QualitativeMetric):
    name = "brand"
    severity = "critical"

    async def evaluate(self, given: ScoreInput) -> QualResult:
        return QualResult("off brand" if "!" in given.agent_message else "no failure", "punctuation")


class Broken(QuantitativeMetric):
    name = "broken"

    async def score(self, given: ScoreInput) -> QuantResult:
        if given.turn_index == 1:
            raise RuntimeError("no idea")
        return QuantResult(5.0, "fine")


TALK = Conversation(
    "task", "trial", (Turn("hi", "hello there"), Turn("book it", "done!", (ToolCall("book", {"n": 1}, "ok"),))), goal="Book."
)


def run(*metrics: TurnMetric, judge: Any = None, talks: tuple[Conversation, ...] = (TALK,), concurrency: int = 4) -> tuple[TurnResult, ...]:
    return asyncio.run(evaluate(talks, metrics, judge=judge, concurrency=concurrency))


@pytest.mark.conforms("N-180", "N-184", "N-187")
def test_each_metric_is_called_once_a_turn_and_its_result_is_under_its_name() -> None:
    assert run(Words(), Brand()) == (
        TurnResult("trial", 0, {"words": QuantResult(2.0, "counted"), "brand": QualResult("no failure", "punctuation")}),
        TurnResult("trial", 1, {"words": QuantResult(1.0, "counted"), "brand": QualResult("off brand", "punctuation")}),
    )


@pytest.mark.conforms("N-181", "N-182")
def test_a_metric_sees_its_turn_and_only_what_came_before() -> None:
    assert input_of(TALK, 1) == ScoreInput(
        user_message="book it",
        agent_message="done!",
        goal="Book.",
        profile="",
        knowledge=(),
        tool_calls=(ToolCall("book", {"n": 1}, "ok"),),
        history=(Turn("hi", "hello there"),),
        turn_index=1,
    )
    assert input_of(TALK, 0).history == ()


@pytest.mark.conforms("N-188")
def test_a_metric_that_raises_has_no_value_for_that_turn_and_the_rest_goes_on() -> None:
    first, second = run(Broken(), Words())
    assert (first.results["broken"], first.errors) == (QuantResult(5.0, "fine"), {})
    assert (second.errors, list(second.results)) == ({"broken": "RuntimeError: no idea"}, ["words"])
    (broken, _) = turn_outputs([TALK], [Broken(), Words()], [first, second])
    assert (broken.name, broken.range().mean) == ("broken.value", 5.0)


@pytest.mark.conforms("N-183", "N-186", "N-193")
def test_a_judge_is_set_before_the_first_turn_and_asking_earlier_is_a_clear_error() -> None:
    with pytest.raises(JudgeMissing, match="LLM provider not set on metric 'tone'"):
        asyncio.run(Judged().score(ScoreInput("hi", "hello")))
    fake = FakeLLM({"score": 4.5}, {"score": 2.0})
    assert [result.results["tone"].value for result in run(Judged(), judge=fake)] == [4.5, 2.0]
    assert fake.asked[0] == [{"role": "user", "content": "hello there"}]
    alone = Judged()
    alone.set_llm(FakeLLM({"score": 3.0}))
    assert asyncio.run(alone.score(ScoreInput("hi", "hello"))) == QuantResult(3.0, "judged")


@pytest.mark.conforms("N-190")
def test_failing_labels_become_groups_with_a_severity() -> None:
    results = run(Brand())
    groups = failures([Brand()], results)
    assert groups == (FailureGroup("brand: off brand", None, 1, ("trial",), "off brand", "critical"),)
    assert reaches(groups, "critical") == groups
    (output,) = turn_outputs([TALK], [Brand()], results)
    assert (output.name, output.kind, output.range().mean) == ("brand.failures", "discrete", 1.0)


def test_a_metric_may_say_which_labels_are_failures() -> None:
    class Mild(Brand):
        failure_labels = frozenset({"rude"})

    assert failures([Mild()], run(Mild())) == ()


def test_no_more_calls_run_at_once_than_allowed() -> None:
    running, most = 0, 0

    class Slow(QuantitativeMetric):
        name = "slow"

        async def score(self, given: ScoreInput) -> QuantResult:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0.001)
            running -= 1
            return QuantResult(1.0, "")

    talks = tuple(Conversation("t", str(number), (Turn("a", "b"),) * 3) for number in range(10))
    assert len(run(Slow(), talks=talks, concurrency=3)) == 30
    assert most == 3


def test_what_is_no_metric_and_what_has_a_taken_name_is_refused() -> None:
    with pytest.raises(TypeError, match="extends neither"):
        run(TurnMetric())
    with pytest.raises(ValueError, match="must be unique"):
        run(Words(), Words())


@pytest.mark.parametrize("value", [float("nan"), float("inf"), True, "5"])
def test_a_value_that_is_no_finite_number_is_an_error_of_that_turn(value: Any) -> None:
    class Odd(QuantitativeMetric):
        name = "odd"

        async def score(self, given: ScoreInput) -> QuantResult:
            return QuantResult(value, "")

    assert all("is no finite number" in result.errors["odd"] for result in run(Odd()))


def test_turns_are_read_from_a_trajectory_and_other_shapes_are_left_out() -> None:
    call = {"tool_call_id": "1", "function_name": "book", "arguments": {"n": 1}}
    steps = [
        {"source": "system", "message": "rules"},
        {"source": "user", "message": "hi"},
        {
            "source": "agent",
            "message": "let me see",
            "tool_calls": [call],
            "observation": {"results": [{"source_call_id": "1", "content": "ok"}]},
        },
        {"source": "agent", "message": "booked"},
        {"source": "user", "message": "bye"},
        7,
        {"source": "agent", "message": None, "tool_calls": "none"},
    ]
    assert turns_of({"steps": steps}) == (Turn("hi", "let me see\nbooked", (ToolCall("book", {"n": 1}, "ok"),)), Turn("bye", ""))
    assert turns_of({"steps": "no"}) == ()


CALL = {"tool_call_id": "id", "function_name": "function_name", "arguments": "arguments"}
ODD: list[Any] = [None, True, -1, 10**400, float("nan"), "x", "\ud800", [], {}, [[]], [None], {"text": 5}]


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: ascii(odd)[:20])
@pytest.mark.parametrize("field", ["source", "message", "tool_calls", "observation", "function_name", "arguments", "id", "content"])
def test_whatever_an_agent_writes_into_its_trajectory_its_turns_are_read(field: str, odd: Any) -> None:
    given = {"source": "agent", "message": "booked", "function_name": "book", "arguments": {}, "id": "1", "content": "ok", field: odd}
    step = {
        "source": given["source"],
        "message": given["message"],
        "tool_calls": given.get("tool_calls", [{name: given[key] for name, key in CALL.items()}]),
        "observation": given.get("observation", {"results": [{"source_call_id": given["id"], "content": given["content"]}]}),
    }
    turns = turns_of({"steps": [{"source": "user", "message": "hi"}, step]})
    assert [turn.user_message for turn in turns] == ["hi"]


# --- a judge over HTTP ------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def server() -> Iterator[JudgeServer]:
    with JudgeServer() as made:
        yield made


@pytest.fixture
def ask(server: JudgeServer, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[ChatJudge, Tone | JudgeError]]:
    """Asks a judge at the server once."""
    monkeypatch.setenv("TEST_JUDGE_KEY", "of this test")

    def call(*, attempts: int = 3, endpoint: str | None = None) -> tuple[ChatJudge, Tone | JudgeError]:
        settings = JudgeSettings(endpoint or server.endpoint, "m", key_variable="TEST_JUDGE_KEY", attempts=attempts, pause_seconds=0.001)
        judge = ChatJudge(settings)
        try:
            return judge, asyncio.run(judge.generate_object(Tone, [{"role": "user", "content": "rate"}]))
        except JudgeError as error:
            return judge, error

    return call


GOOD = answer('{"score": 4.0, "label": "on brand"}', prompt_tokens=11, completion_tokens=7)


@pytest.mark.conforms("N-183")
def test_a_judge_answers_with_an_object_of_the_schema_and_its_cost_is_counted(server: JudgeServer, ask: Callable[..., Any]) -> None:
    server.answers = [GOOD]
    judge, found = ask()
    assert found == Tone(score=4.0, label="on brand")
    assert (judge.usage.requests, judge.usage.prompt_tokens, judge.usage.completion_tokens) == (1, 11, 7)
    ((body, key),) = server.asked
    assert (body["model"], body["response_format"]["json_schema"]["name"], key) == ("m", "Tone", "Bearer of this test")


@pytest.mark.parametrize(
    "bad",
    [
        (503, b""),
        (429, b"slow down"),
        (200, b"{"),
        (200, b"[]"),
        answer("no json"),
        answer('{"score": "high"}'),
        answer('{"score": 1, "label": "x"}'),
        (200, b"x" * 2_000_000),
    ],
    ids=lambda item: str(item)[:40],
)
def test_a_busy_server_and_a_malformed_answer_are_asked_again(server: JudgeServer, ask: Callable[..., Any], bad: tuple[int, bytes]) -> None:
    server.answers = [bad, GOOD]
    judge, found = ask()
    assert (found, judge.usage.requests) == (Tone(score=4.0, label="on brand"), 2)


@pytest.mark.parametrize(
    ("bad", "reason", "requests"),
    [((503, b""), "JudgeUnavailable", 3), (answer("?"), "JudgeMalformed", 3), ((401, b""), "JudgeRefused", 1)],
)
def test_a_judge_that_stays_bad_is_a_named_error(
    server: JudgeServer, ask: Callable[..., Any], bad: tuple[int, bytes], reason: str, requests: int
) -> None:
    server.answers = [bad] * 3
    judge, error = ask()
    assert (error.reason, judge.usage.requests) == (reason, requests)
    assert "of this test" not in str(error)


def test_a_judge_that_is_down_is_a_named_error_and_only_its_turns_have_no_value(ask: Callable[..., Any]) -> None:
    judge, error = ask(attempts=2, endpoint="http://127.0.0.1:9/v1")
    assert (error.reason, judge.usage.requests) == ("JudgeUnavailable", 2)
    results = run(Judged(), Words(), judge=judge)
    assert [list(result.results) for result in results] == [["words"], ["words"]]
    assert all(result.errors["tone"].startswith("JudgeError: JudgeUnavailable: ") for result in results)


def test_the_schema_is_strict_and_a_temperature_is_sent_only_where_asked_for(server: JudgeServer) -> None:
    server.answers = [GOOD, GOOD]
    for temperature in (0.0, None):
        judge = ChatJudge(JudgeSettings(server.endpoint, "m", key_variable="NOT_SET_HERE", temperature=temperature))
        asyncio.run(judge.generate_object(Tone, [{"role": "user", "content": "rate"}]))
    (first, key), (second, _) = server.asked
    assert first["response_format"] == {
        "type": "json_schema",
        "json_schema": {
            "name": "Tone",
            "strict": True,
            "schema": {
                "title": "Tone",
                "type": "object",
                "properties": {
                    "score": {"title": "Score", "type": "number"},
                    "label": {"title": "Label", "type": "string", "enum": ["on brand", "off brand", "no failure"]},
                },
                "required": ["score", "label"],
                "additionalProperties": False,
            },
        },
    }
    assert (first["temperature"], key, "temperature" in second) == (0.0, None, False)


def test_unusable_answers_cost_too_and_what_was_never_got_is_counted_by_reason(server: JudgeServer) -> None:
    server.answers = [answer("?", prompt_tokens=100, completion_tokens=10)] * 2
    judge = ChatJudge(JudgeSettings(server.endpoint, "m", attempts=2, pause_seconds=0.001, prompt_price=2.0, completion_price=10.0))
    with pytest.raises(JudgeError):
        asyncio.run(judge.generate_object(Tone, [{"role": "user", "content": "rate"}]))
    assert judge.usage.raw() == {
        "model": "m",
        "requests": 2,
        "prompt_tokens": 200,
        "completion_tokens": 20,
        "cost_usd": pytest.approx(0.0006),
        "failures": {"JudgeMalformed": 1},
    }


def test_a_server_that_asks_for_time_gets_it(server: JudgeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr("seatrial.sdk.judge.asyncio.sleep", sleep)
    server.headers = {"Retry-After": "7"}
    server.answers = [(429, b""), GOOD]
    judge = ChatJudge(JudgeSettings(server.endpoint, "m", pause_seconds=1.0))
    asyncio.run(judge.generate_object(Tone, [{"role": "user", "content": "rate"}]))
    server.headers = {"Retry-After": "100000"}
    server.answers = [(503, b""), GOOD]
    asyncio.run(judge.generate_object(Tone, [{"role": "user", "content": "rate"}]))
    assert pauses == [7.0, 60.0]


def test_a_server_that_sends_a_byte_now_and_then_is_unavailable(server: JudgeServer) -> None:
    server.answers, server.drip_seconds = [GOOD], 0.05
    judge = ChatJudge(JudgeSettings(server.endpoint, "m", attempts=1, timeout_seconds=0.3))
    with pytest.raises(JudgeError, match="did not end its answer in time"):
        asyncio.run(judge.generate_object(Tone, [{"role": "user", "content": "rate"}]))


def test_a_key_with_a_line_break_is_refused_before_it_is_sent(server: JudgeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_JUDGE_KEY", "of this test\nX-Other: 1")
    judge = ChatJudge(JudgeSettings(server.endpoint, "m", key_variable="TEST_JUDGE_KEY"))
    with pytest.raises(JudgeError) as refused:
        asyncio.run(judge.generate_object(Tone, [{"role": "user", "content": "rate"}]))
    assert (refused.value.reason, "of this test" in str(refused.value), server.asked) == ("JudgeRefused", False, [])


# --- the examples of the guide ----------------------------------------------------------------------------------------------------------


class BookingMade(QuantitativeMetric):
    """Never called: 0; called without success: 0; success: 1."""

    name = "booking"

    async def score(self, given: ScoreInput) -> QuantResult:
        calls = [call for call in given.tool_calls if call.name == "book"]
        good = any(isinstance(call.result, dict) and call.result.get("status") == "confirmed" for call in calls)
        return QuantResult(float(good), f"{len(calls)} calls")


@pytest.mark.conforms("N-182", "N-184")
@pytest.mark.parametrize(
    ("calls", "value"),
    [
        pytest.param((), 0.0, id="never called"),
        pytest.param((ToolCall("search", {}, {"status": "confirmed"}),), 0.0, id="another tool"),
        pytest.param((ToolCall("book", {}, {"status": "full"}),), 0.0, id="without success"),
        pytest.param((ToolCall("book", {}, {"status": "full"}), ToolCall("book", {}, {"status": "confirmed"})), 1.0, id="success"),
    ],
)
def test_a_check_on_tool_calls_needs_no_model(calls: tuple[ToolCall, ...], value: float) -> None:
    assert asyncio.run(BookingMade().score(ScoreInput("book it", "done", tool_calls=calls))).value == value


class Consistent(QualitativeMetric):
    """Whether an answer repeats an earlier one."""

    name = "consistency"
    failure_labels = frozenset({"repeated"})

    async def evaluate(self, given: ScoreInput) -> QualResult:
        earlier = {turn.agent_message for turn in given.history}
        return QualResult("repeated" if given.agent_message in earlier else "new", "compared with the history")


@pytest.mark.conforms("N-182")
def test_a_check_on_consistency_reads_the_history() -> None:
    talk = Conversation("task", "trial", (Turn("a", "x"), Turn("b", "y"), Turn("c", "x")))
    assert [result.results["consistency"].value for result in run(Consistent(), talks=(talk,))] == ["new", "new", "repeated"]
