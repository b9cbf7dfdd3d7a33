"""Images that are read from elsewhere than where they are named."""

from __future__ import annotations

import pytest

from seatrial.taskpkg.mirrors import Mirrors, decode_mirrors, mirror_bases

HUB = {"docker.io": "mirror.example.com/hub", "ghcr.io/acme": "mirror.example.com/acme"}


@pytest.mark.parametrize(
    ("image", "read"),
    [
        ("python:3.12", "mirror.example.com/hub/library/python:3.12"),
        ("bitnami/redis@sha256:ab", "mirror.example.com/hub/bitnami/redis@sha256:ab"),
        ("docker.io/library/debian", "mirror.example.com/hub/library/debian"),
        ("ghcr.io/acme/tool:1", "mirror.example.com/acme/tool:1"),
        ("ghcr.io/acmeworks/tool:1", "ghcr.io/acmeworks/tool:1"),
        ("localhost:5000/x", "localhost:5000/x"),
        ("mirror.example.com/hub/library/python:3.12", "mirror.example.com/hub/library/python:3.12"),
    ],
)
def test_a_registry_is_replaced_by_its_mirror(image: str, read: str) -> None:
    assert Mirrors(HUB).of(image) == read


def test_the_longest_source_wins_and_the_prefix_takes_the_rest() -> None:
    mirrors = Mirrors({**HUB, "docker.io/library/debian": "base.example.com/debian"}, "all.example.com/proxy")
    images = ("debian", "docker.io/library/debian/slim", "python", "quay.io/x", "all.example.com/proxy/quay.io/x")
    assert [mirrors.of(image) for image in images] == [
        "mirror.example.com/hub/library/debian",
        "base.example.com/debian/slim",
        "mirror.example.com/hub/library/python",
        "all.example.com/proxy/quay.io/x",
        "all.example.com/proxy/quay.io/x",
    ]
    assert decode_mirrors(mirrors.encode()) == mirrors


DOCKERFILE = """\
# syntax=docker/dockerfile:1
ARG BASE=debian:12
ARG UNSET
FROM --platform=linux/amd64 ${BASE} AS build
RUN echo debian:12
FROM \\
  golang:1.26 as tools
FROM build
COPY --from=build /a /b
COPY --from=tools /a /b
COPY --from=ghcr.io/acme/uv:1 /uv /bin/
COPY --from=0 /c /d
FROM $UNSET
FROM scratch
"""


def test_base_images_are_replaced_where_they_stand_and_stages_are_left_alone() -> None:
    assert mirror_bases(DOCKERFILE, Mirrors(HUB), args={}) == (
        DOCKERFILE.replace("${BASE} AS", "mirror.example.com/hub/library/debian:12 AS")
        .replace("golang:1.26", "mirror.example.com/hub/library/golang:1.26")
        .replace("ghcr.io/acme/uv:1", "mirror.example.com/acme/uv:1")
    )


def test_a_build_argument_wins_over_the_default_in_the_dockerfile() -> None:
    text = mirror_bases(DOCKERFILE, Mirrors(HUB), args={"BASE": "ghcr.io/acme/base:2", "UNSET": "debian:13"})
    assert [line for line in text.splitlines() if "mirror" in line and "COPY" not in line] == [
        "FROM --platform=linux/amd64 mirror.example.com/acme/base:2 AS build",
        "  mirror.example.com/hub/library/golang:1.26 as tools",
        "FROM mirror.example.com/hub/library/debian:13",
    ]


def test_without_mirrors_a_dockerfile_stays_as_it_is() -> None:
    assert mirror_bases("FROM x\r\n", Mirrors(), args={}) == "FROM x\r\n"
