"""What status says of a roll-out: that an engine waits for the GPU of the one that it replaces is no failure."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from emberline_contract import names
from emberline_operator.snapshot import NodeState
from support.decisions import H100_LABELS
from support.operator_objects import (
    NOW,
    Raw,
    Store,
    condition_of,
    current,
    make_endpoint,
    make_pod_state,
    quiet,
    ready_pod,
)

GPU = {names.GPU_RESOURCE: 1}
SPEC: Raw = {
    "model": {"source": "pvc://models/tiny", "parameters": "8B"},
    "accelerator": {"kind": "Nvidia"},
    "scaling": {"minReplicas": 1, "maxReplicas": 1},
}


def rolling() -> Store:
    """The only H100 holds an old engine; the template has changed."""
    labels = {**H100_LABELS, "nvidia.com/gpu.compute.minor": "0", "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    node = NodeState("n", {**labels, "nvidia.com/gpu.count": "1"}, GPU)
    store = Store(make_endpoint(**SPEC), nodes={"n": node}, demand=quiet(1))
    store.settle()
    store.pods = (ready_pod(store, "old", node="n", gpus=GPU),)
    store.settle()
    store.endpoint = {
        **make_endpoint(**SPEC, engine={"maxSequences": 7}, generation=2),
        "status": store.endpoint["status"],
    }
    store.settle()
    return store


def stuck(store: Store) -> None:
    new = make_pod_state(
        "new",
        template_hash=current(store),
        gpus=GPU,
        unschedulable="Insufficient nvidia.com/gpu",
        unschedulable_since=NOW - timedelta(seconds=5),
    )
    store.pods = (*store.pods, new)


def states(store: Store) -> dict[str, tuple[str, str]]:
    plan = store.settle()
    kinds = ("Ready", "RolloutBlocked", "Degraded")
    return {kind: (condition_of(plan, kind)["status"], condition_of(plan, kind)["reason"]) for kind in kinds}


def test_an_old_engine_that_drains_is_no_failure() -> None:
    store = rolling()
    store.pods = (replace(store.pods[0], terminating=True),)
    stuck(store)
    assert states(store) == {
        "Ready": ("False", "Starting"),
        "RolloutBlocked": ("True", "WaitingForDrain"),
        "Degraded": ("False", "AsExpected"),
    }


def test_an_old_engine_that_serves_while_the_new_one_looks_for_a_gpu_is_none_either() -> None:
    store = rolling()
    stuck(store)
    assert states(store) == {
        "Ready": ("True", "Serving"),
        "RolloutBlocked": ("True", "WaitingForGpu"),
        "Degraded": ("False", "AsExpected"),
    }


def test_a_new_engine_without_its_claim_waits_for_the_claim_and_not_for_a_gpu() -> None:
    for older, ready in ((True, ("True", "Serving")), (False, ("False", "WeightsNotReady"))):
        store = rolling()
        stuck(store)
        old, new = store.pods
        new = replace(new, unschedulable='0/1 nodes are available: persistentvolumeclaim "models" not found.')
        store.pods = (old, new) if older else (replace(old, ready_since=None, node="", unschedulable="no room"), new)
        store.claims = {}
        found = states(store)
        assert (found["Ready"], found["RolloutBlocked"]) == (ready, ("True", "WeightsNotReady"))
        plan = store.settle()
        message = condition_of(plan, "RolloutBlocked")["message"]
        assert "there is no PersistentVolumeClaim 'models'" in message
        assert "GPU" not in message
        assert ("serving" in message) is older, "only what serves goes on serving"
    store = rolling()
    store.pods = ()
    store.claims = {}
    store.deployment["status"] = {
        "conditions": [{"type": "Progressing", "status": "True", "reason": "ReplicaSetUpdated"}]
    }
    stuck(store)
    store.pods = (replace(store.pods[0], unschedulable='persistentvolumeclaim "models" not found'),)
    degraded = condition_of(store.settle(), "Degraded")
    assert (degraded["status"], degraded["reason"]) == ("True", "WeightsNotReady")
    assert "create it or correct model.source" in degraded["message"]


def test_without_any_engine_it_is_one() -> None:
    store = rolling()
    store.pods = ()
    store.deployment["status"] = {
        "conditions": [{"type": "Progressing", "status": "True", "reason": "ReplicaSetUpdated"}]
    }
    stuck(store)
    assert states(store) == {
        "Ready": ("False", "Unschedulable"),
        "RolloutBlocked": ("True", "WaitingForGpu"),
        "Degraded": ("True", "Unschedulable"),
    }
