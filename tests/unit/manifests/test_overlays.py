"""The operator as it is installed: several replicas, defaults that can be taken as written, and rights that fit what it reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from emberline_contract import names
from emberline_operator.cluster.kinds import WATCHED
from emberline_operator.health import HEALTHZ, READYZ
from emberline_operator.settings import Install, Settings

MANIFESTS = Path(__file__).parents[3] / "manifests"
Raw = dict[str, Any]
COMMENT = "            # "
"""Before each line of the defaults that operator.yaml shows as comments."""


def documents(path: str) -> list[Raw]:
    return [document for document in yaml.safe_load_all((MANIFESTS / path).read_text()) if document]


def named(path: str, kind: str, name: str) -> Raw:
    (found,) = (d for d in documents(path) if d["kind"] == kind and d["metadata"]["name"] == name)
    return found


def container() -> Raw:
    pod = named("base/operator.yaml", "Deployment", names.OPERATOR_NAME)["spec"]["template"]["spec"]
    (found,) = pod["containers"]
    assert isinstance(found, dict)
    return found


def shown_defaults() -> Raw:
    lines = (MANIFESTS / "base" / "operator.yaml").read_text().splitlines()
    shown = [
        line.removeprefix(COMMENT) for line in lines if line.startswith((f"{COMMENT}- name:", f"{COMMENT}  value:"))
    ]
    return {entry["name"]: entry["value"] for entry in yaml.safe_load("\n".join(shown))}


def test_the_shown_defaults_can_be_taken_as_written(tmp_path: Path) -> None:
    shown = shown_defaults()
    (mount,) = (m for m in container()["volumeMounts"] if m["name"] == "gpu-table")
    table = Path(shown[names.ENV_GPU_TABLE])
    assert str(table.parent) == mount["mountPath"]
    here = tmp_path / table.name
    here.write_text('{"labels": {"example.com/gpu": {"big": "h100"}}}')
    install = Install.from_environ({names.ENV_RUNTIME_IMAGE: "engine:1", **shown, names.ENV_GPU_TABLE: str(here)})
    assert install.http_proxy == shown[names.ENV_HTTP_PROXY]
    bare = Install("engine:1")
    changed = {field for field in Install.__dataclass_fields__ if getattr(install, field) != getattr(bare, field)}
    assert len(changed) == len(shown), "each sets a field of its own"
    assert shown.keys() <= {value for name, value in vars(names).items() if name.startswith("ENV_")}


def test_operator_is_several_replicas_that_are_replaced_one_by_one() -> None:
    spec = named("base/operator.yaml", "Deployment", names.OPERATOR_NAME)["spec"]
    assert spec["replicas"] == 3
    assert spec.get("strategy", {}).get("type", "RollingUpdate") == "RollingUpdate"
    (spread,) = spec["template"]["spec"]["topologySpreadConstraints"]
    assert spread["labelSelector"] == spec["selector"]
    assert spread["whenUnsatisfiable"] == "ScheduleAnyway", "one node is enough to run on"
    assert names.ENV_POD_NAME in {entry["name"] for entry in container()["env"]}, (
        "replicas tell one another apart by it"
    )


def test_probes_ask_what_they_are_for() -> None:
    probes = {kind: container()[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "readiness", "liveness")}
    assert probes == {"startup": HEALTHZ, "readiness": READYZ, "liveness": HEALTHZ}


@pytest.mark.parametrize("name", [names.OPERATOR_NAME, names.GATEWAY_NAME])
def test_a_drain_takes_one_at_a_time_and_is_not_held_up(name: str) -> None:
    budget = named("base/disruption.yaml", "PodDisruptionBudget", name)["spec"]
    file = f"base/{name.removeprefix('emberline-')}.yaml"
    assert budget["selector"] == named(file, "Deployment", name)["spec"]["selector"]
    assert budget["maxUnavailable"] == 1
    assert budget["unhealthyPodEvictionPolicy"] == "AlwaysAllow"


def rights(rules: list[Raw]) -> set[tuple[str, str, str]]:
    """Group, resource and verb, one by one."""
    return {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


READS = {
    is_namespaced: {
        (kind.group, kind.plural, verb)
        for kind in WATCHED
        if kind.is_namespaced is is_namespaced
        for verb in ("list", "watch")
    }
    for is_namespaced in (True, False)
}


def test_what_is_watched_may_be_read() -> None:
    cluster = rights(named("base/operator-rights.yaml", "ClusterRole", names.OPERATOR_NAME)["rules"])
    namespaced = rights(named("base/operator-rights.yaml", "ClusterRole", f"{names.OPERATOR_NAME}-endpoints")["rules"])
    assert cluster == READS[False], "it changes nothing that belongs to no namespace"
    assert namespaced >= READS[True]


def test_namespaced_mode_reads_the_watched_kinds_in_its_own_namespace_and_writes_none() -> None:
    role = named("overlays/namespaced/rights.yaml", "Role", f"{names.OPERATOR_NAME}-watches")
    assert role["metadata"]["namespace"] == names.SYSTEM_NAMESPACE
    assert rights(role["rules"]) == READS[True]


def test_namespaced_mode_has_the_same_namespaces_as_rights() -> None:
    overlay = yaml.safe_load((MANIFESTS / "overlays/namespaced/kustomization.yaml").read_text())
    patches = [yaml.safe_load(entry["patch"]) for entry in overlay["patches"]]
    (deployment,) = (patch for patch in patches if patch["kind"] == "Deployment")
    (changed,) = deployment["spec"]["template"]["spec"]["containers"]
    environ = {entry["name"]: entry["value"] for entry in changed["env"]}
    settings = Settings.from_environ({names.ENV_RUNTIME_IMAGE: "engine:1", **environ})
    bound = [
        binding["metadata"]["namespace"]
        for binding in documents("overlays/namespaced/rights.yaml")
        if binding["kind"] == "RoleBinding" and binding["roleRef"]["kind"] == "ClusterRole"
    ]
    assert settings.watch_namespaces == tuple(bound)
    (removed,) = (patch for patch in patches if patch.get("$patch") == "delete")
    everywhere = named("base/operator-rights.yaml", "ClusterRoleBinding", removed["metadata"]["name"])
    (role,) = {
        binding["roleRef"]["name"]
        for binding in documents("overlays/namespaced/rights.yaml")
        if binding["kind"] == "RoleBinding" and binding["roleRef"]["kind"] == "ClusterRole"
    }
    assert everywhere["roleRef"]["name"] == role
