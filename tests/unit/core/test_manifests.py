from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from seatrial.core.frozen import PlannedTask
from seatrial.core.manifests import (
    AgentsWork,
    PodSettings,
    ResourceModeWithoutValue,
    Urls,
    build_secret,
    build_trial_pod,
    build_verify_pod,
    environment_resources,
    url_seconds,
)
from seatrial.core.trial_input import separate_place
from seatrial.taskpkg.mirrors import Mirrors
from tests.builders import IMAGE, UID, JobBuilder, make_job, make_task

SETTINGS = PodSettings(runner_image="runner:1")
URLS = Urls(archive="http://s3/archive?sig=$(A)", logs="http://s3/logs", result="http://s3/result")


def pod_of(job: JobBuilder, *, index: int = 0, retry: int = 0, settings: PodSettings = SETTINGS) -> dict[str, Any]:
    plan = job.plan()
    return build_trial_pod(
        plan, job.job_spec(), plan.trials[index], retry=retry, urls=URLS, encoded_input="INPUT", secret="job-key", settings=settings
    )


def container(pod: dict[str, Any], name: str) -> dict[str, Any]:
    spec = pod["spec"]
    return next(item for item in [*spec["initContainers"], *spec["containers"]] if item["name"] == name)


def mounts(pod: dict[str, Any], name: str) -> dict[str, str]:
    """Path -> volume, with the folder, and ``ro`` where it is read-only."""
    return {
        mount["mountPath"]: mount["name"]
        + (f"/{mount['subPath']}" if "subPath" in mount else "")
        + (" ro" if mount.get("readOnly") else "")
        for mount in container(pod, name)["volumeMounts"]
    }


def variables(pod: dict[str, Any], name: str) -> dict[str, Any]:
    return {item["name"]: item.get("value", item.get("valueFrom")) for item in container(pod, name)["env"]}


def test_volumes_are_mounted_as_the_architecture_says() -> None:
    pod = pod_of(make_job())
    assert mounts(pod, "stage") == {
        "/seatrial/bin": "bin",
        "/seatrial/net": "net",
        "/seatrial/task/agent": "task-agent",
        "/seatrial/task/verifier": "task-verifier",
        "/tmp": "tmp-verifier",
    }
    assert mounts(pod, "environment") == {
        "/seatrial/bin": "bin ro",
        "/seatrial/ctl/agent": "ctl-agent ro",
        "/seatrial/ctl/verifier": "ctl-verifier ro",
        "/etc/hosts": "net/hosts",
        "/etc/resolv.conf": "net/resolv.conf",
        "/logs/agent": "logs-agent",
        "/logs/verifier": "logs-verifier",
        "/logs/artifacts": "logs-artifacts",
    }
    assert mounts(pod, "agent") == {
        "/seatrial/bin": "bin ro",
        "/seatrial/ctl/agent": "ctl-agent",
        "/seatrial/task": "task-agent ro",
        "/seatrial/run/agent": "run-agent",
        "/seatrial/run/verifier": "run-verifier ro",
        "/logs/agent": "logs-agent",
        "/tmp": "tmp-agent",
    }
    assert mounts(pod, "verifier") == {
        "/seatrial/bin": "bin ro",
        "/seatrial/ctl/verifier": "ctl-verifier",
        "/seatrial/task": "task-verifier ro",
        "/seatrial/run/agent": "run-agent ro",
        "/seatrial/run/verifier": "run-verifier",
        "/logs/agent": "logs-agent",
        "/logs/verifier": "logs-verifier",
        "/logs/artifacts": "logs-artifacts",
        "/tmp": "tmp-verifier",
    }
    assert all("sizeLimit" in volume["emptyDir"] for volume in pod["spec"]["volumes"])


def test_the_pod_itself_is_closed() -> None:
    spec = pod_of(make_job())["spec"]
    wanted = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 60,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
    }
    assert {name: spec[name] for name in wanted} == wanted
    assert all(item["tolerationSeconds"] == 60 for item in spec["tolerations"])
    assert "hostNetwork" not in spec
    assert "serviceAccountName" not in spec


@pytest.mark.conforms("H-47")
def test_stage_may_make_envd_setuid_and_become_another_user_and_nothing_more() -> None:
    assert container(pod_of(make_job()), "stage")["securityContext"] == {
        "runAsNonRoot": False,
        "runAsUser": 0,
        "runAsGroup": 0,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"], "add": ["SETGID", "SETUID"]},
    }


