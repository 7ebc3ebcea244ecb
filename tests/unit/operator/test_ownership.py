"""needs_write and owned_part, against FieldsV1 as an apply makes them, for every kind that the operator writes."""

from __future__ import annotations

from typing import Any

import pytest

from emberline_contract import names
from emberline_operator.cluster.kinds import CHILDREN
from emberline_operator.plan.ownership import needs_write, owned_fields, owned_part, same_value
from emberline_operator.snapshot import Ref
from support.every_field import BODIES, CHANGES, REMOVALS, changed, without
from support.operator_objects import entry, fields_of, live_of

MANAGER = names.OPERATOR_MANAGER


def test_every_kind_of_child_is_there() -> None:
    assert set(BODIES) == {kind.kind for kind in CHILDREN}


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


@pytest.mark.parametrize(("kind", "path"), REMOVALS, ids=lambda v: str(v)[-40:])
def test_a_field_that_is_no_longer_desired_needs_a_write(kind: str, path: str) -> None:
    """The smaller object is contained in the live one; that its field is still owned is what tells."""
    body = BODIES[kind]
    smaller = without(body, path)
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
