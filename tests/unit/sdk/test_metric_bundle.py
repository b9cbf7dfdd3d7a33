"""Metric classes of one's own: packed as source, loaded after checks, listed in a file."""

from __future__ import annotations

import base64
import gzip
import io
import json
import os
import pickle
import tarfile
from pathlib import Path
from typing import Any

import pytest
from tests.docpages import blocks, pages

from seatrial.effects.store import Store
from seatrial.errors import InvalidSpec, NotFound
from seatrial.scoring.builtin import ExactMatch, OutputSpec
from seatrial.scoring.views import Signal, View
from seatrial.sdk.agentest import Helpfulness
from seatrial.sdk.judge import ChatJudge
from seatrial.sdk.llm_judge import LLMJudge, RangeScore, RubricScore
from seatrial.sdk.metric_bundle import BundleRefused, MetricBundle, Metrics, decode_bundle, load_metric, pack_metric, pack_source
from seatrial.sdk.metric_set import load_metric_set
from seatrial.taskpkg.collection import HarborRewardMetric

LENGTH = """
from seatrial.scoring.builtin import OutputSpec
from .words import count

class Length:
    type = "length"
    outputs = (OutputSpec("words", "discrete"),)

    def __init__(self, *, factor=1):
        self.factor = factor

    def compute(self, row):
        return {"words": self.factor * count(row["sample"]["output_text"])}

class Odd:
    type = "odd"

class Broken(Length):
    def __init__(self):
        raise RuntimeError("no model file")
"""
TONE = """
from seatrial.sdk.turns import QuantitativeMetric, QuantResult

class Tone(QuantitativeMetric):
    name = "tone"

    async def score(self, given):
        return QuantResult(4.0, "fixed")
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "mine"
    (folder / "__pycache__").mkdir(parents=True)
    (folder / "length.py").write_text(LENGTH)
    (folder / "words.py").write_text("def count(text):\n    return len(text.split())\n")
    (folder / "model.pkl").write_bytes(pickle.dumps([1]))
    (folder / "__pycache__/length.cpython-311.pyc").write_bytes(b"x")
    return folder


def test_a_class_travels_as_source_and_does_what_it_did(source: Path) -> None:
    bundle = pack_metric(source, "length:Length", {"factor": 2})
    assert (bundle.metric_type, bundle.outputs) == ("length", (OutputSpec("words", "discrete"),))
    again = decode_bundle(bundle.encode())
    assert again == bundle
    assert load_metric(again).compute({"sample": {"output_text": "one two three"}}) == {"words": 6}
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(bundle.archive))) as archive:
        assert archive.getnames() == ["length.py", "words.py"]


def test_the_same_source_is_the_same_bundle_and_two_versions_live_side_by_side(source: Path) -> None:
    first = pack_metric(source, "length:Length")
    assert pack_metric(source, "length:Length").sha256 == first.sha256
    (source / "words.py").write_text("def count(text):\n    return 100\n")
    second = pack_metric(source, "length:Length")
    assert second.sha256 != first.sha256
    row = {"sample": {"output_text": "one two"}}
    assert [load_metric(bundle).compute(row)["words"] for bundle in (first, second, first)] == [2, 100, 2]


@pytest.mark.parametrize(
    ("class_path", "message"),
    [
        ("length:Nobody", "cannot be made: AttributeError"),
        ("nowhere:Length", "cannot be made: ModuleNotFoundError"),
        ("length:Broken", "cannot be made: RuntimeError: no model file"),
        ("length:Odd", "is no metric: it needs type, outputs and compute"),
        ("os.path;x:y", "is not of the form module:Class"),
        ("length", "is not of the form module:Class"),
    ],
)
def test_a_class_that_is_no_metric_is_refused_by_name(source: Path, class_path: str, message: str) -> None:
    with pytest.raises(BundleRefused, match=message):
        pack_metric(source, class_path)


def test_pickled_code_and_other_kinds_are_never_taken(source: Path) -> None:
    body = json.loads(pack_metric(source, "length:Length").encode())
    for change, message in (
        ({"payload": {**body["payload"], "kind": "cloudpickle"}}, "never pickled code"),
        ({"bundle_format_version": "v2"}, "is no metric-bundle of version v1"),
        ({"payload": {**body["payload"], "sha256": "0" * 64}}, "has another sha256"),
        ({"payload": {**body["payload"], "archive": "?"}}, "cannot be read"),
        ({"outputs": 7}, "cannot be read"),
    ):
        with pytest.raises(BundleRefused, match=message):
            decode_bundle(json.dumps({**body, **change}).encode())
    for data in (b"", b"[]", pickle.dumps(print), b"[" * 100_000):
        with pytest.raises(BundleRefused, match="cannot be read"):
            decode_bundle(data)


def test_a_bundle_that_declares_something_else_than_its_class_is_refused(source: Path) -> None:
    bundle = pack_metric(source, "length:Length")
    with pytest.raises(BundleRefused, match="is not the metric 'other'"):
        load_metric(MetricBundle("other", bundle.outputs, bundle.class_path, bundle.archive, {}))


@pytest.mark.parametrize(
    ("place", "change"),
    [
        ("payload", {"class": 7}),
        ("payload", {"config": [1]}),
        ("payload", {"archive": 7}),
        ("", {"metric_type": [1]}),
        ("", {"outputs": [{"name": 7, "kind": "continuous", "required": True}]}),
        ("", {"outputs": [7]}),
        ("", {"payload": []}),
    ],
    ids=str,
)
def test_a_bundle_with_fields_of_another_type_is_refused(source: Path, place: str, change: dict[str, Any]) -> None:
    body = json.loads(pack_metric(source, "length:Length").encode())
    (body[place] if place else body).update(change)
    with pytest.raises(BundleRefused):
        decode_bundle(json.dumps(body).encode())


def hostile(name: str, data: bytes = b"x = 1\n", kind: bytes = tarfile.REGTYPE) -> bytes:
    out = io.BytesIO()
    with gzip.GzipFile(fileobj=out, mode="wb") as zipped, tarfile.open(fileobj=zipped, mode="w|") as archive:
        info = tarfile.TarInfo(name)
        info.type, info.linkname, info.size = kind, "/etc/passwd", len(data) if kind == tarfile.REGTYPE else 0
        archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def negative(kind: bytes) -> bytes:
    """An archive with one entry whose size is below zero, as only base-256 can say it."""
    header = bytearray(tarfile.TarInfo("a.py").tobuf(tarfile.GNU_FORMAT))
    header[156:157] = kind
    header[124:136] = b"\xff" * 10 + b"\xfe\x00"
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return gzip.compress(bytes(header) + bytes(1024))


def nested() -> bytes:
    """A file, and one below it."""
    return gzip.compress(b"".join(tarfile.TarInfo(name).tobuf() for name in ("a.py", "a.py/b.py")) + bytes(1024))


@pytest.mark.parametrize(
    "archive",
    [
        hostile("../escape.py"),
        hostile("/etc/escape.py"),
        hostile("a/../../escape.py"),
        hostile("model.pkl"),
        hostile("native.so"),
        hostile("link.py", kind=tarfile.SYMTYPE),
        hostile("device.py", kind=tarfile.CHRTYPE),
        hostile("large.py", b"#" * (11 * 1024 * 1024)),
        b"no archive",
        hostile("a.py")[:40],
        negative(tarfile.REGTYPE),
        negative(tarfile.DIRTYPE),
        negative(tarfile.XHDTYPE),
    ],
    ids=[
        *("parent", "absolute", "inner parent", "pickle", "library", "link", "device", "bomb", "noise", "cut"),
        *("negative file", "negative folder", "negative header"),
    ],
)
def test_a_hostile_archive_is_refused_before_anything_of_it_is_written(archive: bytes, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(BundleRefused):
        load_metric(MetricBundle("x", (OutputSpec("x", "continuous"),), "a:A", archive, {}))
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_an_archive_with_a_file_below_a_file_is_refused() -> None:
    with pytest.raises(BundleRefused, match="a file below a file"):
        load_metric(MetricBundle("x", (OutputSpec("x", "continuous"),), "a:A", nested(), {}))


def test_source_with_a_pipe_or_a_file_without_end_is_not_packed(source: Path) -> None:
    os.mkfifo(source / "pipe.py")
    with pytest.raises(BundleRefused, match=r"pipe\.py is no regular file"):
        pack_source(source)
    (source / "pipe.py").unlink()
    with (source / "large.json").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(BundleRefused, match=r"large\.json .* has more than"):
        pack_source(source)


def test_source_with_links_or_without_python_is_not_packed(source: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(BundleRefused, match="has no Python source"):
        pack_source(tmp_path / "empty")
    (source / "link.py").symlink_to("/etc/passwd")
    with pytest.raises(BundleRefused, match="is a link"):
        pack_source(source)


def test_bundles_are_kept_under_their_digest_and_a_changed_one_is_refused(source: Path, store: Store) -> None:
    metrics, bundle = Metrics(store, "evals"), pack_metric(source, "length:Length")
    digest = metrics.create(bundle)
    assert (metrics.create(bundle), metrics.list(), metrics.retrieve(digest)) == (digest, [digest], bundle)
    assert Metrics(store, "other").list() == []
    store.put(f"metrics/evals/{digest}/bundle.json", bundle.encode() + b" ")
    with pytest.raises(BundleRefused, match="was changed in the store"):
        metrics.retrieve(digest)
    metrics.delete(digest)
    with pytest.raises(NotFound):
        metrics.delete(digest)
    with pytest.raises(InvalidSpec, match="is no digest"):
        metrics.retrieve("../x")


# --- a list of metrics ------------------------------------------------------------------------------------------------------------------


@pytest.mark.conforms("N-192")
def test_metrics_of_every_kind_are_listed_in_one_file(source: Path, tmp_path: Path) -> None:
    (tmp_path / "tone.py").write_text(TONE)
    (tmp_path / "length.json").write_bytes(pack_metric(source, "length:Length").encode())
    (tmp_path / "metrics.yaml").write_text(
        """