@pytest.mark.parametrize(("name", "uid"), [("agent", 10001), ("verifier", 10002)])
def test_our_containers_are_restricted(name: str, uid: int) -> None:
    assert container(pod_of(make_job()), name)["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": uid,
        "runAsGroup": uid,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert container(pod_of(make_job()), name)["args"] == [name]


@pytest.mark.conforms("H-33", "H-35")
def test_the_environment_keeps_its_entrypoint_and_its_privileges() -> None:
    environment = container(pod_of(make_job()), "environment")
    assert (environment["image"], environment["args"]) == (IMAGE, ["/seatrial/bin/envd"])
    assert environment["startupProbe"]["exec"] == {"command": ["/seatrial/bin/envd", "--ensure"]}
    assert environment["startupProbe"]["failureThreshold"] * environment["startupProbe"]["periodSeconds"] > 10 * 365 * 86400
    assert "command" not in environment
    assert environment["securityContext"] == {"capabilities": {"drop": ["NET_RAW"]}}


def test_urls_and_keys_are_only_where_they_are_needed() -> None:
    agent = {"command": "run", "env": {"MODE": "x$(HOST)"}, "envSecrets": {"OPENAI": {"name": "s", "key": "k"}}}
    pod = pod_of(make_job().spec(agent=agent))
    assert variables(pod, "stage") == {
        "SEATRIAL_INPUT": "INPUT",
        "SEATRIAL_ARCHIVE_URL": "http://s3/archive?sig=$$(A)",
        "SEATRIAL_ARCHIVE_SHA256": "a" * 64,
    }
    assert variables(pod, "environment") == {}
    assert variables(pod, "agent") == {"MODE": "x$$(HOST)", "OPENAI": {"secretKeyRef": {"name": "s", "key": "k"}}}
    assert variables(pod, "verifier") == {
        "SEATRIAL_LOGS_URL": "http://s3/logs",
        "SEATRIAL_RESULT_URL": "http://s3/result",
        "SEATRIAL_SIGNING_KEY": {"secretKeyRef": {"name": "job-key", "key": "key"}},
    }


def test_secrets_that_templates_name_reach_the_container_that_resolves_them() -> None:
    toml = {
        "environment": {"env": {"A": "${TOKEN}"}},
        "verifier": {"env": {"B": "${TOKEN}"}},
        "solution": {"env": {"C": "${OTHER}"}},
    }
    secrets = {"TOKEN": {"name": "s", "key": "t"}, "OTHER": {"name": "s", "key": "o"}, "UNUSED": {"name": "s", "key": "u"}}
    pod = pod_of(make_job().tasks(make_task(toml=toml)).spec(environment={"envSecrets": secrets}))
    token, other = ({"secretKeyRef": {"name": "s", "key": key}} for key in "to")
    assert variables(pod, "environment") == {"A": token}
    assert variables(pod, "verifier")["SEATRIAL_VAR_TOKEN"] == token
    assert variables(pod, "agent") == {"SEATRIAL_VAR_OTHER": other, "SEATRIAL_REDACT_A": token}
    assert "UNUSED" not in json.dumps(pod)


@pytest.mark.conforms("H-155")
def test_the_pod_belongs_to_its_job_and_has_a_deadline() -> None:
    toml = {"agent": {"timeout_sec": 100}, "verifier": {"timeout_sec": 50}, "environment": {"build_timeout_sec": 10}}
    pod = pod_of(make_job().tasks(make_task("bench/x", toml=toml)), retry=2)
    assert pod["metadata"]["ownerReferences"] == [
        {
            "apiVersion": "seatrial.dev/v1alpha1",
            "kind": "EvalJob",
            "name": "job",
            "uid": UID,
            "controller": True,
            "blockOwnerDeletion": False,
        }
    ]
    assert pod["spec"]["activeDeadlineSeconds"] == 10 + 360 + 100 + 50 + 900 + 600 + 600
    labels = pod["metadata"]["labels"]
    trial = make_job().tasks(make_task("bench/x", toml=toml)).plan().trials[0].name
    assert labels == {
        "seatrial.dev/role": "trial",
        "seatrial.dev/job": UID,
        "seatrial.dev/job-name": "job",
        "seatrial.dev/task": "bench-x",
        "seatrial.dev/trial": trial,
        "seatrial.dev/attempt": "1",
        "seatrial.dev/retry": "2",
        "seatrial.dev/network": "public",
    }


def test_presigned_urls_outlive_the_pod() -> None:
    job = make_job().tasks(make_task(toml={"agent": {"timeout_sec": 100}})).spec(timeouts={"pending": "10m"})
    task = job.plan().tasks[0]
    deadline = pod_of(job)["spec"]["activeDeadlineSeconds"]
    assert url_seconds(task, job.job_spec(), SETTINGS) == 600 + deadline + 3600


@pytest.mark.conforms("H-52")
def test_the_network_label_chooses_the_policy() -> None:
    for toml, network in (({}, "public"), ({"environment": {"network_mode": "no-network"}}, "none")):
        pod = pod_of(make_job().tasks(make_task(toml=toml)))
        assert pod["metadata"]["labels"]["seatrial.dev/network"] == network


@pytest.mark.conforms("H-56", "H-57")
@pytest.mark.parametrize(
    ("environment", "resources", "expected"),
    [
        pytest.param({}, {}, {"requests": {"cpu": "50m", "memory": "64Mi", "ephemeral-storage": "64Mi"}}, id="nothing said"),
        pytest.param(
            {"cpus": 2, "memory_mb": 512, "storage_mb": 1024},
            {},
            {
                "requests": {"cpu": "2", "memory": "512Mi", "ephemeral-storage": "1024Mi"},
                "limits": {"memory": "512Mi", "ephemeral-storage": "1024Mi"},
            },
            id="auto",
        ),
        pytest.param(
            {"cpus": 0.5, "memory_mb": 32},
            {"cpu": "limit", "memory": "limit"},
            {"requests": {"cpu": "50m", "memory": "32Mi", "ephemeral-storage": "64Mi"}, "limits": {"cpu": "500m", "memory": "32Mi"}},
            id="limit leaves the request small",
        ),
        pytest.param(
            {"cpus": 1, "memory_mb": 32},
            {"cpu": "guarantee", "memory": "request"},
            {"requests": {"cpu": "1", "memory": "32Mi", "ephemeral-storage": "64Mi"}, "limits": {"cpu": "1"}},
            id="guarantee and request",
        ),
        pytest.param(
            {"cpus": 64, "memory_mb": 1 << 20, "gpus": 8},
            {"cpu": "ignore", "memory": "ignore", "gpu": "ignore"},
            {"requests": {"cpu": "50m", "memory": "64Mi", "ephemeral-storage": "64Mi"}},
            id="ignore",
        ),
        pytest.param(
            {"cpus": 1, "gpus": 2},
            {"overrides": {"cpu": "250m", "gpu": 1}},
            {"requests": {"cpu": "250m", "memory": "64Mi", "ephemeral-storage": "64Mi"}, "limits": {"nvidia.com/gpu": "1"}},
            id="overrides",
        ),
    ],
)
def test_resources_follow_harbors_modes(environment: dict[str, Any], resources: dict[str, Any], expected: dict[str, Any]) -> None:
    job = make_job().tasks(make_task(toml={"environment": environment})).spec(resources=resources)
    assert environment_resources(job.plan().tasks[0], job.job_spec(), SETTINGS) == expected


@pytest.mark.conforms("H-57")
def test_an_explicit_mode_without_a_value_is_a_fault_of_this_trial() -> None:
    job = make_job().spec(resources={"memory": "guarantee"})
    with pytest.raises(ResourceModeWithoutValue, match="memory needs a value"):
        environment_resources(job.plan().tasks[0], job.job_spec(), SETTINGS)


def test_every_container_has_requests() -> None:
    pod = pod_of(make_job())
    for name in ("stage", "environment", "agent", "verifier"):
        assert {"cpu", "memory", "ephemeral-storage"} <= set(container(pod, name)["resources"]["requests"])


def test_users_place_pods_but_cannot_take_our_labels() -> None:
    own = {
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "runtimeClassName": "gvisor",
        "priorityClassName": "low",
        "imagePullSecrets": [{"name": "pull"}],
        "labels": {"team": "a"},
        "annotations": {"note": "x"},
    }
    pod = pod_of(make_job().spec(pod=own))
    spec = pod["spec"]
    assert (spec["nodeSelector"], spec["runtimeClassName"], spec["priorityClassName"]) == ({"disk": "ssd"}, "gvisor", "low")
    assert (spec["affinity"], spec["imagePullSecrets"]) == ({"nodeAffinity": {}}, [{"name": "pull"}])
    assert spec["tolerations"][2:] == [{"key": "gpu", "operator": "Exists"}]
    assert pod["metadata"]["labels"]["team"] == "a"
    assert pod["metadata"]["annotations"]["note"] == "x"


def test_builders_change_nothing_that_they_are_given() -> None:
    job = make_job().spec(pod={"affinity": {"nodeAffinity": {"x": []}}})
    first = pod_of(job)
    first["spec"]["affinity"]["nodeAffinity"]["x"].append("changed")
    first["metadata"]["labels"].clear()
    assert pod_of(job)["spec"]["affinity"] == {"nodeAffinity": {"x": []}}


def test_the_secret_goes_with_the_job() -> None:
    body = build_secret(namespace="evals", name="job-key", job="job", job_uid=UID, key_base64="a2V5")
    assert body["data"] == {"key": "a2V5"}
    assert body["immutable"] is True
    assert body["metadata"]["ownerReferences"][0]["uid"] == UID


# --- sites of their own -----------------------------------------------------------------------------------------------------------------


BUILT = "registry:5000/tasks@sha256:" + "ab" * 32
PIN = "mirror.example/hub/python:3.12@sha256:" + "cd" * 32


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        pytest.param(make_task(image="ghcr.io/a/b:1"), "mirror.example/hub/ghcr.io/a/b:1", id="named"),
        pytest.param(make_task(image="python:3.12", pins={"python:3.12": PIN}), PIN, id="named and pinned"),
        pytest.param(replace(make_task(), image=BUILT), BUILT, id="built"),
    ],
)
def test_images_of_tasks_come_from_the_mirror_and_built_ones_from_where_they_were_pushed(task: PlannedTask, expected: str) -> None:
    settings = SETTINGS._replace(mirrors=Mirrors(prefix="mirror.example/hub"))
    assert container(pod_of(make_job().tasks(task), settings=settings), "environment")["image"] == expected


