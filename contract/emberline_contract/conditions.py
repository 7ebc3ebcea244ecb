"""Condition types and reasons of an InferenceEndpoint's status, each documented once; `make gen` writes them into the reference page."""

from __future__ import annotations

from enum import StrEnum


class ConditionType(StrEnum):
    """Types of `status.conditions`; the first group is there from the first sight on, the second only while true (kstatus)."""

    ACCEPTED = "Accepted"
    """The spec can be acted on."""
    PLACED = "Placed"
    """There is a place for the endpoint's pods."""
    WEIGHTS_READY = "WeightsReady"
    """Pods can mount the volume that holds the model; what is in it, the engine finds out."""
    READY = "Ready"
    """A request sent now will be answered (a sleeping endpoint that can be woken is ready)."""
    SCALING_ACTIVE = "ScalingActive"
    """Replicas follow demand."""
    DEGRADED = "Degraded"
    """Something fails although requests may still be answered."""
    RECONCILING = "Reconciling"
    """The newest generation is still being rolled out."""
    STALLED = "Stalled"
    """Nothing will change until the user changes something."""


ALWAYS_PRESENT: tuple[ConditionType, ...] = (
    ConditionType.ACCEPTED,
    ConditionType.PLACED,
    ConditionType.WEIGHTS_READY,
    ConditionType.READY,
    ConditionType.SCALING_ACTIVE,
    ConditionType.DEGRADED,
)


class Reason(StrEnum):
    """Reasons of conditions. The docstring of each is its documentation."""

    PENDING = "Pending"
    """Not looked at yet."""
    # Accepted
    VALID = "Valid"
    """The spec is valid."""
    INVALID_SPEC = "InvalidSpec"
    """A field has a value that cannot be acted on; the message names it and the remedy."""
    NAME_TAKEN = "NameTaken"
    """An object with a child's name exists and belongs to somebody else; it is never adopted."""
    # Placed
    ANYWHERE = "Anywhere"
    """No region was asked for: any node will do."""
    IN_REGION = "InRegion"
    """Pods go to nodes of the region."""
    UNKNOWN_REGION = "UnknownRegion"
    """There is no InferenceRegion of that name."""
    # WeightsReady
    CLAIM_BOUND = "ClaimBound"
    """The PersistentVolumeClaim of `model.source` is bound."""
    CLAIM_NOT_FOUND = "ClaimNotFound"
    """There is no PersistentVolumeClaim of that name in the endpoint's namespace."""
    CLAIM_NOT_BOUND = "ClaimNotBound"
    """The PersistentVolumeClaim exists and is not bound to a volume yet."""
    # Ready
    SERVING = "Serving"
    """At least one engine is ready."""
    SCALED_TO_ZERO = "ScaledToZero"
    """Nothing runs; the first request wakes the endpoint."""
    STARTING = "Starting"
    """Engines are starting. The status is True for an endpoint that may sleep and whose present generation has served: requests
    are held and answered."""
    UNSCHEDULABLE = "Unschedulable"
    """No node can take a pod now; the message is the scheduler's."""
    CONTAINER_FAILED = "ContainerFailed"
    """An engine's container fails; the message carries the container's own reason."""
    NOT_ACCEPTED = "NotAccepted"
    """See the condition Accepted."""
    NOT_PLACED = "NotPlaced"
    """See the condition Placed."""
    WEIGHTS_NOT_READY = "WeightsNotReady"
    """See the condition WeightsReady."""
    PODS_NOT_CREATED = "PodsNotCreated"
    """The API server refuses the pods (a quota, Pod Security); the message is its answer."""
    # ScalingActive
    FIXED_REPLICAS = "FixedReplicas"
    """minReplicas equals maxReplicas."""
    FOLLOWS_DEMAND = "FollowsDemand"
    """The first request wakes the endpoint, `idleAfter` without any puts it back to its floor."""
    DEMAND_UNKNOWN = "DemandUnknown"
    """A gateway cannot be asked, so nothing is scaled down."""
    # Degraded
    AS_EXPECTED = "AsExpected"
    """Nothing fails."""
    APPLY_FAILED = "ApplyFailed"
    """The API server refused a write; the message is its answer."""
    # Reconciling
    ROLLING_OUT = "RollingOut"
    """Pods of the newest generation are being started."""
