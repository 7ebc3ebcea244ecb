"""The hand-over of `spec.replicas` of a child Deployment (design 3, replica rule 1), and its writes.

Server-side apply *without* replicas creates one pod, and dropping an owned `replicas` resets it to 1 unless somebody else owns
it too. So: the operator creates with the number, `emberline-scale` applies that number alone, and only when managedFields
show another owner does the operator leave the field out. A crash in between leaves the number as it is.
"""

from __future__ import annotations

from datetime import datetime

from emberline_contract import names
from emberline_contract.resources import InferenceEndpointSpec
from emberline_operator.plan.actions import Apply, Scale
from emberline_operator.schedules import floor_at
from emberline_operator.snapshot import Json, Ref


def created_with(spec: InferenceEndpointSpec, now: datetime) -> int:
    """Replicas of a Deployment that is created now. What is stopped by hand is created stopped."""
    if spec.scaling.via == "External" and spec.replicas is not None:
        return spec.replicas
    return max(floor_at(spec.scaling, now).replicas, spec.scaling.initial_replicas)


def applied_replicas(live: Json | None, spec: InferenceEndpointSpec, now: datetime) -> int | None:
    """What the operator's apply says about replicas; None leaves the field out."""
    if live is None:
        return created_with(spec, now)
    return None if others_own_replicas(live) else replicas_of(live)


def replicas_of(live: Json) -> int:
    """`spec.replicas`, with the API server's default."""
    return int(live["spec"].get("replicas", 1))


def others_own_replicas(live: Json) -> bool:
    """Whether somebody besides the operator's own apply owns `spec.replicas`."""
    for entry in live["metadata"].get("managedFields", ()):
        is_own = entry.get("manager") == names.OPERATOR_MANAGER and entry.get("operation") == "Apply"
        if not is_own and "f:replicas" in entry.get("fieldsV1", {}).get("f:spec", {}):
            return True
    return False


def hand_over_replicas(child: Json, live: Json | None, replicas: int) -> Apply:
    """Make `emberline-scale` an owner of replicas. Not forced: who has written another number meanwhile keeps it."""
    metadata: Json = {key: child["metadata"][key] for key in ("name", "namespace")}
    if live is not None:
        metadata["uid"] = live["metadata"]["uid"]
    body: Json = {
        "apiVersion": child["apiVersion"],
        "kind": child["kind"],
        "metadata": metadata,
        "spec": {"replicas": replicas},
    }
    return Apply(body, names.SCALE_MANAGER, f"hand replicas ({replicas}) over to {names.SCALE_MANAGER}", force=False)


def scale_to(live: Json, replicas: int, why: str) -> Scale:
    """A write of replicas that fails if the Deployment has changed."""
    metadata = live["metadata"]
    return Scale(
        Ref("Deployment", metadata["name"]), replicas, metadata["uid"], metadata["resourceVersion"],
        f"{why}: replicas {replicas_of(live)} -> {replicas}",
    )  # fmt: skip
