"""Metric classes of one's own as bundles: source code in an archive, by digest, never pickles.

A bundle is JSON: what the metric is called and reports, and the ``tar.gz`` of its source with the class to take from it. Loading a bundle
runs its code, so load what you would run; but nothing of it runs before its digest, its paths and its files were checked, and what the
class then declares must be what the bundle says. Source: nemo.md 21.4.
"""

from __future__ import annotations

import atexit
import base64
import binascii
import hashlib
import importlib
import io
import json
import re
import shutil
import sys
import tarfile
import tempfile
import threading
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from gzip import GzipFile
from pathlib import Path, PurePosixPath
from typing import Any, Final

from seatrial.effects.store import Store
from seatrial.errors import InvalidSpec, NotFound, SeatrialError
from seatrial.scoring.builtin import OutputSpec
from seatrial.sdk.regular import read_regular
from seatrial.sdk.results import UnsafeArchive, read_members
from seatrial.sdk.turns import TurnMetric, check_metrics

KIND: Final = "metric-bundle"
VERSION: Final = "v1"
PAYLOAD: Final = "source-archive"
MOST_BYTES: Final = 10 * 1024 * 1024
"""Of the archive, and of the files in it."""
MOST_FILES: Final = 1000
SUFFIXES: Final = frozenset({".py", ".json", ".txt", ".md", ".toml", ".yaml", ".yml"})
"""Text only: a pickle or a compiled module has no place in a bundle."""

_CLASS: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
_PART: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_PREFIX: Final = "_seatrial_metric_"
_lock = threading.Lock()


class BundleRefused(SeatrialError):
    """The bundle is not what it says, or holds what a bundle must not."""


@dataclass(frozen=True)
class MetricBundle:
    """One class with its source."""

    metric_type: str
    outputs: tuple[OutputSpec, ...]
    class_path: str
    """``module:Class``; the module lies in the archive, and imports its neighbours relatively."""
    archive: bytes
    config: Mapping[str, Any]
    """Keyword arguments of the class."""

    @property
    def sha256(self) -> str:
        """Of the bundle as it is stored."""
        return hashlib.sha256(self.encode()).hexdigest()

    def encode(self) -> bytes:
        """Canonical JSON: equal bundles are equal bytes."""
        body = {
            "bundle_kind": KIND,
            "bundle_format_version": VERSION,
            "metric_type": self.metric_type,
            "outputs": [output._asdict() for output in self.outputs],
            "payload": {
                "kind": PAYLOAD,
                "class": self.class_path,
                "config": dict(self.config),
                "sha256": hashlib.sha256(self.archive).hexdigest(),
                "archive": base64.b64encode(self.archive).decode(),
            },
        }
        return json.dumps(body, sort_keys=True, separators=(",", ":")).encode()


def pack_metric(source: str | Path, class_path: str, config: Mapping[str, Any] | None = None) -> MetricBundle:
    """A file or a folder of Python source as a bundle; it is loaded once, so that what it declares is known.

    Raises:
        BundleRefused: the source cannot be packed, or the class is no metric.
    """
    archive = pack_source(Path(source))
    metric = _build(archive, class_path, config or {})
    return MetricBundle(_type(metric), _outputs(metric), class_path, archive, dict(config or {}))


def decode_bundle(data: bytes) -> MetricBundle:
    """Inverse of ``MetricBundle.encode``.

    Raises:
        BundleRefused: another kind, another version, pickled code, or an archive with another digest.
    """
    try:
        body = json.loads(data)
        payload = body["payload"]
        if (body["bundle_kind"], body["bundle_format_version"]) != (KIND, VERSION):
            raise BundleRefused(f"is no {KIND} of version {VERSION}")
        if payload["kind"] != PAYLOAD:
            raise BundleRefused(f"its payload is {str(payload['kind'])[:40]!r}: only {PAYLOAD} is taken, never pickled code")
        archive = base64.b64decode(payload["archive"], validate=True)
        outputs = tuple(OutputSpec(item["name"], item["kind"], item["required"]) for item in body["outputs"])
        bundle = MetricBundle(body["metric_type"], outputs, payload["class"], archive, payload["config"])
        words = (bundle.metric_type, bundle.class_path, *(word for output in outputs for word in (output.name, output.kind)))
        if not isinstance(bundle.config, dict) or not all(isinstance(word, str) for word in words):
            raise BundleRefused("names its metric, its outputs or its config with something else than text")
    except (ValueError, KeyError, TypeError, RecursionError, binascii.Error) as error:
        raise BundleRefused(f"cannot be read: {type(error).__name__}") from None
    if hashlib.sha256(archive).hexdigest() != payload["sha256"]:
        raise BundleRefused("its archive has another sha256 than it says: it was changed")
    return bundle


