"""Images without a registry: a Debian base, Dockerfiles by buildah, an OCI layout in the cache, one archive to the node.

Nothing is done twice: an image is built when the key of its content is new, and given to the node when the node has another digest.
"""

from __future__ import annotations

import configparser
import contextlib
import json
import os
import shutil
import tarfile
import tempfile
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

from localcluster import debian, gobuild, imagespec, shell
from localcluster.imagespec import BASE_IMAGE, Context, Image
from localcluster.push import push
from localcluster.settings import Settings

DEBIAN_SUITE = "bookworm"
BASE_PACKAGES = ("ca-certificates", "python3")
BASE_RECIPE = "3"
"""Raise it when ``_make_base`` changes."""
KEPT_PER_NAME = 3
"""Builds of one name that the cache keeps: enough for a few checkouts and for going back and forth."""
MAX_STORED_IMAGES = 600
"""Records in buildah's storage, intermediate layers included, a few MB each, before it is pruned."""

PIP_OPTIONS = ("index-url", "extra-index-url", "trusted-host", "proxy", "timeout")


@dataclass(frozen=True)
class Built:
    """An image in the OCI layout."""

    name: str
    key: str
    digest: str
    """Of its manifest."""


class Store:
    """The images that were built, by key: an OCI layout with a small index of our own."""

    def __init__(self, folder: Path) -> None:
        self.layout = folder / "layout"
        self.index = folder / "index.json"

    def find(self, name: str, key: str) -> Built | None:
        for entry in self._entries():
            if (entry.name, entry.key) == (name, key) and self._blob(entry.digest).exists():
                return entry
        return None

    def add(self, built: Built) -> None:
        """Put an image first, and forget what is too old."""
        entries = [built, *(entry for entry in self._entries() if (entry.name, entry.key) != (built.name, built.key))]
        names: dict[str, int] = {}
        kept = []
        for entry in entries:
            names[entry.name] = names.get(entry.name, 0) + 1
            if names[entry.name] <= KEPT_PER_NAME and self._blob(entry.digest).exists():
                kept.append(entry)
        shell.write(self.index, json.dumps([vars(entry) for entry in kept], indent=1) + "\n")
        self._collect(kept)

    def blobs(self, digest: str) -> list[str]:
        """Digests of a manifest and all that it names."""
        manifest = json.loads(self._blob(digest).read_text(encoding="utf-8"))
        return [digest, manifest["config"]["digest"], *(layer["digest"] for layer in manifest["layers"])]

    def export(self, images: Sequence[Built], target: Path, *, without: Set[str]) -> None:
        """Write one OCI archive with all the images; what they share is in it once, and blobs that the receiver has are left out."""
        index = {"schemaVersion": 2, "manifests": [self._descriptor(built) for built in images]}
        digests = dict.fromkeys(digest for built in images for digest in self.blobs(built.digest))
        with tempfile.TemporaryDirectory() as scratch, tarfile.open(target, "w") as archive:
            for name, value in (("oci-layout", {"imageLayoutVersion": "1.0.0"}), ("index.json", index)):
                file = Path(scratch) / name
                file.write_text(json.dumps(value))
                archive.add(file, name)
            for digest in digests.keys() - without:
                archive.add(self._blob(digest), f"blobs/sha256/{digest.removeprefix('sha256:')}")

    def _descriptor(self, built: Built) -> dict[str, object]:
        return {
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "digest": built.digest,
            "size": self._blob(built.digest).stat().st_size,
            # containerd takes the name from its own annotation.
            "annotations": {"io.containerd.image.name": built.name, "org.opencontainers.image.ref.name": built.name},
        }

    def _entries(self) -> list[Built]:
        if not self.index.exists():
            return []
        return [Built(**entry) for entry in json.loads(self.index.read_text(encoding="utf-8"))]

    def _blob(self, digest: str) -> Path:
        return self.layout / "blobs" / "sha256" / digest.removeprefix("sha256:")

    def _collect(self, kept: Sequence[Built]) -> None:
        needed = {digest.removeprefix("sha256:") for built in kept for digest in self.blobs(built.digest)}
        for blob in (self.layout / "blobs" / "sha256").iterdir():
            if blob.name not in needed:
                blob.unlink()


