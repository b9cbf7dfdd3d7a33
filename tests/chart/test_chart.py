"""What the chart renders, which values it takes, and which rights it gives.

``SEATRIAL_WRITE_SNAPSHOTS=1`` writes the snapshots anew; look at the difference before you commit it.
"""

from __future__ import annotations

import base64
import copy
import json
import os
import re
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml

from seatrial.effects.settings import Settings, read_settings

from .conftest import CHART, REQUIRED, Helm, Refused

SNAPSHOTS = Path(__file__).parent / "snapshots"


def values(**changes: Any) -> dict[str, Any]:
    """The least values, with ``changes`` merged in."""
    return merged(copy.deepcopy(dict(REQUIRED)), changes)


def merged(base: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    for name, change in changes.items():
        base[name] = merged(base.get(name, {}), change) if isinstance(change, Mapping) and isinstance(base.get(name), dict) else change
    return base


PERMUTATIONS: Mapping[str, dict[str, Any]] = {
    "minimal": values(),
    "namespaced": values(namespaces=["evals", "team-b"], sharedNamespaces=["suites"]),
    "full": values(
        crds={"install": False},
        image={"repository": "registry.example/operator", "digest": f"sha256:{'a' * 64}"},
        runnerImage={"repository": "registry.example/runner", "tag": "2", "pullPolicy": "Always"},
        imagePullSecrets=[{"name": "registry"}],
        namespaces=["evals"],
        s3={
            "endpoint": "https://s3.example.com",
            "externalEndpoint": "https://store.example.com",
            "presignEndpoint": "https://s3.inside.example.com:8443",
            "region": "eu-central-1",
            "pathStyle": False,
            "webIdentity": {"roleArn": "arn:aws:iam::123456789012:role/seatrial"},
        },
        signingKey={"existingSecret": "own-signing-key"},
        operator={
            "replicas": 3,
            "maxPods": 200,
            "settings": {"LOG_LEVEL": "DEBUG", "WORKERS": 8},
            "podLabels": {"team": "evals"},
            "podAnnotations": {"note": "text"},
            "nodeSelector": {"pool": "system"},
            "tolerations": [{"key": "system", "operator": "Exists"}],
            "affinity": {"nodeAffinity": {}},
            "priorityClassName": "high",
            "topologySpreadConstraints": [
                {"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": {}}
            ],
        },
        kueue={"enabled": True},
        tracing={"endpoint": "http://collector.observability.svc:4318", "existingSecret": "collector"},
        webhook={"url": "https://hooks.example.com:8443/seatrial", "existingSecret": "hook"},
        site={
            "caBundle": "-----BEGIN CERTIFICATE-----\nMA==\n-----END CERTIFICATE-----\n",
            "imagePrefix": "mirror.example.com/hub",
            "imageMirrors": {"docker.io": "mirror.example.com/hub", "ghcr.io/acme": "mirror.example.com/acme"},
            "pinImages": False,
            "proxy": {"httpProxy": "http://proxy:3128", "httpsProxy": "http://proxy:3128", "noProxy": ".svc,10.0.0.0/8"},
        },
        serviceAccount={"name": "evaluator", "annotations": {"role": "evals"}},
        networkPolicies={
            "s3": {"to": [{"ipBlock": {"cidr": "203.0.113.7/32"}}], "port": 8443},
            "publicEgress": [{"to": [{"ipBlock": {"cidr": "10.9.8.7/32"}}], "ports": [{"protocol": "TCP", "port": 3128}]}],
            "verifyInternet": False,
            "operator": {"create": True, "apiServer": {"cidrs": ["192.0.2.1/32"], "ports": [6443]}},
        },
        metrics={
            "service": {"annotations": {"scrape": "true"}},
            "serviceMonitor": {"enabled": True, "interval": "15s", "labels": {"prometheus": "main"}},
            "podMonitor": {"enabled": True, "labels": {"prometheus": "main"}},
            "rules": {"enabled": True, "runbookUrl": "https://wiki.example.com/"},
            "dashboards": {"enabled": True, "annotations": {"grafana_folder": "seatrial"}},
        },
        commonLabels={"owner": "platform"},
        fullnameOverride="trials",
    ),
    "bare": values(
        operator={"replicas": 1},
        rbac={"aggregate": False, "clientConfig": False},
        networkPolicies={"create": False},
        metrics={"service": {"enabled": False}},
    ),
    "store": values(
        namespaces=["evals"],
        s3={
            "endpoint": "http://seatrial-store.seatrial-system.svc.cluster.local:9000",
            "externalEndpoint": "http://192.0.2.9:30900",
            "existingSecret": "seatrial-store",
        },
        bundledStore={"enabled": True, "nodePort": 30900, "persistence": {"storageClassName": "fast"}},
    ),
    "registry": values(
        namespaces=["evals"],
        builds={
            "repository": "seatrial-registry.seatrial-system.svc.cluster.local:5000/tasks",
            "pullRepository": "localhost:30500/tasks",
            "insecure": True,
        },
        bundledRegistry={"enabled": True, "nodePort": 30500, "persistence": {"enabled": False}},
        networkPolicies={"operator": {"create": True}},
        metrics={"service": {"enabled": False}},
    ),
}


def shown(helm: Helm, chosen: Mapping[str, Any]) -> str:
    """The rendered chart without the CRDs, which have a test of their own, and without the random key."""
    objects = [item for item in helm.objects(chosen) if item["kind"] != "CustomResourceDefinition"]
    for item in objects:
        if item["kind"] == "Secret":
            item["data"] = {name: f"<{len(base64.b64decode(value))} bytes>" for name, value in item["data"].items()}
        # Made from code, with a test of their own.
        if item["kind"] == "ConfigMap" and item["metadata"]["name"].endswith("-dashboard"):
            item["data"] = dict.fromkeys(item["data"], "<dashboard>")
        if item["kind"] == "PrometheusRule":
            item["spec"] = "<rules>"
        for template in (item.get("spec", {}).get("template", {}),) if item["kind"] == "Deployment" else ():
            if "checksum/settings" in template["metadata"].get("annotations", {}):
                template["metadata"]["annotations"]["checksum/settings"] = "<sha256>"
    return yaml.safe_dump_all(objects, sort_keys=False, width=130)


def one(objects: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    (found,) = [item for item in objects if (item["kind"], item["metadata"]["name"]) == (kind, name)]
    return found


@pytest.mark.parametrize("name", PERMUTATIONS)
def test_chart_renders_as_reviewed(helm: Helm, name: str) -> None:
    path = SNAPSHOTS / f"{name}.yaml"
    text = shown(helm, PERMUTATIONS[name])
    if os.environ.get("SEATRIAL_WRITE_SNAPSHOTS"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("name", PERMUTATIONS)
def test_lint_finds_nothing(helm: Helm, name: str) -> None:
    assert "1 chart(s) linted, 0 chart(s) failed" in helm.lint(PERMUTATIONS[name])


# --- values -----------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"s3": {"endpoint": ""}}, "/s3/endpoint"),
        ({"s3": {"endpoint": "minio:9000"}}, "/s3/endpoint"),
        ({"s3": {"bucket": "Evals"}}, "/s3/bucket"),
        ({"s3": {"region": ""}}, "/s3/region"),
        ({"s3": {"existingSecret": ""}}, "/s3/existingSecret"),
        ({"s3": {"accessKey": "x"}}, "/s3"),
        ({"operator": {"replicas": -1}}, "/operator/replicas"),
        ({"operator": {"settings": {"log_level": "DEBUG"}}}, "/operator/settings"),
        ({"operator": {"settings": {"S3_SECRET_KEY": "x"}}}, "/operator/settings"),
        ({"image": {"digest": "latest"}}, "/image/digest"),
        ({"image": {"pullPolicy": "Sometimes"}}, "/image/pullPolicy"),
        ({"namespaces": ["Evals"]}, "/namespaces/0"),
        ({"namespaces": ["evals", "evals"]}, "/namespaces"),
        ({"networkPolicies": {"blockedCidrs": ["10.0.0.0"]}}, "/networkPolicies/blockedCidrs/0"),
        ({"replicas": 2}, "additional properties 'replicas' not allowed"),
    ],
    ids=str,
)
def test_wrong_values_are_refused_by_path(helm: Helm, changes: dict[str, Any], path: str) -> None:
    with pytest.raises(Refused) as caught:
        helm.template(values(**changes))
    assert path in str(caught.value)


def test_a_store_outside_the_cluster_must_be_named_for_the_network_policies(helm: Helm) -> None:
    chosen = values(namespaces=["evals"], s3={"endpoint": "https://s3.example.com"})
    with pytest.raises(Refused, match=r"networkPolicies\.s3\.to: say where https://s3\.example\.com is"):
        helm.template(chosen)


def test_the_schema_knows_every_value_and_every_value_is_documented() -> None:
    text = (CHART / "values.yaml").read_text()
    schema = json.loads((CHART / "values.schema.json").read_text())

    def of_schema(node: dict[str, Any]) -> Any:
        return {name: of_schema(item) for name, item in node["properties"].items() if name != "global"} if "properties" in node else None

    def of_values(node: Any, known: Any) -> Any:
        return {name: of_values(item, (known or {}).get(name)) for name, item in node.items()} if isinstance(known, dict) else None

    assert of_values(yaml.safe_load(text), of_schema(schema)) == of_schema(schema)
    undocumented = [
        line
        for before, line in zip(text.splitlines(), text.splitlines()[1:], strict=False)
        if re.fullmatch(r" *[A-Za-z0-9]+: .+", line) and not before.lstrip().startswith("#")
    ]
    assert undocumented == []


# --- rights -----------------------------------------------------------------------------------------------------------------------------

TRIAL_RIGHTS = {
    "seatrial.dev/evaljobs": ["delete", "get", "list", "watch"],
    "seatrial.dev/tasks": ["get", "list", "watch"],
    "seatrial.dev/tasksets": ["get", "list", "watch"],
    "seatrial.dev/evaljobs/status": ["patch"],
    "seatrial.dev/tasks/status": ["patch"],
    "seatrial.dev/tasksets/status": ["patch"],
    "/pods": ["create", "delete", "get", "list", "watch"],
    "/secrets": ["create"],
    "/events": ["list"],
    "events.k8s.io/events": ["create", "patch"],
}


def rights(rules: list[dict[str, Any]]) -> dict[str, list[str]]:
    found: dict[str, set[str]] = {}
    for rule in rules:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                found.setdefault(f"{group}/{resource}", set()).update(rule["verbs"])
    return {name: sorted(verbs) for name, verbs in found.items()}


def bound_to_operator(objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Roles that a binding gives to the operator's ServiceAccount."""
    account = next(item["metadata"]["name"] for item in objects if item["kind"] == "ServiceAccount")
    given = {
        (item["roleRef"]["kind"], item["roleRef"]["name"], item["metadata"].get("namespace"))
        for item in objects
        if item["kind"] in ("RoleBinding", "ClusterRoleBinding")
        and {(who["kind"], who["name"]) for who in item["subjects"]} == {("ServiceAccount", account)}
    }
    return [item for item in objects if (item["kind"], item["metadata"]["name"], item["metadata"].get("namespace")) in given]


def test_watching_the_whole_cluster_takes_one_cluster_role(helm: Helm) -> None:
    found = {(item["kind"], item["metadata"].get("namespace")): rights(item["rules"]) for item in bound_to_operator(helm.objects(values()))}
    assert found == {
        ("ClusterRole", None): TRIAL_RIGHTS,
        ("Role", "seatrial-system"): {"coordination.k8s.io/leases": ["create", "get", "update"]},
    }


def test_watching_namespaces_takes_a_role_in_each_and_no_cluster_role(helm: Helm) -> None:
    found = bound_to_operator(helm.objects(values(namespaces=["evals", "team-b"])))
    assert {(item["kind"], item["metadata"]["namespace"]): rights(item["rules"]) for item in found} == {
        ("Role", "evals"): TRIAL_RIGHTS,
        ("Role", "team-b"): TRIAL_RIGHTS,
        ("Role", "seatrial-system"): {"coordination.k8s.io/leases": ["create", "get", "update"]},
    }


def test_a_shared_namespace_is_only_read(helm: Helm) -> None:
    found = bound_to_operator(helm.objects(values(namespaces=["evals"], sharedNamespaces=["suites", "evals"])))
    shared = [rights(item["rules"]) for item in found if item["metadata"]["namespace"] == "suites"]
    assert shared == [{"seatrial.dev/tasks": ["get", "list"], "seatrial.dev/tasksets": ["get", "list"]}]
    assert len([item for item in found if item["metadata"]["namespace"] == "evals"]) == 1


def test_the_lease_may_only_be_read_and_changed_by_its_name(helm: Helm) -> None:
    objects = helm.objects(values())
    rules = one(objects, "Role", "seatrial-lease")["rules"]
    assert [(rule.get("resourceNames"), rule["verbs"]) for rule in rules] == [(None, ["create"]), (["seatrial"], ["get", "update"])]
    settings = one(objects, "ConfigMap", "seatrial")["data"]
    assert (settings["SEATRIAL_LEASE_NAME"], settings["SEATRIAL_LEASE_NAMESPACE"]) == ("seatrial", "seatrial-system")


@pytest.mark.parametrize("name", PERMUTATIONS)
@pytest.mark.conforms("H-62")
def test_nothing_may_exec_into_pods_or_read_secrets_and_no_verb_is_a_star(helm: Helm, name: str) -> None:
    roles = [item for item in helm.objects(PERMUTATIONS[name]) if item["kind"] in ("Role", "ClusterRole")]
    assert len(roles) >= 2
    for role in roles:
        for resource, verbs in rights(role["rules"]).items():
            assert "*" not in [resource, *verbs]
            assert not resource.startswith("/pods/")
            if resource == "/secrets":
                assert verbs == ["create"]


# --- operator -----------------------------------------------------------------------------------------------------------------------------


def test_the_operator_understands_what_the_chart_tells_it(helm: Helm) -> None:
    objects = helm.objects(PERMUTATIONS["full"])
    container = one(objects, "Deployment", "trials")["spec"]["template"]["spec"]["containers"][0]
    environment = {
        **one(objects, "ConfigMap", "trials")["data"],
        **{item["name"]: "name=from a Secret" for item in container["env"] if "valueFrom" in item},
    }
    assert environment.keys() <= {f"SEATRIAL_{item.name.upper()}" for item in fields(Settings)}
    settings = read_settings(environment)
    assert (settings.namespaces, settings.s3_path_style, settings.runner_image, settings.workers, settings.listen_port) == (
        ("evals",),
        False,
        "registry.example/runner:2",
        8,
        container["ports"][0]["containerPort"],
    )
    mounts = {item["name"]: item["mountPath"] for item in container["volumeMounts"]}
    assert (settings.s3_credentials_dir, settings.s3_web_identity_token_file) == (mounts["s3"], f"{mounts['web-identity']}/token")
    assert (settings.webhook_token_file, settings.otlp_headers_file) == (f"{mounts['webhook']}/token", f"{mounts['tracing']}/headers")
    assert settings.max_pods == 200


def test_secrets_reach_only_the_operator_and_only_by_reference(helm: Helm) -> None:
    objects = helm.objects(values())
    container = one(objects, "Deployment", "seatrial")["spec"]["template"]["spec"]["containers"][0]
    assert [(item["name"], item["valueFrom"]["secretKeyRef"]) for item in container["env"] if "valueFrom" in item] == [
        ("SEATRIAL_SIGNING_SECRET", {"name": "seatrial-signing", "key": "signingKey"}),
    ]
    volumes = one(objects, "Deployment", "seatrial")["spec"]["template"]["spec"]["volumes"]
    assert [item["secret"]["secretName"] for item in volumes if "secret" in item] == ["s3-credentials"]
    client = one(objects, "ConfigMap", "seatrial-client")["data"]
    assert client == {
        "endpoint": "http://minio.minio.svc.cluster.local:9000",
        "externalEndpoint": "http://minio.minio.svc.cluster.local:9000",
        "bucket": "evals",
        "region": "us-east-1",
        "pathStyle": "true",
        "runnerImage": "ghcr.io/seatrial/runner:0.1.0",
        "credentialsSecret": "s3-credentials",
    }


def test_the_operator_meets_the_restricted_level(helm: Helm) -> None:
    pod = one(helm.objects(values()), "Deployment", "seatrial")["spec"]["template"]["spec"]
    assert pod["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": 65532,
        "runAsGroup": 65532,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert [container["securityContext"] for container in pod["containers"]] == [
        {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
    ]
    assert [set(volume) for volume in pod["volumes"]] == [{"name", "secret"}, {"name", "emptyDir"}]


def test_a_changed_setting_restarts_the_operator(helm: Helm) -> None:
    def checksum(chosen: Mapping[str, Any]) -> str:
        template = one(helm.objects(chosen), "Deployment", "seatrial")["spec"]["template"]
        return str(template["metadata"]["annotations"]["checksum/settings"])

    assert checksum(values()) == checksum(values())
    assert checksum(values()) != checksum(values(operator={"settings": {"LOG_LEVEL": "DEBUG"}}))


def test_a_rollout_never_has_more_than_the_replicas_and_one_may_be_away(helm: Helm) -> None:
    objects = helm.objects(values())
    spec = one(objects, "Deployment", "seatrial")["spec"]
    assert (spec["replicas"], spec["strategy"]["rollingUpdate"], spec["template"]["spec"]["terminationGracePeriodSeconds"]) == (
        2,
        {"maxUnavailable": 1, "maxSurge": 0},
        30,
    )
    assert one(objects, "PodDisruptionBudget", "seatrial")["spec"]["minAvailable"] == 1
    assert "PodDisruptionBudget" not in {item["kind"] for item in helm.objects(PERMUTATIONS["bare"])}


# --- trials -----------------------------------------------------------------------------------------------------------------------------


def test_three_network_policies_in_each_namespace_and_none_lets_anything_in(helm: Helm) -> None:
    policies = [item for item in helm.objects(PERMUTATIONS["namespaced"]) if item["kind"] == "NetworkPolicy"]
    found = {(item["metadata"]["namespace"], item["spec"]["podSelector"]["matchLabels"]["seatrial.dev/network"]) for item in policies}
    assert found == {(namespace, network) for namespace in ("evals", "team-b") for network in ("public", "none", "verify")}
    assert [(item["spec"]["policyTypes"], item["spec"]["ingress"]) for item in policies] == [(["Ingress", "Egress"], [])] * 6


def in_namespace(name: str) -> dict[str, Any]:
    return {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}}}


def own_pods(component: str) -> dict[str, Any]:
    """Of the release itself, not everything in its namespace."""
    labels = {"app.kubernetes.io/instance": "seatrial", "app.kubernetes.io/component": component}
    return {**in_namespace("seatrial-system"), "podSelector": {"matchLabels": labels}}


@pytest.mark.parametrize(
    ("endpoint", "peer", "port"),
    [
        (
            "http://minio.minio.svc.cluster.local:9000",
            {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "minio"}}},
            9000,
        ),
        ("http://minio.store.svc", {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "store"}}}, 80),
        ("https://192.0.2.7/", {"ipBlock": {"cidr": "192.0.2.7/32"}}, 443),
        ("http://192.0.2.7:9000", {"ipBlock": {"cidr": "192.0.2.7/32"}}, 9000),
    ],
)
def test_a_trial_without_network_reaches_the_store_and_dns_only(helm: Helm, endpoint: str, peer: dict[str, Any], port: int) -> None:
    objects = helm.objects(values(namespaces=["evals"], s3={"endpoint": endpoint}))
    assert one(objects, "NetworkPolicy", "seatrial-none")["spec"]["egress"] == [
        {"to": [peer], "ports": [{"protocol": "TCP", "port": port}]},
        {
            "to": [
                {
                    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}},
                    "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}},
                }
            ],
            "ports": [{"protocol": "UDP", "port": 53}, {"protocol": "TCP", "port": 53}],
        },
    ]


