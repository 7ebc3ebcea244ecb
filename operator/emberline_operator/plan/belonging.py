"""Whose an object is that has the name of an endpoint's child. What is somebody else's is never touched."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from emberline_contract import names
from emberline_operator.plan.actions import Ask
from emberline_operator.snapshot import Json, Ref, Snapshot


@dataclass(frozen=True, slots=True)
class Belonging:
    """Objects with a child's name that are not this endpoint's."""

    strangers: Mapping[Ref, str] = field(default_factory=dict)
    """Somebody else's, with the owner in words."""
    leftovers: frozenset[Ref] = frozenset()
    """Of an earlier endpoint of the same name; the garbage collector is about to delete them."""


def find(seen: Snapshot, ref: Ref) -> Json | None:
    """The live object, whoever's it is; None if it is not there or not known."""
    return seen.children.get(ref) or seen.looked_up.get(ref)


def own(seen: Snapshot, ref: Ref) -> Json | None:
    """The live object if it is this endpoint's."""
    live = find(seen, ref)
    return live if live is not None and seen.controls(live) else None


def own_deployments(seen: Snapshot) -> dict[str, Json]:
    """The endpoint's own Deployments by region."""
    return {
        ref.region: live
        for ref, live in sorted(seen.children.items())
        if ref.kind == "Deployment" and seen.controls(live)
    }


def sort_out(refs: Iterable[Ref], seen: Snapshot) -> Ask | Belonging:
    """Whether anything stands where children shall be."""
    refs = tuple(refs)
    unknown = frozenset(ref for ref in refs if ref not in seen.children and ref not in seen.looked_up)
    if unknown:
        return Ask(objects=unknown)
    strangers: dict[Ref, str] = {}
    leftovers = set()
    for ref in refs:
        live = find(seen, ref)
        if live is None or seen.controls(live):
            continue
        owner = _controller(live)
        if owner.get("kind") == names.ENDPOINT_KIND and owner.get("name") == seen.name:
            leftovers.add(ref)
        else:
            strangers[ref] = f"{owner['kind']} {owner['name']}" if owner else "no controller"
    return Belonging(strangers, frozenset(leftovers))


def _controller(live: Json) -> Json:
    for owner in live["metadata"].get("ownerReferences", ()):
        if owner.get("controller"):
            reference: Json = owner
            return reference
    return {}
