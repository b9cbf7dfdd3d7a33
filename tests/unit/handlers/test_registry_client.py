"""Whom the operator asks for images: what its own configuration names, wherever it is, and others outside the cluster's networks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from seatrial.effects.settings import Settings
from seatrial.errors import Forbidden
from seatrial.handlers.serve import registry_client


def make_settings(auth_file: Path) -> Settings:
    return Settings(
        s3_endpoint="http://s3:9000",
        s3_bucket="b",
        s3_access_key="access",
        s3_secret_key="hidden",
        build_repository="127.0.0.1:1/tasks",
        build_insecure=True,
        build_pull_repository="localhost:2/tasks",
        image_mirrors=("docker.io=127.0.0.1:3/hub",),
        image_prefix="127.0.0.1:4/all",
        registry_auth_file=str(auth_file),
        blocked_cidrs=("198.51.100.0/24", "2001:db8::/32"),
    )


@pytest.mark.parametrize(
    ("image", "is_asked"),
    [
        pytest.param("127.0.0.1:1/tasks:key", True, id="for builds"),
        pytest.param("localhost:2/tasks:key", True, id="for builds, by the nodes' name"),
        pytest.param("127.0.0.1:3/hub/a:1", True, id="a mirror"),
        pytest.param("127.0.0.1:4/all/a:1", True, id="the prefix"),
        pytest.param("127.0.0.1:5/a:1", True, id="with credentials"),
        pytest.param("127.0.0.1:6/a:1", False, id="loopback"),
        pytest.param("localhost/a:1", False, id="loopback by name"),
        pytest.param("169.254.169.254/a:1", False, id="metadata"),
        pytest.param("198.51.100.7:5000/a:1", False, id="the cluster's network"),
        pytest.param("[2001:db8::7]/a:1", False, id="the cluster's other network"),
    ],
)
def test_a_registry_is_asked_where_the_installation_names_it_or_a_task_could_go(tmp_path: Path, image: str, is_asked: bool) -> None:
    auth_file = tmp_path / "config.json"
    auth_file.write_text(json.dumps({"auths": {"https://127.0.0.1:5": {"username": "me", "password": "pass"}}}))
    client = registry_client(make_settings(auth_file))
    with pytest.raises(Exception) as caught:
        client.digest(image, seconds=5)
    assert isinstance(caught.value, Forbidden) is not is_asked
    assert ("Connection refused" in str(caught.value)) is is_asked