def test_our_containers_trust_the_sites_authorities_and_the_environment_is_left_alone() -> None:
    pod = pod_of(make_job(), settings=SETTINGS._replace(ca_config_map="site-ca"))
    assert pod["spec"]["volumes"][-1] == {"name": "ca", "configMap": {"name": "site-ca", "items": [{"key": "ca.crt", "path": "ca.crt"}]}}
    for name in ("stage", "agent", "verifier"):
        assert variables(pod, name)["SSL_CERT_FILE"] == "/etc/seatrial/ca/ca.crt"
        assert mounts(pod, name)["/etc/seatrial/ca"] == "ca ro"
    assert "SSL_CERT_FILE" not in variables(pod, "environment")
    assert "/etc/seatrial/ca" not in mounts(pod, "environment")


def test_agent_and_environment_know_the_proxy_and_nothing_of_the_store_does() -> None:
    proxy = (("HTTPS_PROXY", "http://proxy:3128"), ("https_proxy", "http://proxy:3128"))
    pod = pod_of(make_job(), settings=SETTINGS._replace(proxy=proxy))
    for name in ("agent", "environment"):
        assert {key: variables(pod, name).get(key) for key, _ in proxy} == dict(proxy)
    for name in ("stage", "verifier"):
        assert not variables(pod, name).keys() & dict(proxy).keys()


