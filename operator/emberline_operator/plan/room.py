"""Which nodes could take an engine of a template, and where a GPU for it seems free.

Only engines' GPUs are known, not those of other workloads: a free GPU is a hope, and whoever builds on it must bear its failing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from emberline_contract import names
from emberline_operator.choice import Choice
from emberline_operator.snapshot import Json, NodeState, PodState, Snapshot, Taint, Waiter


def could_run(template: Json, choice: Choice, count: int, node: NodeState) -> bool:
    """Whether the scheduler could put a pod of the template there if the node had nothing to do."""
    has_gpus = not choice.resource_name or node.gpus.get(choice.resource_name, 0) >= count
    return has_gpus and _admits(node, template["spec"])


def num_free_places(template: Json, choice: Choice, count: int, seen: Snapshot) -> int:
    """Engines of the template for which GPUs seem free on nodes that are there. Terminating engines hold theirs still."""
    places = 0
    for node in seen.nodes.values():
        used = seen.gpus_in_use.get(node.name, {}).get(choice.resource_name, 0)
        free = max(0, node.gpus.get(choice.resource_name, 0) - used) // count
        if free and could_run(template, choice, count, node):
            places += free
    return places


def num_pool_places(template: Json, choice: Choice, count: int, region: str, seen: Snapshot) -> int:
    """Engines for which a declared pool of the region may still get nodes."""
    places = 0
    for pool in _pools(template["spec"], choice, region, seen):
        num_nodes = sum(pool["nodeSelector"].items() <= node.labels.items() for node in seen.nodes.values())
        places += max(0, pool.get("maxNodes", 1) - num_nodes) * (pool.get("gpusPerNode", 1) // count)
    return places


def num_rivals(template: Json, choice: Choice, count: int, region: str, seen: Snapshot) -> int:
    """Engines of other endpoints' roll-outs that may be about to take one of the same places."""
    others = [it for endpoint, its in seen.surging.items() if endpoint != (seen.namespace, seen.name) for it in its]
    rivals = [other["spec"] for other in others if choice.resource_name in _limits(other["spec"])]
    if not rivals:
        return 0
    nodes = [node for node in seen.nodes.values() if could_run(template, choice, count, node)]
    pools = list(_pools(template["spec"], choice, region, seen))
    return sum(
        any(_admits(node, rival) for node in nodes) or any(_names_pool(rival, pool["nodeSelector"]) for pool in pools)
        for rival in rivals
    )


def heir_of(pod: PodState, seen: Snapshot) -> tuple[str, Waiter] | None:
    """The endpoint, as `namespace/name`, and the engine of it that waits for GPUs that this pod would leave.

    Of two roll-outs whose surges wait for each other's GPUs, the first by name goes on: what the other may take it gives back
    when it has surged.
    """
    node, me = seen.nodes.get(pod.node), (seen.namespace, seen.name)
    if node is None or not pod.gpus:
        return None
    for endpoint, waiters in sorted(seen.waiters.items()):
        if endpoint == me or (endpoint in seen.surging and endpoint > me):
            continue
        for waiter in waiters:
            if _would_take(waiter, pod, node, seen):
                return "/".join(endpoint), waiter
    return None


def _would_take(waiter: Waiter, pod: PodState, node: NodeState, seen: Snapshot) -> bool:
    used = seen.gpus_in_use.get(node.name, {})
    return _admits(node, waiter.spec) and all(
        resource in pod.gpus
        # Its own words tell what it lacks: one that waits for a claim would not take a GPU.
        and f"Insufficient {resource}" in waiter.words
        and count <= max(0, node.gpus.get(resource, 0) - used.get(resource, 0)) + pod.gpus[resource]
        for resource, count in waiter.gpus.items()
    )


def _admits(node: NodeState, pod: Json) -> bool:
    """Whether a pod may be put there, be there room or not."""
    if not node.is_ready or node.is_cordoned:
        return False
    if any(node.labels.get(key) != value for key, value in pod.get("nodeSelector", {}).items()):
        return False
    return _is_tolerated(node.taints, pod.get("tolerations", ())) and _is_wanted(pod, node.labels)


def _limits(pod: Json) -> set[str]:
    return {name for container in pod["containers"] for name in container.get("resources", {}).get("limits", {})}


def _pools(pod: Json, choice: Choice, region: str, seen: Snapshot) -> Iterator[Json]:
    """Declared pools of the region that the pod asks for."""
    spec = seen.regions.get(region, {}).get("spec", {})
    for pool in spec.get("gpuPools", ()):
        labels = {**spec.get("nodeSelector", {}), **pool["nodeSelector"]}
        # Of labels that the pool does not declare nobody knows; its nodes may carry them.
        wanted = pod.get("nodeSelector", {})
        is_contradicted = any(labels.get(key, value) != value for key, value in wanted.items())
        fits = pool.get("resourceName", names.GPU_RESOURCE) == choice.resource_name and not is_contradicted
        if fits and _names_pool(pod, pool["nodeSelector"]):
            yield pool


def _names_pool(pod: Json, selector: Mapping[str, str]) -> bool:
    """Whether one of the affinity's alternatives asks for the pool's labels: that is how a declared pool is chosen."""
    return any(
        all(any(e["key"] == key and e.get("values") == [value] for e in expressions) for key, value in selector.items())
        for expressions in _alternatives(pod)
    )


def _alternatives(pod: Json) -> list[list[Json]]:
    required = pod.get("affinity", {}).get("nodeAffinity", {}).get("requiredDuringSchedulingIgnoredDuringExecution", {})
    return [term.get("matchExpressions", []) for term in required.get("nodeSelectorTerms", ())]


def _is_wanted(pod: Json, labels: Mapping[str, str]) -> bool:
    alternatives = _alternatives(pod)
    return not alternatives or any(all(_holds(e, labels) for e in expressions) for expressions in alternatives)


def _holds(expression: Json, labels: Mapping[str, str]) -> bool:
    """As the scheduler reads it: `Gt` and `Lt` compare whole numbers, and only `NotIn` and `DoesNotExist` hold without a label."""
    value = labels.get(expression["key"])
    values: list[str] = expression.get("values", [])
    match expression["operator"]:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt" as comparison:
            # Not only our own templates are asked: the API server lets anybody's ask for "more than abc".
            number, bound = _whole(value), _whole(values[0] if values else None)
            if number is None or bound is None:
                return False
            return number > bound if comparison == "Gt" else number < bound
        case _:
            return False


def _whole(text: str | None) -> int | None:
    return int(text) if text and text.removeprefix("-").isdecimal() else None


def _is_tolerated(taints: Iterable[Taint], tolerations: Iterable[Json]) -> bool:
    given = list(tolerations)
    return all(
        any(_tolerates(toleration, taint) for toleration in given)
        for taint in taints
        if taint.effect in ("NoSchedule", "NoExecute")
    )


def _tolerates(toleration: Json, taint: Taint) -> bool:
    if toleration.get("effect") not in (None, taint.effect) or toleration.get("key") not in (None, taint.key):
        return False
    return toleration.get("operator") == "Exists" or toleration.get("value", "") == taint.value