def load_metric(bundle: MetricBundle) -> Any:
    """The metric, ready to score.

    Raises:
        BundleRefused: the archive is unsafe, the class is not there, or declares something else than the bundle.
    """
    metric = _build(bundle.archive, bundle.class_path, bundle.config)
    if (_type(metric), _outputs(metric)) != (bundle.metric_type, bundle.outputs):
        raise BundleRefused(f"{bundle.class_path} is not the metric {bundle.metric_type!r} with the outputs that the bundle declares")
    return metric


def pack_source(source: Path) -> bytes:
    """A ``.py`` file, or the text files of a folder, as a ``tar.gz``; the same files give the same bytes.

    Raises:
        BundleRefused: nothing to pack, a link, a name that no archive of ours has, or too much.
    """
    files = dict(_files(source))
    if not any(name.endswith(".py") for name in files):
        raise BundleRefused(f"{source} has no Python source")
    if len(files) > MOST_FILES or sum(map(len, files.values())) > MOST_BYTES:
        raise BundleRefused(f"{source} has more than {MOST_FILES} files or {MOST_BYTES} bytes")
    out = io.BytesIO()
    with GzipFile(fileobj=out, mode="wb", mtime=0) as zipped, tarfile.open(fileobj=zipped, mode="w|") as archive:
        for name in sorted(files):
            info = tarfile.TarInfo(name)
            info.size = len(files[name])
            archive.addfile(info, io.BytesIO(files[name]))
    return out.getvalue()


def _files(source: Path) -> Iterator[tuple[str, bytes]]:
    if source.is_file():
        yield source.name, _read(source)
        return
    for path in sorted(source.rglob("*")):
        if path.suffix not in SUFFIXES or "__pycache__" in path.parts or path.is_dir():
            continue
        if path.is_symlink():
            raise BundleRefused(f"{path} is a link: copy the file")
        name = path.relative_to(source).as_posix()
        if not _is_safe(name):
            raise BundleRefused(f"{path} has a name that no bundle holds: letters, digits, '_', '-' and '.'")
        yield name, _read(path)


def _read(path: Path) -> bytes:
    data = read_regular(path, max_bytes=MOST_BYTES)
    if data is None:
        raise BundleRefused(f"{path} is no regular file, or has more than {MOST_BYTES} bytes")
    return data


def _is_safe(name: str) -> bool:
    path = PurePosixPath(name)
    return path.suffix in SUFFIXES and len(path.parts) <= 16 and all(_PART.fullmatch(part) for part in name.split("/"))


def _unpack(archive: bytes) -> dict[str, bytes]:
    """The files of an archive.

    Raises:
        BundleRefused: anything but text files under plain names, within the limits.
    """
    if len(archive) > MOST_BYTES:
        raise BundleRefused(f"its archive has more than {MOST_BYTES} bytes")
    files: dict[str, bytes] = {}
    left = MOST_BYTES
    try:
        for member, body in read_members(io.BytesIO(archive)):
            if not _is_safe(member.path) or member.path in files:
                raise BundleRefused(f"its archive has {member.path[:80]!r}: only plain text files are taken, each once")
            left -= member.size
            if left < 0 or len(files) == MOST_FILES:
                raise BundleRefused(f"its archive holds more than {MOST_FILES} files or {MOST_BYTES} bytes")
            files[member.path] = body.read()
    except UnsafeArchive as error:
        raise BundleRefused(str(error)) from error
    return files