SEPARATE: dict[str, Any] = {
    "environment": {"cpus": 4, "env": {"A": "agent"}, "workdir": "/agent"},
    "verifier": {
        "env": {"KEY": "${JUDGE}"},
        "environment": {
            "docker_image": "registry.example/judge:1",
            "memory_mb": 128,
            "env": {"B": "${JUDGE}"},
            "network_mode": "no-network",
        },
    },
}


@pytest.mark.conforms("H-103", "H-105", "H-114")
def test_the_pod_of_a_separate_verifier_has_its_own_image_and_inherits_nothing() -> None:
    judge = {"JUDGE": {"name": "judge", "key": "token"}}
    job = make_job().tasks(make_task(toml=SEPARATE)).spec(
        environment={"envSecrets": judge}, agent={"command": "solve", "envSecrets": {"OPENAI_API_KEY": {"name": "s", "key": "k"}}}
    )  # fmt: skip
    plan = job.plan()
    urls = URLS._replace(work=AgentsWork(logs="http://s3/0/logs", logs_sha256="d" * 64, result="http://s3/0/result"))
    pod = build_verify_pod(
        plan, job.job_spec(), plan.trials[0], retry=1, urls=urls, encoded_input="INPUT", secret="job-key", settings=SETTINGS
    )  # fmt: skip
    assert [item["name"] for item in (*pod["spec"]["initContainers"], *pod["spec"]["containers"])] == ["stage", "environment", "verifier"]
    assert pod["metadata"]["name"].endswith("-1-v")
    labels = pod["metadata"]["labels"]
    assert (labels["seatrial.dev/role"], labels["seatrial.dev/network"], labels["seatrial.dev/retry"]) == ("verify", "none", "1")
    environment = container(pod, "environment")
    assert environment["image"] == "registry.example/judge:1"
    assert environment["env"] == [{"name": "B", "valueFrom": {"secretKeyRef": {"name": "judge", "key": "token"}}}]
    assert environment["resources"]["requests"] == {"cpu": "50m", "memory": "128Mi", "ephemeral-storage": "64Mi"}
    assert mounts(pod, "environment") == {
        "/seatrial/bin": "bin ro",
        "/seatrial/ctl/agent": "ctl-agent ro",
        "/seatrial/ctl/verifier": "ctl-verifier ro",
        "/etc/hosts": "net/hosts",
        "/etc/resolv.conf": "net/resolv.conf",
        "/logs/verifier": "logs-verifier",
    }
    assert "OPENAI_API_KEY" not in str(pod)
    staged = variables(pod, "stage")
    names = ("SEATRIAL_AGENT_LOGS_URL", "SEATRIAL_AGENT_LOGS_SHA256", "SEATRIAL_AGENT_RESULT_URL")
    assert [staged[name] for name in names] == ["http://s3/0/logs", "d" * 64, "http://s3/0/result"]
    volumes = {volume["name"] for volume in pod["spec"]["volumes"]}
    sockets = {"ctl-agent", "ctl-verifier"}
    assert volumes == {"bin", *sockets, "net", "task-verifier", "run-agent", "run-verifier", "logs-verifier", "tmp-verifier"}