metrics:
- {type: exact-match, config: {reference: Done}}
- {type: helpfulness}
- type: llm-judge
  config:
    prompt: "Rate {{sample.output_text}}"
    scores:
    - {name: depth, minimum: 0, maximum: 10}
    - {name: tone, description: Its tone., rubric: {kind: {value: 1, description: polite}, rude: {value: 0}}}
- {class: "tone:Tone", source: tone.py}
- {class: "length:Length", source: mine, config: {factor: 3}}
- {bundle: length.json}
judge: {endpoint: "http://127.0.0.1:9/v1", model: m, keyVariable: SOME_KEY, promptPrice: 1.5}
concurrency: 7
views: {quality: {reducer: weighted_mean, signals: [{metric: tone, output: value, weight: 2}]}}
thresholds: {tone: 4.0, reward.mean: 0.8}
failOnErrorSeverity: high
judgeGroups: true
"""
    )
    found = load_metric_set(tmp_path / "metrics.yaml")
    reward, exact, helpful, judged, tone, length, bundled = found.metrics
    assert (reward, exact, type(helpful)) == (HarborRewardMetric(), ExactMatch("Done"), Helpfulness)
    assert isinstance(judged, LLMJudge)
    assert judged.scores == [
        RangeScore("depth", minimum=0, maximum=10),
        RubricScore("tone", {"kind": (1.0, "polite"), "rude": (0.0, "")}, "Its tone."),
    ]
    assert (tone.name, length.factor, bundled.factor) == ("tone", 3, 1)
    assert found.views == {"quality": View("weighted_mean", (Signal("tone", "value", 2),))}
    config = found.config
    assert isinstance(config.judge, ChatJudge)
    assert (config.judge.settings.endpoint, config.judge.settings.key_variable, config.judge.settings.prompt_price) == (
        "http://127.0.0.1:9/v1",
        "SOME_KEY",
        1.5,
    )
    assert (config.parallelism, config.judge_groups, config.fail_on_error_severity) == (7, True, "high")
    assert config.thresholds == {"tone": 4.0, "reward.mean": 0.8}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("metrics: [", "is no YAML"),
        ("metrics: []", "metrics: List should have at least 1 item"),
        ("metrics: [{type: nobody}]", "no metric 'nobody'; known: agent_behavior_failure, bleu"),
        ("metrics: [{type: bleu, config: {refrence: x}}]", "metrics.0: bleu: bleu has no setting 'refrence'"),
        ("metrics: [{type: bleu, class: 'a:B', source: x}]", "give exactly one of type, class and bundle"),
        ("metrics: [{class: 'a:B'}]", "class and source go together"),
        ("metrics: [{type: harbor_reward}]", "is there by itself; rewards: false leaves it out"),
        ("metrics: [{type: helpfulness}]\njudgeGroups: true", "judgeGroups needs a judge"),
        ("metrics: [{type: helpfulness}]\nsurprise: 1", "surprise: Extra inputs are not permitted"),
        ("metrics: [{type: helpfulness}]\njudge: {endpoint: 'http://u:p@h/v1', model: m}", "judge.endpoint: String should match"),
    ],
)
def test_a_bad_list_is_refused_by_its_field(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "metrics.yaml").write_text(text)
    with pytest.raises(InvalidSpec, match=message):
        load_metric_set(tmp_path / "metrics.yaml")


def test_a_list_may_leave_the_rewards_out_and_must_exist(tmp_path: Path) -> None:
    (tmp_path / "metrics.yaml").write_text("metrics: [{type: helpfulness}]\nrewards: false\n")
    assert [type(metric) for metric in load_metric_set(tmp_path / "metrics.yaml").metrics] == [Helpfulness]
    with pytest.raises(InvalidSpec, match="cannot be read"):
        load_metric_set(tmp_path / "none.yaml")


def test_nothing_of_a_bundle_is_base64_of_a_pickle(source: Path) -> None:
    payload = json.loads(pack_metric(source, "length:Length").encode())["payload"]
    assert gzip.decompress(base64.b64decode(payload["archive"])).startswith(b"length.py")


def test_the_list_and_the_class_of_the_documentation_load(tmp_path: Path) -> None:
    text = pages()["judges"]
    (listed,) = blocks(text, "yaml")
    own, _ = blocks(text, "python")
    (tmp_path / "tone.py").write_text(own)
    (tmp_path / "metrics.yaml").write_text(listed)
    found = load_metric_set(tmp_path / "metrics.yaml")
    assert [getattr(metric, "name", None) or metric.type for metric in found.metrics] == [
        "harbor_reward",
        "exact-match",
        "helpfulness",
        "llm-judge",
        "tone",
    ]