def test_trials_and_operator_each_reach_the_store_by_their_own_way(helm: Helm) -> None:
    chosen = values(
        namespaces=["evals"],
        s3={"endpoint": "http://minio.minio.svc:9000", "presignEndpoint": "http://192.0.2.7:9443"},
        networkPolicies={"operator": {"create": True}},
    )
    objects = helm.objects(chosen)
    own = {"to": [in_namespace("minio")], "ports": [{"protocol": "TCP", "port": 9000}]}
    theirs = {"to": [{"ipBlock": {"cidr": "192.0.2.7/32"}}], "ports": [{"protocol": "TCP", "port": 9443}]}
    assert one(objects, "NetworkPolicy", "seatrial-none")["spec"]["egress"][0] == theirs
    egress = one(objects, "NetworkPolicy", "seatrial-operator")["spec"]["egress"]
    assert [rule in egress for rule in (own, theirs)] == [True, True]


def test_only_the_stores_own_pods_are_reached_where_it_is_a_part_of_the_release(helm: Helm) -> None:
    rule = one(helm.objects(PERMUTATIONS["store"]), "NetworkPolicy", "seatrial-none")["spec"]["egress"][0]
    assert rule["to"] == [own_pods("store")]
    other = merged(copy.deepcopy(PERMUTATIONS["store"]), {"bundledStore": {"enabled": False}})
    assert one(helm.objects(other), "NetworkPolicy", "seatrial-none")["spec"]["egress"][0]["to"] == [in_namespace("seatrial-system")]


