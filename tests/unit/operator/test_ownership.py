"""needs_write and owned_part, against FieldsV1 as an apply makes them, for every kind that the operator writes."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from emberline_contract import names
from emberline_operator.plan.ownership import needs_write, owned_fields, owned_part, same_value
from emberline_operator.snapshot import Ref
from support.operator_objects import Raw, Store, entry, fields_of, live_of, make_endpoint

MANAGER = names.OPERATOR_MANAGER


def bodies() -> dict[str, Raw]:
    """Every kind of child, made by the makers: on GPUs in a region, so that all lists and maps occur."""
    store = Store(
        make_endpoint(
            accelerator={"kind": "Nvidia", "count": 2},
            placement={"regions": ["eu"], "nodeSelector": {"pool": "a"}},
        ),
        regions={"eu": {"metadata": {"name": "eu"}, "spec": {}}},
    )
    applies = [action.body for action in store.decide().actions if action.manager == MANAGER]
    return {body["kind"]: body for body in applies}


BODIES = bodies()


def at(body: Raw, path: str) -> Any:
    """The parent of a path and its last step; steps into lists are indices."""
    steps = path.split("/")
    node: Any = body
    for step in steps[:-1]:
        node = node[int(step)] if isinstance(node, list) else node[step]
    last = steps[-1]
    return node, int(last) if isinstance(node, list) else last


CONTAINER = "spec/template/spec/containers/0"
# Something in each kind of place that FieldsV1 knows.
CHANGES = [
    ("ConfigMap", "data/engine.json", "{}"),
    ("ConfigMap", "metadata/labels/app.kubernetes.io~name", None),
    ("Service", "spec/type", "NodePort"),
    ("Service", "spec/selector/emberline.dev~region", "us"),
    ("Service", "spec/ports/0/targetPort", "other"),
    ("Service", "spec/ports/0/port", 81),
    ("Service", "metadata/ownerReferences/0/uid", "another"),
    ("Deployment", "spec/replicas", 3),
    ("Deployment", "spec/strategy/rollingUpdate/maxSurge", 1),
    ("Deployment", "metadata/annotations/emberline.dev~template-inputs", "x"),
    ("Deployment", f"{CONTAINER}/image", "other"),
    ("Deployment", f"{CONTAINER}/args/0", "--other"),
    ("Deployment", f"{CONTAINER}/name", "other"),
    ("Deployment", f"{CONTAINER}/env/1/value", "/home"),
    ("Deployment", f"{CONTAINER}/resources/limits/nvidia.com~gpu", "4"),
    ("Deployment", f"{CONTAINER}/ports/0/containerPort", 9000),
    ("Deployment", f"{CONTAINER}/volumeMounts/1/subPath", "other"),
    ("Deployment", f"{CONTAINER}/lifecycle/preStop/sleep/seconds", 6),
    ("Deployment", f"{CONTAINER}/securityContext/capabilities/drop/0", "NONE"),
    ("Deployment", "spec/template/spec/tolerations/0/effect", "NoExecute"),
    ("Deployment", "spec/template/spec/nodeSelector/pool", "b"),
    ("Deployment", "spec/template/spec/volumes/2/emptyDir/sizeLimit", "2Gi"),
    ("Deployment", "spec/template/spec/volumes/1/persistentVolumeClaim/claimName", "other"),
    ("Deployment", "spec/template/spec/terminationGracePeriodSeconds", 1),
]  # fmt: skip


def changed(body: Raw, path: str, value: Any) -> Raw:
    copied = copy.deepcopy(body)
    node, last = at(copied, path)
    key = last.replace("~", "/") if isinstance(last, str) else last
    assert key in node if isinstance(node, dict) else True
    node[key] = value
    return copied


@pytest.mark.parametrize("kind", BODIES)
def test_what_was_applied_needs_no_write(kind: str) -> None:
    assert not needs_write(live_of(BODIES[kind]), BODIES[kind], MANAGER)


@pytest.mark.parametrize(("kind", "path", "value"), CHANGES, ids=lambda v: str(v)[-40:])
def test_a_change_on_either_side_needs_a_write(kind: str, path: str, value: Any) -> None:
    body = BODIES[kind]
    other = changed(body, path, value)
    assert needs_write(live_of(body), other, MANAGER), "the desired object has changed"
    drifted = {**changed(live_of(body), path, value)}
    assert needs_write(drifted, body, MANAGER), "the live object has changed and is still owned"


REMOVALS = [
    ("Service", "spec/ports/0/name"),
    ("Deployment", "spec/template/spec/tolerations"),
    ("Deployment", "spec/template/spec/affinity"),
    ("Deployment", "spec/template/spec/nodeSelector"),
    ("Deployment", f"{CONTAINER}/resources"),
    ("Deployment", f"{CONTAINER}/env/1"),
    ("Deployment", f"{CONTAINER}/volumeMounts/2"),
    ("Deployment", "spec/template/spec/volumes/2"),
    ("Deployment", "metadata/annotations"),
    ("Deployment", "spec/replicas"),
]


@pytest.mark.parametrize(("kind", "path"), REMOVALS, ids=lambda v: str(v)[-40:])
def test_a_field_that_is_no_longer_desired_needs_a_write(kind: str, path: str) -> None:
    """The smaller object is contained in the live one; that its field is still owned is what tells."""
    body = BODIES[kind]
    smaller = copy.deepcopy(body)
    node, last = at(smaller, path)
    del node[last]
    assert needs_write(live_of(body), smaller, MANAGER), "removed"
    assert needs_write(live_of(smaller), body, MANAGER), "added"
    assert not needs_write(live_of(smaller), smaller, MANAGER)


def test_a_field_that_somebody_else_took_over_needs_a_write() -> None:
    body = BODIES["Deployment"]
    live = live_of(body)
    del live["metadata"]["managedFields"][0]["fieldsV1"]["f:spec"]["f:template"]["f:spec"]["f:nodeSelector"]
    assert needs_write(live, body, MANAGER)


def test_what_others_add_needs_no_write() -> None:
    body = BODIES["Deployment"]
    live = live_of(body)
    live["metadata"]["managedFields"].append(entry("kubectl", {"f:metadata": {"f:annotations": {"f:note": {}}}}))
    live["metadata"]["annotations"]["note"] = "x"
    pod = live["spec"]["template"]["spec"]
    pod["restartPolicy"] = "Always"
    pod["containers"].insert(0, {"name": "sidecar", "image": "proxy"})
    pod["containers"][1]["terminationMessagePath"] = "/dev/termination-log"
    pod["containers"][1]["env"].insert(0, {"name": "ADDED", "value": "x"})
    assert not needs_write(live, body, MANAGER)


def test_an_object_that_we_never_applied_needs_a_write() -> None:
    body = BODIES["Service"]
    assert needs_write(live_of(body, "kubectl"), body, MANAGER)
    updated = live_of(body)
    updated["metadata"]["managedFields"][0]["operation"] = "Update"
    assert needs_write(updated, body, MANAGER), "an update of ours is no apply"
    of_status = live_of(body)
    of_status["metadata"]["managedFields"][0]["subresource"] = "status"
    assert needs_write(of_status, body, MANAGER)


def test_the_owned_part_of_what_was_applied_is_what_was_applied() -> None:
    for body in BODIES.values():
        live = live_of(body)
        live["spec"] = {**live.get("spec", {}), "defaulted": 1}
        part = owned_part(live, owned_fields(live, MANAGER))
        wanted = {key: value for key, value in body.items() if key not in ("apiVersion", "kind")}
        wanted["metadata"] = {k: v for k, v in body["metadata"].items() if k not in ("name", "namespace")}
        assert part == wanted


def test_owned_items_keep_the_live_order_and_sets_are_found_by_value() -> None:
    fields = {
        "f:a": {'k:{"name":"x"}': {".": {}, "f:name": {}}, 'k:{"name":"y"}': {".": {}, "f:name": {}}},
        "f:s": {'v:"p"': {}},
    }
    live = {"a": [{"name": "y", "z": 1}, {"name": "other"}, {"name": "x"}], "s": ["q", "p"], "b": 1}
    assert owned_part(live, fields) == {"a": [{"name": "y"}, {"name": "x"}], "s": ["p"]}
    assert owned_part({"b": 1}, fields) == {}, "a field that is owned and gone"


@pytest.mark.parametrize(
    ("name", "wanted", "live", "is_same"),
    [
        ("sizeLimit", "1024Mi", "1Gi", True),
        ("sizeLimit", "1000Mi", "1Gi", False),
        ("limits", {"cpu": "1000m", "memory": "1G"}, {"cpu": "1", "memory": "1000M"}, True),
        ("limits", {"cpu": "1500m"}, {"cpu": "1"}, False),
        ("limits", {"nvidia.com/gpu": 1}, {"nvidia.com/gpu": "1"}, True),
        ("requests", {"memory": "1e3"}, {"memory": "1k"}, True),
        ("requests", {"memory": "0.5Gi"}, {"memory": "512Mi"}, True),
        ("limits", {"cpu": "1"}, {"cpu": "1", "memory": "1"}, False),
        ("image", "1000m", "1", False),
        ("readOnly", True, 1, False),
        ("args", ["a", "b"], ["b", "a"], False),
        ("args", ["a"], ["a", "b"], False),
        ("sizeLimit", "much", "much", True),
    ],
)
def test_values(name: str, wanted: Any, live: Any, is_same: bool) -> None:
    assert same_value(wanted, live, name) is is_same


def test_quantities_deep_in_an_object() -> None:
    body = {"metadata": {"name": "x"}, "spec": {"resources": {"limits": {"cpu": "2000m"}}}}
    live = live_of(body)
    live["spec"]["resources"]["limits"]["cpu"] = "2"
    assert not needs_write(live, body, MANAGER)
    live["spec"]["resources"]["limits"]["cpu"] = "3"
    assert needs_write(live, body, MANAGER)


def test_the_same_number_of_items_with_another_key_is_another_set() -> None:
    body = {"metadata": {"name": "x"}, "spec": {"containers": [{"name": "a", "image": "i"}]}}
    other = {"metadata": {"name": "x"}, "spec": {"containers": [{"name": "b", "image": "i"}]}}
    assert needs_write(live_of(body), other, MANAGER)
    assert fields_of(body) != fields_of(other)


def test_refs_sort_and_speak() -> None:
    assert min(Ref("Service", "b"), Ref("Deployment", "z")) == Ref("Deployment", "z")
    assert str(Ref("Service", "b")) == "Service b"
