"""Finds a decision again whose record is gone: the live pod template still says which hardware was chosen."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from emberline_contract import names
from emberline_operator.choice import Choice
from emberline_operator.regions.region import Region
from emberline_operator.snapshot import Json

_Requirement = tuple[str, str, frozenset[str]]


def recall(deployment: Json, region: Region, first: Choice, others: Iterable[Choice]) -> Choice | None:
    """The choice that the Deployment's template was made from: `first` if it may be that one, else one of the others."""
    return next((choice for choice in (first, *others) if _says(deployment, region, choice)), None)


def _says(deployment: Json, region: Region, choice: Choice) -> bool:
    """Whether the template asks for the choice's resource and for nodes as the choice wants them."""
    pod: Json = deployment["spec"]["template"].get("spec", {})
    limits = _limits(pod)
    if choice.resource_name not in limits if choice.resource_name else any("/" in name for name in limits):
        return False
    # What the region asks for says nothing about the choice.
    regional = {(key, "In", frozenset((value,))) for key, value in region.node_labels.items()}
    wanted = {
        frozenset((one.key, one.operator, frozenset(one.values)) for one in term) - regional
        for term in choice.terms or ((),)
    }
    return {term - regional for term in _terms(pod)} == wanted


def _limits(pod: Json) -> Json:
    for container in pod.get("containers", ()):
        if container.get("name") == names.ENGINE_CONTAINER:
            limits: Json = container.get("resources", {}).get("limits", {})
            return limits
    return {}


def _terms(pod: Json) -> list[frozenset[_Requirement]]:
    affinity: Any = pod.get("affinity", {}).get("nodeAffinity", {})
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution", {})
    terms = required.get("nodeSelectorTerms") or [{}]
    return [
        frozenset(
            (one["key"], one["operator"], frozenset(one.get("values", ()))) for one in term.get("matchExpressions", ())
        )
        for term in terms
    ]