@pytest.mark.conforms("H-103")
@pytest.mark.parametrize(
    ("verifier", "image", "is_bundled", "cpus"),
    [
        pytest.param({"environment_mode": "separate"}, "registry.example/task:1", False, 4, id="copy of the environment"),
        pytest.param({"environment": {"cpus": 1}}, "registry.example/task:1", False, 1, id="own settings, image inherited"),
        pytest.param({"environment": {"docker_image": "judge:1"}}, "judge:1", True, None, id="own image"),
    ],
)
def test_where_a_separate_verifier_runs(verifier: dict[str, Any], image: str, is_bundled: bool, cpus: int | None) -> None:
    place = separate_place(make_task(toml={"environment": {"cpus": 4}, "verifier": verifier}))
    assert place is not None
    assert (place.image, place.is_bundled, place.section.cpus) == (image, is_bundled, cpus)


def test_the_users_agent_image_sees_the_desk_and_nothing_of_the_verifier() -> None:
    agent = {"image": "registry.example/agent:1", "args": ["--fast"], "kwargs": {"b": 1, "a": "$(X)"}, "env": {"MODE": "x"}}
    job = make_job().spec(agent={**agent, "envSecrets": {"API_KEY": {"name": "keys", "key": "k"}}})
    pod = pod_of(job)
    image = container(pod, "agent-image")
    assert (image["image"], image["args"]) == ("registry.example/agent:1", ["--fast"])
    assert image["lifecycle"] == {"postStart": {"exec": {"command": ["/seatrial/bin/seatrial-env", "hold"]}}}
    assert mounts(pod, "agent-image") == {
        "/seatrial/bin": "bin ro",
        "/seatrial/desk": "desk",
        "/seatrial/desk/created": "desk/created ro",
        "/seatrial/task": "task-agent ro",
        "/logs/agent": "logs-agent",
        "/tmp": "tmp-image",
    }
    assert [item["name"] for item in pod["spec"]["containers"]] == ["agent-image", "environment", "agent", "verifier"]
    told = variables(pod, "agent-image")
    assert (told["SEATRIAL_ENV"], told["SEATRIAL_KWARGS"], told["MODE"]) == ("/seatrial/bin/seatrial-env", '{"a": "$$(X)", "b": 1}', "x")
    assert told["API_KEY"] == {"secretKeyRef": {"name": "keys", "key": "k"}}
    holders = [item["name"] for item in pod["spec"]["containers"] if "API_KEY" in str(item["env"])]
    assert holders == ["agent-image", "agent"]
    assert image["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert "desk" in mounts(pod, "agent").values()
    assert "desk" not in mounts(pod, "environment").values()


@pytest.mark.parametrize("runner", ["agent", "verifier"])
def test_the_environments_secrets_reach_the_runners_for_redaction_only(runner: str) -> None:
    secrets = {"DATABASE": {"name": "s", "key": "k"}}
    toml = {"environment": {"env": {"DB": "${DATABASE}", "MODE": "fast"}}}
    pod = pod_of(make_job().tasks(make_task(toml=toml)).spec(environment={"envSecrets": secrets}))
    found = {name: value for name, value in variables(pod, runner).items() if name.startswith("SEATRIAL_REDACT_")}
    assert found == {"SEATRIAL_REDACT_DB": {"secretKeyRef": {"name": "s", "key": "k"}}}
