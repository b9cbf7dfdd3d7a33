"""The API client: what each answer means, tokens, kubeconfigs."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import yaml

from seatrial.effects.kube import (
    Access,
    ApiUnavailable,
    Expired,
    Kube,
    MissingRight,
    NamespaceGone,
    QuotaExceeded,
    Rejected,
    core_path,
    group_path,
    in_cluster_access,
    kubeconfig_access,
    resource_of,
)
from seatrial.errors import AlreadyExists, Conflict, InvalidSpec, NotFound, SeatrialError, Unavailable
from tests.integration.fakeapi import Answer, FakeApi, status

PODS = core_path("pods", namespace="evals")


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (Answer(409, "AlreadyExists"), AlreadyExists),
        (Answer(409, "Conflict"), Conflict),
        (Answer(404, "NotFound", 'pods "x" not found'), NotFound),
        (Answer(404, "NotFound", 'namespaces "evals" not found'), NamespaceGone),
        (Answer(403, "Forbidden", 'pods "x" is forbidden: exceeded quota: q, requested: pods=1'), QuotaExceeded),
        (Answer(403, "Forbidden", "unable to create: namespace evals is being terminated"), NamespaceGone),
        (Answer(403, "Forbidden", 'User "x" cannot create resource "pods" in API group ""'), MissingRight),
        (Answer(403, "Forbidden", 'violates PodSecurity "restricted"'), Rejected),
        (Answer(403, "Forbidden", 'pods "x" is forbidden: error looking up service account evals/default: not found'), ApiUnavailable),
        (Answer(401, "Unauthorized"), MissingRight),
        (Answer(400, "BadRequest", "strict decoding error"), Rejected),
        (Answer(422, "Invalid", "spec.x: Required"), Rejected),
        (Answer(410, "Expired"), Expired),
        (Answer(500, "InternalError"), ApiUnavailable),
        (Answer(503, "ServiceUnavailable"), ApiUnavailable),
        (Answer(504, "Timeout", "Too large resource version"), ApiUnavailable),
    ],
)
async def test_every_answer_has_its_meaning(answer: Answer, error: type[SeatrialError]) -> None:
    async with FakeApi().running() as api, Kube(api.access) as kube:
        api.faults.append(lambda asked: answer)
        with pytest.raises(error) as caught:
            await kube.request("POST", PODS, body={})
        assert type(caught.value) is error


async def test_a_throttled_request_waits_as_long_as_it_is_told() -> None:
    async with FakeApi().running() as api, Kube(api.access) as kube:
        answers = [Answer(429, headers={"Retry-After": "1"})]
        api.faults.append(lambda asked: answers.pop() if answers else None)
        started = time.monotonic()
        assert (await kube.get(PODS))["items"] == []
        assert time.monotonic() - started >= 1.0


async def test_a_server_that_is_not_there_leaves_the_outcome_open() -> None:
    async with Kube(Access(server="http://127.0.0.1:9")) as kube:
        with pytest.raises(Unavailable, match="did not answer"):
            await kube.get(PODS)


async def test_an_answer_that_is_no_json_is_an_error_of_ours() -> None:
    async with FakeApi().running() as api, Kube(Access(server=api.url + "/api/v1/namespaces/x/pods/y?")) as kube:
        with pytest.raises(SeatrialError):
            await kube.get("/")


async def test_requests_are_counted_without_names() -> None:
    seen: list[tuple[str, str, str]] = []
    async with FakeApi().running() as api, Kube(api.access, observer=lambda verb, what, code, _: seen.append((verb, what, code))) as kube:
        await kube.get(PODS)
        with pytest.raises(NotFound):
            await kube.get(core_path("pods", namespace="evals", name="secret-name"))
    assert seen == [("GET", "pods", "200"), ("GET", "pods", "404")]


@pytest.mark.parametrize(
    ("path", "resource"),
    [
        (core_path("pods"), "pods"),
        (core_path("pods", namespace="n", name="x"), "pods"),
        (group_path("seatrial.dev", "v1alpha1", "evaljobs", namespace="n", name="x") + "/status", "evaljobs/status"),
        (group_path("coordination.k8s.io", "v1", "leases", namespace="n"), "leases"),
    ],
)
def test_the_resource_of_a_path(path: str, resource: str) -> None:
    assert resource_of(path) == resource


async def test_denials_are_remembered_until_something_is_allowed() -> None:
    async with FakeApi().running() as api, Kube(api.access) as kube:
        api.faults.append(status(403, "Forbidden", "no", times=2))
        for _ in range(2):
            with pytest.raises(Rejected):
                await kube.get(PODS)
        assert kube.denied_since is not None
        await kube.get(PODS)
        assert kube.denied_since is None


async def test_the_token_is_read_again_after_it_was_refused(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")
    async with FakeApi().running() as api, Kube(Access(server=api.url, token_file=token)) as kube:
        await kube.get(PODS)
        assert kube._token == "first"
        token.write_text("second")
        api.faults.append(status(401, "Unauthorized", times=1))
        with pytest.raises(MissingRight):
            await kube.get(PODS)
        await kube.get(PODS)
        assert kube._token == "second"


def test_access_by_a_service_account_only_inside_a_cluster(tmp_path: Path) -> None:
    assert in_cluster_access({}, tmp_path) is None
    assert in_cluster_access({"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}, tmp_path) is None


def test_access_by_a_kubeconfig(tmp_path: Path) -> None:
    file = tmp_path / "config"
    body = {
        "current-context": "a",
        "contexts": [
            {"name": "a", "context": {"cluster": "c", "user": "u", "namespace": "evals"}},
            {"name": "b", "context": {"cluster": "c", "user": "v"}},
        ],
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1/"}}],
        "users": [{"name": "u", "user": {"token": "t"}}, {"name": "v", "user": {"tokenFile": "token"}}],
    }
    file.write_text(yaml.safe_dump(body))
    first, second = kubeconfig_access(file), kubeconfig_access(file, "b")
    assert (first.server, first.token, first.namespace) == ("http://127.0.0.1:1", "t", "evals")
    assert (second.token_file, second.namespace) == (tmp_path / "token", "default")
    with pytest.raises(InvalidSpec, match="wanted context"):
        kubeconfig_access(file, "nobody")
    assert "token='t'" not in repr(first)
