"""Both tables of reward files, row by row."""

from __future__ import annotations

import pytest

from seatrial_runner.faults import Fault
from seatrial_runner.rewards import Rewards, parse_reward_json, parse_reward_text

EMPTY, UNREADABLE = "RewardFileEmptyError", "VerifierOutputParseError"
BIG = 10**300


@pytest.mark.conforms("H-108", "H-112", "N-129", "N-176")
@pytest.mark.parametrize(
    ("text", "values"),
    [
        pytest.param('{"reward": 1}', {"reward": 1}, id="integer"),
        pytest.param('{"a": -3, "b": 2.5}', {"a": -3, "b": 2.5}, id="negative-and-fraction"),
        pytest.param('{"reward": 0.65}', {"reward": 0.65}, id="fraction-unchanged"),
        pytest.param(f'{{"reward": {BIG}}}', {"reward": BIG}, id="integer-as-large-as-a-float"),
        pytest.param('{"reward": true, "other": false}', {"reward": 1.0, "other": 0.0}, id="booleans"),
        pytest.param('{"reward": "1.25"}', {"reward": 1.25}, id="numeric-string"),
        pytest.param('{"": 1}', {"": 1}, id="empty-key"),
        pytest.param(" \n{}\n", {}, id="empty-object"),
        pytest.param('{"reward": 1, "reward": 2}', {"reward": 2}, id="last-duplicate-wins"),
    ],
)
def test_reward_json_that_is_kept(text: str, values: dict[str, float]) -> None:
    assert parse_reward_json(text.encode()) == Rewards(values)


def test_integers_stay_integers_and_booleans_become_floats() -> None:
    values = parse_reward_json(b'{"a": 3, "b": true}').values
    assert [type(value) for value in values.values()] == [int, float]


@pytest.mark.conforms("H-108", "H-110", "N-125", "N-126")
@pytest.mark.parametrize(
    ("data", "error", "words"),
    [
        pytest.param(b"", EMPTY, "reward.json is empty", id="size-0"),
        pytest.param(b" \n", UNREADABLE, "not JSON", id="white-space"),
        pytest.param(b"{reward: 1}", UNREADABLE, "not JSON", id="invalid"),
        pytest.param(b'{"reward": "\xff"}', UNREADABLE, "not JSON", id="not-utf-8"),
        pytest.param(b"\xef\xbb\xbf{}", UNREADABLE, "not JSON", id="byte-order-mark"),
        pytest.param(b"[" * 100_000, UNREADABLE, "not JSON", id="too-deep"),
        pytest.param(b'{"reward": ' + b"9" * 5000 + b"}", UNREADABLE, "not JSON", id="integer-too-long-to-read"),
        pytest.param(b'{"reward": null}', UNREADABLE, "Non-numeric reward 'reward': null", id="null"),
        pytest.param(b'{"reward": "pass"}', UNREADABLE, "Non-numeric reward 'reward': 'pass'", id="text"),
        pytest.param(b'{"reward": [1]}', UNREADABLE, "Non-numeric reward 'reward': a list", id="list"),
        pytest.param(b'{"reward": {"a": 1}}', UNREADABLE, "Non-numeric reward 'reward': an object", id="object"),
        pytest.param(b'{"reward": NaN}', UNREADABLE, "Non-finite reward 'reward': nan", id="nan"),
        pytest.param(b'{"reward": Infinity}', UNREADABLE, "Non-finite reward 'reward': inf", id="infinity"),
        pytest.param(b'{"reward": 1e309}', UNREADABLE, "Non-finite reward 'reward': inf", id="overflow"),
        pytest.param(b'{"reward": 1' + b"0" * 400 + b"}", UNREADABLE, "Non-finite reward 'reward': 1000", id="integer-beyond-any-float"),
        pytest.param(b'{"reward": "nan"}', UNREADABLE, "Non-finite reward 'reward': nan", id="nan-as-text"),
        pytest.param(b"[1]", UNREADABLE, "holds a list", id="top-list"),
        pytest.param(b"null", UNREADABLE, "holds null", id="top-null"),
        pytest.param(b'"1"', UNREADABLE, "holds a string", id="top-string"),
        pytest.param(b"0.5", UNREADABLE, "holds a bare number", id="top-number"),
        pytest.param(b"true", UNREADABLE, "holds a boolean", id="top-boolean"),
    ],
)
def test_reward_json_that_is_refused(data: bytes, error: str, words: str) -> None:
    with pytest.raises(Fault) as caught:
        parse_reward_json(data)
    assert (caught.value.type, caught.value.cause) == (error, "verifier")
    assert words in caught.value.message


@pytest.mark.conforms("H-108", "N-128")
@pytest.mark.parametrize(
    ("text", "value"),
    [("1", 1.0), (" 0.5 ", 0.5), ("1_000", 1000.0), ("-2\n", -2.0), ("1e3", 1000.0)],
)
def test_reward_text_that_is_kept(text: str, value: float) -> None:
    assert parse_reward_text(text.encode()) == Rewards({"reward": value})


@pytest.mark.conforms("H-108")
@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", EMPTY),
        *((text, UNREADABLE) for text in (b" \n", b"pass", b"1\n0", b"50%", b"0x1", b"True", b"1,0", b"nan", b"inf", b"1e309", b"\xff")),
    ],
)
def test_reward_text_that_is_refused(data: bytes, error: str) -> None:
    with pytest.raises(Fault) as caught:
        parse_reward_text(data)
    assert (caught.value.type, caught.value.cause) == (error, "verifier")


@pytest.mark.conforms("N-177")
def test_components_of_the_known_shape_are_kept_beside_the_rewards() -> None:
    components = '[{"name": "style", "score": 1}, {"name": "tests", "score": 0.0, "why": "x"}]'
    parsed = parse_reward_json(f'{{"reward": 0.5, "components": {components}}}'.encode())
    assert parsed == Rewards({"reward": 0.5}, [{"name": "style", "score": 1}, {"name": "tests", "score": 0.0}])


@pytest.mark.parametrize(
    "components",
    [
        '["a"]',
        '[{"name": "a"}]',
        '[{"name": "a", "score": true}]',
        '[{"name": "a", "score": NaN}]',
        '[{"name": 1, "score": 1}]',
        '{"name": "a"}',
    ],
)
def test_components_of_another_shape_are_judged_as_a_reward(components: str) -> None:
    with pytest.raises(Fault, match="Non-numeric reward 'components'"):
        parse_reward_json(f'{{"reward": 1, "components": {components}}}'.encode())


def test_a_number_named_components_is_a_reward() -> None:
    assert parse_reward_json(b'{"components": 1.5}') == Rewards({"components": 1.5})


def test_a_key_too_long_for_the_report_is_named_and_its_siblings_stay() -> None:
    parsed = parse_reward_json(f'{{"{"k" * 256}": 1, "reward": 1}}'.encode())
    assert parsed == Rewards({"reward": 1}, None, ("k" * 40,))


def test_more_keys_than_a_report_takes_are_refused() -> None:
    text = "{" + ",".join(f'"k{number}": 1' for number in range(1001)) + "}"
    with pytest.raises(Fault, match="1001 keys"):
        parse_reward_json(text.encode())