def _build(archive: bytes, class_path: str, config: Mapping[str, Any]) -> Any:
    """An instance of the class. Each archive is imported once, under a name of its digest, so that versions live side by side."""
    if not _CLASS.fullmatch(class_path):
        raise BundleRefused(f"{class_path[:80]!r} is not of the form module:Class")
    module_name, _, class_name = class_path.partition(":")
    package = f"{_PREFIX}{hashlib.sha256(archive).hexdigest()}"
    with _lock:
        if package not in sys.modules:
            folder = Path(tempfile.mkdtemp(prefix="seatrial-metric-"))
            atexit.register(shutil.rmtree, folder, ignore_errors=True)
            try:
                for name, data in _unpack(archive).items():
                    (folder / name).parent.mkdir(parents=True, exist_ok=True)
                    (folder / name).write_bytes(data)
            except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
                raise BundleRefused("its archive has a file below a file") from error
            made = types.ModuleType(package)
            made.__path__ = [str(folder)]
            sys.modules[package] = made
    try:
        kind = getattr(importlib.import_module(f"{package}.{module_name}"), class_name)
        metric = kind(**config)
    except Exception as error:  # somebody else's code: whatever it raises means that there is no metric
        raise BundleRefused(f"{class_path} cannot be made: {type(error).__name__}: {error}") from error
    return _checked(metric, class_path)


def _checked(metric: Any, class_path: str) -> Any:
    if isinstance(metric, TurnMetric):
        try:
            check_metrics([metric])
            _type(metric)
        except (TypeError, AttributeError) as error:
            raise BundleRefused(f"{class_path}: {error}") from None
        return metric
    outputs = getattr(metric, "outputs", None)
    whole = isinstance(outputs, tuple | list) and outputs and all(isinstance(item, OutputSpec) for item in outputs)
    if not whole or not isinstance(getattr(metric, "type", None), str) or not callable(getattr(metric, "compute", None)):
        raise BundleRefused(f"{class_path} is no metric: it needs type, outputs and compute(row), or a base class of metrics over turns")
    return metric


def _type(metric: Any) -> str:
    return str(metric.name if isinstance(metric, TurnMetric) else metric.type)


def _outputs(metric: Any) -> tuple[OutputSpec, ...]:
    return (metric.output,) if isinstance(metric, TurnMetric) else tuple(metric.outputs)


class Metrics:
    """``Evaluator.metrics``: bundles in the object store, immutable and named by their digest."""

    def __init__(self, store: Store, namespace: str) -> None:
        self._store, self._prefix = store, f"metrics/{namespace}/"

    def create(self, bundle: MetricBundle) -> str:
        """Store a bundle; returns its digest. The same bundle is stored once."""
        self._store.put_new(self._key(bundle.sha256), bundle.encode(), content_type="application/json")
        return bundle.sha256

    def retrieve(self, digest: str) -> MetricBundle:
        """The bundle of this digest.

        Raises:
            NotFound: there is none.
            BundleRefused: what is stored has another digest.
        """
        data = self._store.get(self._key(digest), max_bytes=2 * MOST_BYTES)
        if hashlib.sha256(data).hexdigest() != digest:
            raise BundleRefused(f"metric {digest} was changed in the store")
        return decode_bundle(data)

    def list(self) -> list[str]:
        """Digests of all bundles, sorted."""
        return sorted(entry.key.removeprefix(self._prefix).partition("/")[0] for entry in self._store.list(self._prefix))

    def delete(self, digest: str) -> None:
        """Remove a bundle.

        Raises:
            NotFound: there is none.
        """
        if digest not in self.list():
            raise NotFound(f"no metric bundle {digest}")
        self._store.delete(self._key(digest))

    def _key(self, digest: str) -> str:
        if not re.fullmatch(r"[0-9a-f]{64}", digest):
            raise InvalidSpec("digest", f"{digest[:80]!r} is no digest of a metric bundle")
        return f"{self._prefix}{digest}/bundle.json"