class Builder:
    """Builds what is missing from the store."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.folder = settings.cache_dir / "images"
        self.store = Store(self.folder)

    def build(self, names: Sequence[str] = ()) -> list[Built]:
        """All the images, or those named; built where the store lacks them.

        Raises:
            ClusterError: a name that no image has, or a build that fails; the message carries the end of its log.
        """
        wanted = imagespec.select(self.settings.checkout, names)
        base_key = self.base_key()
        contexts = [self._context(image, base_key) for image in wanted]
        found = [self.store.find(context.image.name, context.key) for context in contexts]
        if all(found):
            return [built for built in found if built]
        debian.install({**debian.IMAGE_PACKAGES, "util-linux": "/usr/bin/unshare"})
        with shell.locked(self.settings.cache_dir / "locks" / "images.lock"):
            self._ensure_base(base_key)
            self._prune()
            return [self.store.find(context.image.name, context.key) or self._build(context) for context in contexts]

    def push_base(self, registry: str, *, repository: str, tag: str) -> None:
        """Push the base image to a registry that speaks plain HTTP."""
        key = self.base_key()
        built = self.store.find(BASE_IMAGE, key)
        if built is None:
            debian.install({**debian.IMAGE_PACKAGES, "util-linux": "/usr/bin/unshare"})
            with shell.locked(self.settings.cache_dir / "locks" / "images.lock"):
                self._ensure_base(key)
            built = self.store.find(BASE_IMAGE, key)
        assert built is not None
        push(self.store.layout, built.digest, registry=registry, repository=repository, tag=tag)

    def base_key(self) -> str:
        return imagespec.tree_key(
            [], root=Path("/"), facts={"suite": DEBIAN_SUITE, "packages": " ".join(BASE_PACKAGES), "recipe": BASE_RECIPE}
        )

    def _context(self, image: Image, base_key: str) -> Context:
        binaries = {name: gobuild.build(self.settings, name) for name in image.binaries}
        return imagespec.context_of(image, checkout=self.settings.checkout, base_key=base_key, binaries=binaries)

    def _build(self, context: Context) -> Built:
        image = context.image
        with shell.step(f"built {image.name}"), tempfile.TemporaryDirectory(prefix="seatrial-build-") as scratch:
            folder = Path(scratch) / "context"
            place(context, folder)
            argv = [
                "bud",
                "--pull=false",
                "--layers",
                "--network=host",
                f"--build-arg=BASE={BASE_IMAGE}",
                f"--label=seatrial.dev/content={context.key}",
            ]
            if image.needs_packages:
                # Ours, not a task's: the same sources give the same layers, whenever they are built.
                argv.append("--timestamp=0")
            # Only while building: neither the volume nor the secret leaves a trace in the image.
            argv += ["--volume=/etc/ssl/certs:/etc/ssl/certs:ro"]
            if image.needs_packages:
                secret = Path(scratch) / "pip.conf"
                shell.write(secret, pip_configuration(os.environ, files=PIP_FILES), mode=0o600)
                argv.append(f"--secret=id=pip.conf,src={secret}")
            self._buildah(*argv, f"--file={folder / image.dockerfile}", f"--tag={image.name}", str(folder))
            return self._publish(image.name, context.key)

    def _publish(self, name: str, key: str) -> Built:
        """Copy an image from buildah's storage to the layout."""
        digest_file = self.folder / ".digest"
        self._buildah(
            "push", "--disable-compression", "--format=oci", f"--digestfile={digest_file}", name, f"oci:{self.store.layout}:{key}"
        )
        built = Built(name=name, key=key, digest=digest_file.read_text().strip())
        digest_file.unlink()
        self.store.add(built)
        return built

    def _ensure_base(self, key: str) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.store.find(BASE_IMAGE, key) and self._buildah_has(BASE_IMAGE, key):
            return
        with shell.step(f"built {BASE_IMAGE}"), tempfile.TemporaryDirectory(dir=self.folder) as scratch:
            root = Path(scratch) / "root"
            self._make_base(root)
            shell.run(["tar", "--create", "--one-file-system", f"--directory={root}", f"--file={scratch}/root.tar", "."])
            shell.write(Path(scratch) / "Dockerfile", 'FROM scratch\nADD root.tar /\nCMD ["bash"]\n')
            shutil.rmtree(root)
            label = f"--label=seatrial.dev/content={key}"
            self._buildah("bud", label, f"--file={scratch}/Dockerfile", f"--tag={BASE_IMAGE}", scratch)
            self._publish(BASE_IMAGE, key)

    @staticmethod
    def _make_base(root: Path) -> None:
        mirror = os.environ.get("SEATRIAL_DEBIAN_MIRROR")
        argv = ["debootstrap", "--variant=minbase", f"--include={','.join(BASE_PACKAGES)}", DEBIAN_SUITE, str(root)]
        # In a mount namespace of its own, so that no proc or sys of it can be left behind.
        shell.run(["unshare", "--mount", "--", *argv, *([mirror] if mirror else [])])
        for pattern in ("var/cache/apt/*", "var/lib/apt/lists/*", "var/log/*", "usr/share/doc/*", "usr/share/man/*", "usr/share/locale/*"):
            for path in root.glob(pattern):
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink()
        for name in ("etc/resolv.conf", "etc/hostname"):
            (root / name).unlink(missing_ok=True)
        (root / "var/cache/apt/archives/partial").mkdir(parents=True)
        (root / "var/lib/apt/lists/partial").mkdir(parents=True, exist_ok=True)

    def _prune(self) -> None:
        """Forget all intermediate layers once there are very many; the next builds make those that they need again."""
        records = self.settings.cache_dir / "containers" / "overlay-images"
        if records.is_dir() and sum(1 for _ in records.iterdir()) > MAX_STORED_IMAGES:
            self._buildah("rmi", "--prune", "--force")

    def _buildah_has(self, name: str, key: str) -> bool:
        listed = self._buildah("images", "--format={{.Name}}:{{.Tag}}", f"--filter=label=seatrial.dev/content={key}")
        return name in listed.split()

    def _buildah(self, *argv: str) -> str:
        storage = self.settings.cache_dir / "containers"
        environ = {**os.environ, "BUILDAH_ISOLATION": "chroot"}
        options = [f"--root={storage}", f"--runroot={storage}-run", "--storage-driver=overlay"]
        # buildah mounts its storage and forgets it; in a mount namespace of its own that ends with it.
        return shell.run(["unshare", "--mount", "--", "buildah", *options, *argv], env=environ, timeout_seconds=1800)