def test_an_operator_that_pins_images_reaches_registries_and_its_tests_reach_it(helm: Helm) -> None:
    def policy(**site: Any) -> dict[str, Any]:
        mine = {"create": True, "apiServer": {"cidrs": ["192.0.2.1/32"]}, "metricsFrom": [in_namespace("monitoring")]}
        spec = one(helm.objects(values(site=site, networkPolicies={"operator": mine})), "NetworkPolicy", "seatrial-operator")["spec"]
        assert isinstance(spec, dict)
        return spec

    mirrored = policy(imageMirrors={"docker.io": "mirror.example.com:5000/hub"}, imagePrefix="mirror.example.com:5001")
    assert [rule for rule in mirrored["egress"] if "to" not in rule] == [
        {"ports": [{"protocol": "TCP", "port": port} for port in (443, 5000, 5001)]}
    ]
    assert [rule for rule in policy(pinImages=False)["egress"] if "to" not in rule] == []
    labels = {"app.kubernetes.io/instance": "seatrial", "app.kubernetes.io/component": "test"}
    assert mirrored["ingress"][0]["from"] == [in_namespace("monitoring"), {"podSelector": {"matchLabels": labels}}]


@pytest.mark.conforms("H-62")
def test_a_trial_with_network_does_not_reach_the_cluster_or_metadata_services(helm: Helm) -> None:
    policy = one(helm.objects(values(namespaces=["evals"])), "NetworkPolicy", "seatrial-public")
    four, six = (item["ipBlock"] for item in policy["spec"]["egress"][2]["to"])
    assert (four["cidr"], six["cidr"]) == ("0.0.0.0/0", "::/0")
    assert {"10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16", "100.64.0.0/10"} < set(four["except"])
    assert {"fc00::/7", "fe80::/10"} < set(six["except"])


