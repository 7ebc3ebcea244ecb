"""Endpoints that the first release made: `tests/golden/input/first_release.yaml` is what it wrote for some specs."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from emberline_contract import names
from emberline_operator.plan.upgrade import is_signed_by_first_release
from emberline_operator.settings import Install
from emberline_operator.snapshot import Ref
from support.gpu_nodes import gpu_node
from support.operator_objects import (
    EU,
    EU_LABELS,
    INSTALL,
    Raw,
    Store,
    condition_of,
    entry,
    fields_of,
    live_of,
    make_endpoint,
    quiet,
)

GOLDEN = Path(__file__).parents[2] / "golden" / "input" / "first_release.yaml"
CASES: dict[str, Raw] = {case["name"]: case for case in yaml.safe_load_all(GOLDEN.read_text())}


def upgraded(case: str, **changes: Any) -> Store:
    """What the first release left, as this release finds it; `changes` are parts of the spec that somebody has changed since."""
    spec = {**copy.deepcopy(CASES[case]["spec"]), **changes}
    node = gpu_node("h100", labels={**EU_LABELS, "pool": "a"})
    store = Store(make_endpoint(**spec), regions=EU, nodes={node.name: node}, demand=quiet(1))
    for body in CASES[case]["objects"]:
        live = live_of(body)
        if body["kind"] == "Deployment":
            live["metadata"]["generation"] = 1
            del live["metadata"]["managedFields"][0]["fieldsV1"]["f:spec"]["f:replicas"]
            scaled = entry(names.SCALE_MANAGER, {"f:spec": {"f:replicas": {}}})
            live["metadata"]["managedFields"].append(scaled)
        store.children[Ref(body["kind"], body["metadata"]["name"])] = live
    return store


def template_of(store: Store) -> Raw:
    (live,) = [live for ref, live in store.children.items() if ref.kind == "Deployment"]
    template: Raw = live["spec"]["template"]
    return template


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("install", [INSTALL, Install("other/image:9", "http://gateway", image_registry="mirror:5000")])
def test_no_pod_template_changes(case: str, install: Install) -> None:
    store = upgraded(case)
    before = copy.deepcopy(template_of(store))
    assert is_signed_by_first_release(before)
    plan = store.settle(install)
    assert template_of(store) == before
    assert store.settle(install).actions == (), "and the next pass writes nothing"
    assert condition_of(plan, "Reconciling") == {}
    assert condition_of(plan, "Placed")["status"] == "True"


@pytest.mark.parametrize("case", CASES)
def test_what_was_decided_is_recorded_and_shown(case: str) -> None:
    store = upgraded(case)
    plan = store.settle()
    (live,) = [live for ref, live in store.children.items() if ref.kind == "Deployment"]
    assert live["metadata"]["annotations"].keys() == {names.ANNOTATION_PLACEMENT, names.ANNOTATION_TEMPLATE_INPUTS}
    asked = CASES[case]["spec"]["precision"]["format"]
    assert plan.status["precision"]["format"] == ("bf16" if asked == "Auto" else asked)
    assert "an earlier release" in plan.status["precision"]["reason"]


@pytest.mark.parametrize(
    "changes",
    [
        {"engine": {"maxSequences": 9}},
        {"podTemplate": {"labels": {"team": "a"}}},
        {"model": {"source": "pvc://models/other"}},
        {"placement": {"regions": ["eu"], "nodeSelector": {"pool": "a"}, "priorityClassName": "high"}},
        {"rollout": {"restartAt": "2026-11-30T12:00:00Z"}},
    ],
)
def test_a_spec_that_has_changed_is_rolled_out(changes: Raw) -> None:
    store = upgraded("gpu in a region", **changes)
    before = copy.deepcopy(template_of(store))
    store.settle()
    assert template_of(store) != before
    assert not is_signed_by_first_release(template_of(store))


def test_an_edit_of_an_old_template_by_hand_is_undone() -> None:
    store = upgraded("cpu")
    template_of(store)["spec"]["enableServiceLinks"] = True
    assert not is_signed_by_first_release(template_of(store))
    store.settle()
    assert template_of(store)["spec"]["enableServiceLinks"] is False


def test_the_file_is_what_applies_owned() -> None:
    for case in CASES.values():
        for body in case["objects"]:
            assert fields_of(body)["f:metadata"]