def place(context: Context, folder: Path) -> None:
    """Lay out an image's build context: its sources and binaries, and nothing else of the checkout."""
    folder.mkdir(parents=True)
    for path in imagespec.files_of(context.image.sources):
        target = folder / path.relative_to(context.root)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, target, follow_symlinks=False)
    for name, path in context.binaries.items():
        target = folder / "build" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, target)


PIP_FILES = (Path("/etc/pip.conf"), Path.home() / ".pip" / "pip.conf", Path.home() / ".config" / "pip" / "pip.conf")


def pip_configuration(environ: Mapping[str, str], *, files: Sequence[Path]) -> str:
    """The machine's way to the package index as a pip.conf for builds; certificates are those that builds see in /etc/ssl/certs."""
    options: dict[str, str] = {}
    for path in files:
        parser = configparser.RawConfigParser()
        with contextlib.suppress(configparser.Error, OSError):
            parser.read(path, encoding="utf-8")
        for section in ("global", "install"):
            if parser.has_section(section):
                options |= {name: value for name, value in parser.items(section) if name in PIP_OPTIONS}
    for name in PIP_OPTIONS:
        value = environ.get("PIP_" + name.upper().replace("-", "_"))
        if value:
            options[name] = value
    options["cert"] = "/etc/ssl/certs/ca-certificates.crt"
    lines = (f"{name} = {' '.join(value.split())}" for name, value in sorted(options.items()))
    return "\n".join(["[global]", *lines, ""])