# --- text -----------------------------------------------------------------------------------------------------------------------------


def test_notes_say_the_next_command(helm: Helm) -> None:
    notes = helm.notes(values(namespaces=["evals"]))
    assert "kubectl -n seatrial-system rollout status deployment/seatrial" in notes
    assert "seatrial run ./suite --agent oracle --namespace evals" in notes
    assert "No NetworkPolicy was written" not in notes


def test_notes_warn_where_no_network_policy_was_written(helm: Helm) -> None:
    assert "No NetworkPolicy was written: name the namespaces of your trials in networkPolicies.namespaces." in helm.notes(values())


def test_notes_warn_where_trials_run_beside_the_operators_secrets(helm: Helm) -> None:
    warning = "Trials run beside the operator's own Secrets"
    assert [warning in helm.notes(values(namespaces=[name])) for name in ("seatrial-system", "evals")] == [True, False]


def test_crds_are_behind_a_switch(helm: Helm) -> None:
    crds = [item for item in helm.objects(values()) if item["kind"] == "CustomResourceDefinition"]
    assert [item["metadata"]["annotations"] for item in crds] == [{"helm.sh/resource-policy": "keep"}] * 3
    assert "CustomResourceDefinition" not in {item["kind"] for item in helm.objects(values(crds={"install": False}))}


