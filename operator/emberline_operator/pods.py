"""What a Pod's status says of an engine: where it is, what keeps it from serving, and how far a container of it has come."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from typing import Final

from emberline_contract import names
from emberline_operator.snapshot import Json, PodState, time_of, whole_gpus

_STARTING_REASONS: Final = frozenset({"ContainerCreating", "PodInitializing"})
_IMAGE_REASONS: Final = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "ErrImageNeverPull",
        "ImageInspectError",
        "InvalidImageName",
        "RegistryUnavailable",
        "SignatureValidationFailed",
    }
)


def read_pod(pod: Json) -> PodState:
    """What matters of a Pod."""
    metadata, status = pod["metadata"], pod.get("status", {})
    conditions = {condition["type"]: condition for condition in status.get("conditions", ())}
    ready = conditions.get("Ready", {})
    scheduled = conditions.get("PodScheduled", {})
    is_ready = ready.get("status") == "True"
    spec, annotations = pod.get("spec", {}), metadata.get("annotations", {})
    # The scheduler's last word may come after somebody else has bound the pod.
    is_waiting = not spec.get("nodeName") and scheduled.get("status") == "False"
    is_unschedulable = is_waiting and scheduled.get("reason") == "Unschedulable"
    failed = None if is_ready else _failed_container(status)
    return PodState(
        name=metadata["name"],
        template_hash=annotations.get(names.ANNOTATION_TEMPLATE_HASH, ""),
        region=metadata.get("labels", {}).get(names.LABEL_REGION, ""),
        created=time_of(metadata["creationTimestamp"]),
        ready_since=_since(ready, metadata) if is_ready else None,
        terminating="deletionTimestamp" in metadata,
        unschedulable=(scheduled.get("message") or "no node fits").rstrip(".") if is_unschedulable else "",
        failure="" if is_ready else _failure(status, failed),
        unschedulable_since=_since(scheduled, metadata) if is_unschedulable else None,
        config_maps=frozenset(v["configMap"]["name"] for v in spec.get("volumes", ()) if "configMap" in v),
        uid=metadata.get("uid", ""),
        node=spec.get("nodeName", ""),
        gpus=_gpus(spec),
        deletion_cost=_cost(annotations.get(names.POD_DELETION_COST, "")),
        deletion_cost_written=_moment(annotations.get(names.ANNOTATION_DELETION_COST_TIME, "")),
        ends_by=_moment(metadata.get("deletionTimestamp", "")),
        has_ended=status.get("phase") in ("Succeeded", "Failed"),
        not_ready_since=_since(ready, metadata) if ready and not is_ready else None,
        lacks_image=failed is not None and failed.get("state", {}).get("waiting", {}).get("reason") in _IMAGE_REASONS,
        is_trying=failed is not None and "running" in failed.get("state", {}),
        loading_s=_loading_s(failed, ready) if failed is not None else None,
    )


def staying_unknown(pods: Iterable[PodState], since: datetime) -> list[PodState]:
    """Pods that may stay where it is unknown since then where they are, for as long as that is borne.

    Those had a node by then; in the middle of a roll-out, so that it stands still and stops nobody who answers, also those that
    waited for one.
    """
    known = [pod for pod in pods if not (pod.terminating or pod.has_ended) and pod.created <= since]
    return known if is_half_rolled_out(known) else [pod for pod in known if pod.node]


def is_half_rolled_out(pods: Iterable[PodState]) -> bool:
    """Whether pods of two templates are there, and one of them answers."""
    alive = [pod for pod in pods if not (pod.terminating or pod.has_ended)]
    return len({pod.template_hash for pod in alive}) > 1 and any(pod.is_routable for pod in alive)


def _since(condition: Json, metadata: Json) -> datetime:
    return time_of(condition.get("lastTransitionTime") or metadata["creationTimestamp"])


def _gpus(spec: Json) -> dict[str, int]:
    requested: Counter[str] = Counter()
    for container in spec.get("containers", ()):
        limits = container.get("resources", {}).get("limits", {})
        requested.update(whole_gpus(limits))
    return dict(requested)


def _cost(text: str) -> int | None:
    """Whatever somebody wrote there that is no number counts as nothing, as with the ReplicaSet controller."""
    try:
        return int(text)
    except ValueError:
        return None


def _moment(text: str) -> datetime | None:
    """A time that may be missing, or that somebody has spoilt: anybody may write a pod's annotations."""
    try:
        return time_of(text)
    except (ValueError, OverflowError):
        return None


def _failed_container(status: Json) -> Json | None:
    """The status of the first container that failed. One between two of its crashes runs for a while; its last end still tells."""
    for container in (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())):
        reason = container.get("state", {}).get("waiting", {}).get("reason", "")
        if (reason and reason not in _STARTING_REASONS) or _last_end(container).get("exitCode", 0) != 0:
            found: Json = container
            return found
    return None


def _last_end(container: Json) -> Json:
    return container.get("state", {}).get("terminated") or container.get("lastState", {}).get("terminated") or {}


def _failure(status: Json, container: Json | None) -> str:
    if container is not None:
        waiting, ended = container.get("state", {}).get("waiting", {}), _last_end(container)
        words = [waiting.get("reason", ""), waiting.get("message", "")]
        if ended.get("exitCode", 0) != 0:
            how = f"exit code {ended['exitCode']}"
            words += [f"last end: {ended.get('reason', 'Error')}, {how}", ended.get("message", "")]
        return f"container {container['name']}: " + ": ".join(word.strip() for word in words if word.strip())
    if status.get("phase") == "Failed":
        return ": ".join(word for word in (status.get("reason", "Failed"), status.get("message", "")) if word)
    return ""


def _loading_s(container: Json, ready: Json) -> float | None:
    ended = _last_end(container)
    started, finished = (_moment(ended.get(key) or "") for key in ("startedAt", "finishedAt"))
    unready = _moment(ready.get("lastTransitionTime") or "")
    # Had it become Ready, it would have ceased to be so after this start.
    if started is None or finished is None or unready is None or unready > started:
        return None
    return (finished - started).total_seconds()
