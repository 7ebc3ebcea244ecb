"""The manifests say the names, ports and paths of the contract, ask for few rights, and the samples are valid."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from emberline_contract import http, names
from emberline_contract.region import InferenceRegionSpec
from emberline_contract.resources import InferenceEndpointSpec

ROOT = Path(__file__).resolve().parents[2]
BASE = [
    document
    for file in sorted((ROOT / "manifests" / "base").glob("*.yaml"))
    if file.name != "kustomization.yaml"
    for document in yaml.safe_load_all(file.read_text())
]
DEPLOYMENTS = {document["metadata"]["name"]: document for document in BASE if document["kind"] == "Deployment"}
SAMPLES = [
    (file.name, document)
    for file in sorted((ROOT / "manifests" / "samples").glob("*.yaml"))
    for document in yaml.safe_load_all(file.read_text())
]
ENVIRONMENT = {value for name, value in vars(names).items() if name.startswith("ENV_")}
PATHS = {http.LIVE, http.READY, http.HEALTH, "/healthz", "/readyz"}


def pod_of(deployment: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = deployment["spec"]["template"]["spec"]
    return spec


def container_of(deployment: dict[str, Any]) -> dict[str, Any]:
    (container,) = pod_of(deployment)["containers"]
    assert isinstance(container, dict)
    return container


def test_every_file_is_listed() -> None:
    base = ROOT / "manifests" / "base"
    listed = yaml.safe_load((base / "kustomization.yaml").read_text())["resources"]
    files = {file.name for file in base.glob("*.yaml")} - {"kustomization.yaml"}
    assert {name for name in listed if "/" not in name} == files


def test_both_deployments_are_there() -> None:
    assert DEPLOYMENTS.keys() == {names.OPERATOR_NAME, names.GATEWAY_NAME}


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_labels_and_place(name: str) -> None:
    deployment = DEPLOYMENTS[name]
    assert deployment["metadata"]["namespace"] == names.SYSTEM_NAMESPACE
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert labels == {names.LABEL_APP: name, names.LABEL_MANAGED_BY: names.MANAGED_BY}
    assert deployment["spec"]["selector"]["matchLabels"] == {names.LABEL_APP: name}
    assert pod_of(deployment)["serviceAccountName"] == name


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_a_pod_may_run_where_pod_security_is_restricted(name: str) -> None:
    pod, container = pod_of(DEPLOYMENTS[name]), container_of(DEPLOYMENTS[name])
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert {"cpu", "memory"} <= container["resources"]["requests"].keys()
    assert "memory" in container["resources"]["limits"]


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_environment_ports_and_paths_are_the_contracts(name: str) -> None:
    container = container_of(DEPLOYMENTS[name])
    assert {entry["name"] for entry in container["env"]} <= ENVIRONMENT
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    expected = {
        names.OPERATOR_NAME: {"health": names.OPERATOR_HEALTH_PORT},
        names.GATEWAY_NAME: {
            names.PORT_NAME_HTTP: names.GATEWAY_PORT,
            names.PORT_NAME_ADMIN: names.GATEWAY_ADMIN_PORT,
        },
    }
    assert ports == expected[name]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"]["path"] in PATHS
        assert container[probe]["httpGet"]["port"] in ports
    module = {names.OPERATOR_NAME: "emberline_operator", names.GATEWAY_NAME: "emberline_gateway"}[name]
    assert container["command"] == ["python", "-m", module]


def test_one_image_for_the_control_plane() -> None:
    images = {container_of(deployment)["image"] for deployment in DEPLOYMENTS.values()}
    environment = {entry["name"]: entry.get("value") for entry in container_of(DEPLOYMENTS[names.OPERATOR_NAME])["env"]}
    (image,) = images
    tag = image.partition(":")[2]
    assert tag not in ("", "latest", "dev")
    assert environment[names.ENV_RUNTIME_IMAGE] == f"emberline/runtime:{tag}"


def test_the_operator_shows_the_gateways_the_right_token() -> None:
    operator = DEPLOYMENTS[names.OPERATOR_NAME]
    tokens = {
        volume["name"]: source["serviceAccountToken"]
        for volume in pod_of(operator)["volumes"]
        for source in volume.get("projected", {}).get("sources", ())
    }
    ((name, token),) = tokens.items()
    (mount,) = (mount for mount in container_of(operator)["volumeMounts"] if mount["name"] == name)
    assert f"{mount['mountPath']}/{token['path']}" == names.ADMIN_TOKEN_PATH
    assert token["audience"] == names.ADMIN_AUDIENCE


def test_rights_are_few() -> None:
    roles = [document for document in BASE if document["kind"] in ("ClusterRole", "Role")]
    assert len(roles) >= 2
    for role in roles:
        for rule in role["rules"]:
            assert "*" not in (*rule["apiGroups"], *rule["resources"], *rule["verbs"])
            assert "secrets" not in rule["resources"]
            assert not {"escalate", "bind", "impersonate"} & set(rule["verbs"])


def test_the_gateway_service_reaches_the_gateway() -> None:
    (service,) = (document for document in BASE if document["kind"] == "Service")
    assert service["metadata"]["name"] == names.GATEWAY_NAME
    assert service["spec"]["selector"] == {names.LABEL_APP: names.GATEWAY_NAME}
    assert service["spec"]["ports"][0]["port"] == names.GATEWAY_PORT


@pytest.mark.parametrize(("file", "document"), SAMPLES, ids=lambda value: value if isinstance(value, str) else "")
def test_a_sample_is_valid(file: str, document: dict[str, Any]) -> None:
    assert document["apiVersion"] == names.API_VERSION
    model = {names.ENDPOINT_KIND: InferenceEndpointSpec, names.REGION_KIND: InferenceRegionSpec}[document["kind"]]
    assert model.model_validate(document["spec"]) is not None
    assert len(document["metadata"]["name"]) <= names.MAX_ENDPOINT_NAME