def test_a_service_monitor_needs_the_service(helm: Helm) -> None:
    with pytest.raises(Refused, match=r"metrics\.serviceMonitor\.enabled needs metrics\.service\.enabled"):
        helm.template(values(metrics={"service": {"enabled": False}, "serviceMonitor": {"enabled": True}}))


def test_monitors_choose_the_operator_by_labels_that_it_has(helm: Helm) -> None:
    objects = helm.objects(PERMUTATIONS["full"])
    labels = one(objects, "Deployment", "trials")["spec"]["template"]["metadata"]["labels"]
    service = one(objects, "Service", "trials-metrics")
    assert one(objects, "ServiceMonitor", "trials")["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert one(objects, "PodMonitor", "trials")["spec"]["selector"]["matchLabels"].items() <= labels.items()
    port = one(objects, "Deployment", "trials")["spec"]["template"]["spec"]["containers"][0]["ports"][0]["name"]
    assert [one(objects, "PodMonitor", "trials")["spec"]["podMetricsEndpoints"][0]["port"], service["spec"]["ports"][0]["name"]] == [
        port,
        "http",
    ]


def test_authorities_reach_the_operator_and_each_namespace_of_trials(helm: Helm) -> None:
    objects = helm.objects(PERMUTATIONS["full"])
    found = [item for item in objects if item["kind"] == "ConfigMap" and item["metadata"]["name"] == "trials-ca"]
    assert {item["metadata"]["namespace"] for item in found} == {"evals", "seatrial-system"}
    settings = one(objects, "ConfigMap", "trials")["data"]
    (mount,) = [
        item
        for item in one(objects, "Deployment", "trials")["spec"]["template"]["spec"]["containers"][0]["volumeMounts"]
        if item["name"] == "ca"
    ]
    assert (settings["SEATRIAL_S3_CA"], settings["SEATRIAL_CA_CONFIG_MAP"]) == (f"{mount['mountPath']}/ca.crt", "trials-ca")


def test_the_bundled_store_is_what_the_values_say(helm: Helm) -> None:
    objects = helm.objects(PERMUTATIONS["store"])
    service, secret = one(objects, "Service", "seatrial-store"), one(objects, "Secret", "seatrial-store")
    client = one(objects, "ConfigMap", "seatrial-client")["data"]
    assert client["endpoint"] == f"http://{service['metadata']['name']}.{service['metadata']['namespace']}.svc.cluster.local:9000"
    assert (client["credentialsSecret"], sorted(secret["data"])) == ("seatrial-store", ["accessKey", "secretKey"])
    pod = one(objects, "Deployment", "seatrial-store")["spec"]["template"]
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    assert pod["spec"]["initContainers"][0]["command"] == ["mkdir", "-p", "/data/evals"]
    # The operator's selector must not choose the store.
    assert not one(objects, "Deployment", "seatrial")["spec"]["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()


def test_builds_reach_their_registry_the_store_and_the_world_but_not_the_cluster(helm: Helm) -> None:
    objects = helm.objects(PERMUTATIONS["registry"])
    policy = one(objects, "NetworkPolicy", "seatrial-build")
    assert policy["spec"]["podSelector"] == {"matchLabels": {"seatrial.dev/role": "build"}}
    assert policy["spec"]["ingress"] == []
    store, dns, registry, world = policy["spec"]["egress"]
    assert registry == {
        "to": [own_pods("registry")],
        "ports": [{"protocol": "TCP", "port": 5000}],
    }
    trial = one(objects, "NetworkPolicy", "seatrial-public")["spec"]["egress"]
    assert [store, dns, world] == trial
    assert not [item for item in helm.objects(values(namespaces=["evals"])) if item["metadata"]["name"] == "seatrial-build"]


@pytest.mark.parametrize(
    ("repository", "insecure", "peers", "port"),
    [
        ("192.0.2.7:30500/tasks", True, [{"ipBlock": {"cidr": "192.0.2.7/32"}}], 30500),
        ("registry.example.com/evals/tasks", False, None, 443),
        ("registry.example.com:5000/evals/tasks", True, None, 5000),
    ],
)
def test_the_registry_of_builds_is_read_from_their_repository(
    helm: Helm, repository: str, insecure: bool, peers: list[dict[str, Any]] | None, port: int
) -> None:
    chosen = values(
        namespaces=["evals"], builds={"repository": repository, "insecure": insecure}, networkPolicies={"operator": {"create": True}}
    )
    objects = helm.objects(chosen)
    egress = one(objects, "NetworkPolicy", "seatrial-operator")["spec"]["egress"]
    rule = {"ports": [{"protocol": "TCP", "port": port}], **({"to": peers} if peers else {})}
    assert rule in egress
    build = one(objects, "NetworkPolicy", "seatrial-build")["spec"]["egress"]
    # Outside the cluster it is reached as everything outside is.
    assert (rule in build, len(build)) == ((True, 4) if peers else (False, 3))


def test_the_bundled_registry_is_where_builds_push_and_nodes_pull(helm: Helm) -> None:
    objects = helm.objects(PERMUTATIONS["registry"])
    service, pod = one(objects, "Service", "seatrial-registry"), one(objects, "Deployment", "seatrial-registry")["spec"]["template"]
    (port,) = service["spec"]["ports"]
    settings = one(objects, "ConfigMap", "seatrial")["data"]
    address = f"{service['metadata']['name']}.{service['metadata']['namespace']}.svc.cluster.local:{port['port']}"
    assert settings["SEATRIAL_BUILD_REPOSITORY"] == f"{address}/tasks"
    assert settings["SEATRIAL_BUILD_PULL_REPOSITORY"] == f"localhost:{port['nodePort']}/tasks"
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    assert not one(objects, "Deployment", "seatrial")["spec"]["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    assert yaml.safe_load(one(objects, "ConfigMap", "seatrial-registry")["data"]["config.yml"])["http"] == {"addr": ":5000"}
