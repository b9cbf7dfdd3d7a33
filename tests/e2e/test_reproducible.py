"""The product's images are the same bytes whenever they are built: a digest that was signed or scanned is that of its sources."""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from .harness import REPOSITORY

pytestmark = [pytest.mark.deep]

SCRATCH = "seatrial.local/reproduced:dev"


@pytest.mark.parametrize("name", ["operator", "runner"])
def test_two_builds_from_nothing_have_one_digest(name: str, tmp_path: Path) -> None:
    sys.path.insert(0, str(REPOSITORY / "tests" / "cluster"))
    from localcluster import images, imagespec, shell
    from localcluster.settings import load

    class FromNothing(images.Builder):
        """Neither takes layers from the cache nor puts the image among those of the cluster."""

        def _buildah(self, *argv: str) -> str:
            return super()._buildah(*(("bud", "--no-cache", *argv[1:]) if argv[0] == "bud" else argv))

        def _publish(self, name: str, key: str) -> images.Built:
            digest = tmp_path / "digest"
            layout = tmp_path / "layout"
            self._buildah("push", "--disable-compression", "--format=oci", f"--digestfile={digest}", name, f"oci:{layout}:x")
            shutil.rmtree(layout)
            return images.Built(name=name, key=key, digest=digest.read_text())

    images.Builder(load({}, checkout=REPOSITORY)).build([name])
    builder = FromNothing(load({}, checkout=REPOSITORY))
    (image,) = imagespec.select(REPOSITORY, [name])
    context = builder._context(replace(image, name=SCRATCH), builder.base_key())
    with shell.locked(builder.settings.cache_dir / "locks" / "images.lock"):
        digests = {builder._build(context).digest for _ in range(2)}
        builder._buildah("rmi", SCRATCH)
    assert len(digests) == 1
