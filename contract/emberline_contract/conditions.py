"""Condition types and reasons of an InferenceEndpoint's status, each documented once; `make gen` writes them into the reference page."""

from __future__ import annotations

from enum import StrEnum


class ConditionType(StrEnum):
    """Types of `status.conditions`; the first group is there from the first sight on, the second only while true (kstatus)."""

    ACCEPTED = "Accepted"
    """The spec can be acted on."""
    ALIAS_READY = "AliasReady"
    """`model.servedName` reaches this endpoint."""
    PLACED = "Placed"
    """There is a place for the endpoint's pods."""
    WEIGHTS_READY = "WeightsReady"
    """Pods can mount the volume that holds the model; what is in it, the engine finds out."""
    READY = "Ready"
    """A request sent now will be answered (a sleeping endpoint that can be woken is ready)."""
    SCALING_ACTIVE = "ScalingActive"
    """Replicas follow demand."""
    ROLLOUT_BLOCKED = "RolloutBlocked"
    """The newest generation cannot reach all engines now; the message says what is missing."""
    DEGRADED = "Degraded"
    """Something fails although requests may still be answered."""
    RECONCILING = "Reconciling"
    """The newest generation is still being rolled out."""
    STALLED = "Stalled"
    """Nothing will change until the user changes something."""


ALWAYS_PRESENT: tuple[ConditionType, ...] = (
    ConditionType.ACCEPTED,
    ConditionType.ALIAS_READY,
    ConditionType.PLACED,
    ConditionType.WEIGHTS_READY,
    ConditionType.READY,
    ConditionType.SCALING_ACTIVE,
    ConditionType.ROLLOUT_BLOCKED,
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
    # AliasReady
    NO_ALIAS = "NoAlias"
    """No `model.servedName` was asked for."""
    ALIAS_SERVED = "AliasServed"
    """`model.servedName` reaches this endpoint."""
    NAME_CONFLICT = "NameConflict"
    """An older endpoint has that `model.servedName`, or another one is `<namespace>/<name>` of just that; this one is reached as its
    own `<namespace>/<name>`."""
    # Placed
    ANYWHERE = "Anywhere"
    """No region was asked for: any node will do."""
    IN_REGION = "InRegion"
    """Pods go to nodes of the regions."""
    PARTLY_PLACED = "PartlyPlaced"
    """Some of the regions have a place, the message says what is wrong with the others."""
    UNKNOWN_REGION = "UnknownRegion"
    """There is no InferenceRegion of that name."""
    NO_NODES = "NoNodes"
    """The region has neither nodes that can take engines now nor declared pools; the message names those that are cordoned or not Ready."""
    NO_SUCH_GPU = "NoSuchGpu"
    """No GPU of the wanted type or memory is there; the message names those that are."""
    DOES_NOT_FIT = "DoesNotFit"
    """No GPU that is there can hold weights, one full context and overhead; the message has the numbers."""
    NEEDS_SEVERAL_GPUS = "NeedsSeveralGpus"
    """The model fits only over several GPUs, and this engine does not split a model yet."""
    PRECISION_UNSUPPORTED = "PrecisionUnsupported"
    """`precision` asks for a type that no GPU that is there computes in."""
    OUTSIDE_JURISDICTION = "OutsideJurisdiction"
    """The region lies in none of `placement.residency.jurisdictions`."""
    RESIDENCY_UNKNOWN = "ResidencyUnknown"
    """It has become unknown where the region or its nodes are; nothing new is placed, and what runs is stopped after
    `placement.residency.absenceGrace`."""
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
    STOPPED = "Stopped"
    """`spec.replicas` is 0: stopped by hand; requests are refused until it is raised."""
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
    START_FAILED = "StartFailed"
    """No engine could be started; the message says why, and when a request may start one again."""
    PODS_NOT_CREATED = "PodsNotCreated"
    """The API server refuses the pods (a quota, Pod Security); the message is its answer."""
    # ScalingActive
    FIXED_REPLICAS = "FixedReplicas"
    """minReplicas equals maxReplicas."""
    FOLLOWS_DEMAND = "FollowsDemand"
    """The operator follows demand: the first request wakes the endpoint, `idleAfter` without any puts it back to its floor."""
    FOLLOWS_HPA = "FollowsHPA"
    """The HorizontalPodAutoscaler follows demand."""
    EXTERNAL = "External"
    """`spec.replicas` decides."""
    METRICS_UNAVAILABLE = "MetricsUnavailable"
    """The HorizontalPodAutoscaler gets no metrics, or `via: HPA` was asked for and there is no metrics API of ours; the message says
    whose it is."""
    DEMAND_UNKNOWN = "DemandUnknown"
    """A gateway cannot be asked, so nothing is scaled down."""
    SCALED_BY_OTHERS = "ScaledByOthers"
    """A HorizontalPodAutoscaler that is not Emberline's scales the same engines; the message names it."""
    # RolloutBlocked
    NOT_BLOCKED = "NotBlocked"
    """Nothing keeps the newest generation from the engines."""
    WAITING_FOR_GPU = "WaitingForGpu"
    """No node has a free GPU for an engine of the newest generation."""
    WAITING_FOR_DRAIN = "WaitingForDrain"
    """An old engine still finishes its requests and holds the GPU that the new one needs."""
    NEW_ENGINE_FAILS = "NewEngineFails"
    """The newest generation's engine does not start; the older one goes on serving where there is one."""
    PAUSED = "Paused"
    """Somebody has paused the child Deployment."""
    # Degraded
    AS_EXPECTED = "AsExpected"
    """Nothing fails."""
    APPLY_FAILED = "ApplyFailed"
    """The API server refused a write; the message is its answer. Ready is False for it where nothing answers, and Stalled is True
    where what the spec asks for makes no valid object."""
    RESIDENCY_VIOLATION = "ResidencyViolation"
    """Engines ran outside the allowed regions and are being stopped."""
    # Reconciling
    ROLLING_OUT = "RollingOut"
    """Pods of the newest generation are being started."""
    # Events alone
    DECIDED = "Decided"
    """GPUs and precision have been chosen; the message says which and why."""
    ROLLED_OUT = "RolledOut"
    """All engines are of the newest generation."""
