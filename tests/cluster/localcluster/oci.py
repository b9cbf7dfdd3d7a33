"""One-file container images without a builder: an OCI archive with one layer, the same bytes for the same content."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

ARCHITECTURES: Mapping[str, str] = {"x86_64": "amd64", "aarch64": "arm64"}


def write_archive(target: Path, *, image: str, files: Mapping[str, Path], entrypoint: Sequence[str]) -> None:
    """Write an OCI archive that ``ctr images import`` takes.

    Args:
        target: the archive.
        image: full name with tag.
        files: path in the image without leading slash -> file on this machine; all become root's, mode 0755.
        entrypoint: the image's ENTRYPOINT.
    """
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as archive:
        folders = sorted({str(parent) for name in files for parent in Path(name).parents if str(parent) != "."} | {"tmp"})
        for folder in folders:
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if folder == "tmp" else 0o755
            archive.addfile(entry)
        for name, source in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = source.stat().st_size, 0o755
            with source.open("rb") as stream:
                archive.addfile(entry, stream)
    layer_bytes = layer.getvalue()
    architecture = ARCHITECTURES.get(os.uname().machine, os.uname().machine)
    config = _json(
        {
            "architecture": architecture,
            "os": "linux",
            "config": {"Entrypoint": list(entrypoint), "WorkingDir": "/"},
            "rootfs": {"type": "layers", "diff_ids": [_digest(layer_bytes)]},
        }
    )
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": _descriptor("application/vnd.oci.image.config.v1+json", config),
            "layers": [_descriptor("application/vnd.oci.image.layer.v1.tar", layer_bytes)],
        }
    )
    # containerd takes the image's name from its own annotation, other tools from the OCI one.
    annotations = {"io.containerd.image.name": image, "org.opencontainers.image.ref.name": image.rpartition(":")[2]}
    index = {
        "schemaVersion": 2,
        "manifests": [{**_descriptor("application/vnd.oci.image.manifest.v1+json", manifest), "annotations": annotations}],
    }
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    with tarfile.open(temporary, mode="w") as archive:
        _add(archive, "oci-layout", _json({"imageLayoutVersion": "1.0.0"}))
        _add(archive, "index.json", _json(index))
        for blob in (config, manifest, layer_bytes):
            _add(archive, f"blobs/sha256/{_digest(blob).removeprefix('sha256:')}", blob)
    temporary.replace(target)


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _digest(content: bytes) -> str:
    return "sha256:" + hashlib.sha256(content).hexdigest()


def _descriptor(media_type: str, content: bytes) -> dict[str, object]:
    return {"mediaType": media_type, "digest": _digest(content), "size": len(content)}


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), 0o644
    archive.addfile(entry, io.BytesIO(content))
