"""deploy/kubernetes.yaml agrees with the command line, the routes, the image, and itself."""

from __future__ import annotations

from ipaddress import ip_network
from typing import Any

import yaml

from api.routes.health import PING_S
from api.settings import Settings
from domino_tune.base.version import VERSION
from tests.real.test_deploy_service import DEPLOY, GRACE_S, IMAGE, LONGEST_WAIT_S, served

MANIFESTS = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text(encoding="utf-8")))
KINDS: dict[str, dict[str, Any]] = {one["kind"]: one for one in MANIFESTS}
POD: dict[str, Any] = KINDS["Deployment"]["spec"]["template"]["spec"]
(CONTAINER,) = POD["containers"]


def test_kubernetes_serves_what_the_command_line_takes() -> None:
    request = served(CONTAINER["args"])
    assert request.host == "0.0.0.0"
    assert CONTAINER["image"] == f"domino-tune:{VERSION}"
    (port,) = CONTAINER["ports"]
    assert port["containerPort"] == request.port
    (service_port,) = KINDS["Service"]["spec"]["ports"]
    assert service_port["targetPort"] == port["name"]
    assert request.workers == int(CONTAINER["resources"]["requests"]["cpu"])


def test_kubernetes_selects_the_pods_that_it_makes() -> None:
    labels = KINDS["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert KINDS["Deployment"]["spec"]["selector"]["matchLabels"] == labels
    assert KINDS["Service"]["spec"]["selector"] == labels
    assert KINDS["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    assert len({one["metadata"]["namespace"] for one in MANIFESTS}) == 1


def test_kubernetes_restricts_the_container() -> None:
    inside, around = CONTAINER["securityContext"], POD["securityContext"]
    assert inside["readOnlyRootFilesystem"] is True
    assert inside["allowPrivilegeEscalation"] is False
    assert inside["capabilities"] == {"drop": ["ALL"]}
    assert around["runAsNonRoot"] is True
    assert f"{around['runAsUser']}:{around['runAsGroup']}" == IMAGE["USER"]
    assert around["seccompProfile"] == {"type": "RuntimeDefault"}
    assert POD["automountServiceAccountToken"] is False
    mounts = {
        mount["name"]: mount["mountPath"]
        for mount in CONTAINER["volumeMounts"]
        if not mount.get("readOnly")
    }
    assert mounts == {"home": IMAGE["VOLUME"], "tmp": "/tmp"}
    assert {one["name"] for one in POD["volumes"] if "secret" not in one} == set(mounts)


def test_kubernetes_waits_until_jobs_are_back_in_the_queue() -> None:
    verb, asleep_s = CONTAINER["lifecycle"]["preStop"]["exec"]["command"]
    assert verb == "sleep"
    assert POD["terminationGracePeriodSeconds"] > int(asleep_s) + GRACE_S
    probe = CONTAINER["readinessProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] < int(asleep_s)
    assert probe["failureThreshold"] >= 2
    assert probe["timeoutSeconds"] > PING_S


def test_kubernetes_checks_the_database_it_talks_to() -> None:
    given = {entry["name"]: entry.get("value") for entry in CONTAINER["env"]}
    assert given["PGSSLMODE"] == "verify-full"
    (mount,) = (one for one in CONTAINER["volumeMounts"] if one.get("readOnly"))
    (volume,) = (one for one in POD["volumes"] if one["name"] == mount["name"])
    (item,) = volume["secret"]["items"]
    assert given["PGSSLROOTCERT"] == f"{mount['mountPath']}/{item['path']}"
    names = {entry["valueFrom"]["secretKeyRef"]["name"] for entry in CONTAINER["env"][:3]}
    assert names == {volume["secret"]["secretName"]}


def test_kubernetes_spreads_and_fences_the_pods() -> None:
    (spread,) = POD["topologySpreadConstraints"]
    assert spread["labelSelector"] == KINDS["Deployment"]["spec"]["selector"]
    policy = KINDS["NetworkPolicy"]["spec"]
    assert policy["podSelector"] == KINDS["Deployment"]["spec"]["selector"]
    assert set(policy["policyTypes"]) == {"Ingress", "Egress"}
    (inward,) = policy["ingress"]
    assert [one["port"] for one in inward["ports"]] == [CONTAINER["ports"][0]["name"]]
    outward = {one["port"] for rule in policy["egress"] for one in rule["ports"]}
    assert outward == {53, 5432}


def test_kubernetes_lets_callers_in_through_one_door() -> None:
    ingress = KINDS["Ingress"]
    (rule,) = ingress["spec"]["rules"]
    (path,) = rule["http"]["paths"]
    (port,) = KINDS["Service"]["spec"]["ports"]
    backend = path["backend"]["service"]
    assert (backend["name"], backend["port"]["name"]) == (
        KINDS["Service"]["metadata"]["name"], port["name"],
    )  # fmt: skip
    assert ingress["spec"]["tls"][0]["hosts"] == [rule["host"]]
    limits, given = Settings(database_url="sqlite://"), ingress["metadata"]["annotations"]
    stated = {name.rpartition("/")[2]: value for name, value in given.items()}
    assert int(stated["proxy-body-size"].removesuffix("m")) << 20 > limits.upload_bytes
    assert int(stated["proxy-read-timeout"]) > LONGEST_WAIT_S
    assert int(stated["limit-rps"]) >= limits.rate_per_s
    (network,) = served(CONTAINER["args"]).trusted_proxy
    assert ip_network(network).is_private


def test_kubernetes_probes_existing_routes() -> None:
    """test_shutdown requests these paths of a real service."""
    probes = {
        kind: CONTAINER[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")
    }
    assert {kind: probe["path"] for kind, probe in probes.items()} == {
        "startup": "/healthz", "liveness": "/healthz", "readiness": "/readyz",
    }  # fmt: skip
    assert {probe["port"] for probe in probes.values()} == {CONTAINER["ports"][0]["name"]}


def test_kubernetes_has_no_secret() -> None:
    assert "Secret" not in KINDS
    for entry in CONTAINER["env"]:
        assert "PASSWORD" not in entry["name"] or "valueFrom" in entry
