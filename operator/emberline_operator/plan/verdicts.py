"""The conditions of an endpoint, each from what a pass found. Every False or Unknown says what is wrong and what to do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from emberline_contract import names
from emberline_contract.conditions import ConditionType, Reason
from emberline_operator.plan.alias import judge_alias
from emberline_operator.plan.conditions import Verdict, engines
from emberline_operator.plan.findings import Findings, RegionFindings
from emberline_operator.plan.readiness import judge_degraded, judge_ready
from emberline_operator.plan.scaling_verdict import join_verdicts
from emberline_operator.snapshot import Json

_PENDING = "not looked at: see the condition Accepted"


def all_verdicts(found: Findings, before: Json) -> list[Verdict]:
    """All that are always present, and those that are there only while true. `before` is the live status."""
    accepted, placed = _accepted(found), _placed(found)
    blocked = next((verdict for verdict in (accepted, placed) if verdict.status == "False"), None)
    verdicts = [
        accepted,
        _alias(found),
        placed,
        _weights(found),
        judge_ready(found, blocked, before),
        _scaling(found),
        _rollout_blocked(found),
        judge_degraded(found),
    ]
    reconciling = _reconciling(found, blocked)
    if reconciling is not None:
        verdicts.append(reconciling)
    if found.rejection is not None:
        message = f"nothing is done until this is corrected: {found.rejection.message}"
        verdicts.append(Verdict(ConditionType.STALLED, "True", found.rejection.reason, message))
    return verdicts


def _accepted(found: Findings) -> Verdict:
    if found.rejection is not None:
        return Verdict(ConditionType.ACCEPTED, "False", found.rejection.reason, found.rejection.message)
    return Verdict(ConditionType.ACCEPTED, "True", Reason.VALID, "the spec is valid")


def _alias(found: Findings) -> Verdict:
    if found.spec is None:
        return _pending(ConditionType.ALIAS_READY)
    return judge_alias(found.spec.model, found.seen)


def _placed(found: Findings) -> Verdict:
    """Over the regions where engines shall run; where there is none, over all that the endpoint names."""
    kind = ConditionType.PLACED
    places = [region.placement for region in found.regions if region.placement is not None]
    places = [place for place in places if place.is_wanted] or places
    if not places:
        return _pending(kind)
    good = [place for place in places if place.is_placed]
    bad = [place for place in places if not place.is_placed]
    if not bad:
        return Verdict(kind, "True", good[0].reason, _sentences(place.message for place in good))
    wrong = _sentences(f"{place.region}: {place.message}" if len(places) > 1 else place.message for place in bad)
    if not good:
        return Verdict(kind, "False", bad[0].reason, wrong)
    where = ", ".join(place.region for place in good)
    return Verdict(kind, "True", Reason.PARTLY_PLACED, f"engines run in {where}; not in {wrong}")


def _weights(found: Findings) -> Verdict:
    if found.weights is None:
        return _pending(ConditionType.WEIGHTS_READY)
    return Verdict(ConditionType.WEIGHTS_READY, found.weights.status, found.weights.reason, found.weights.message)


def _scaling(found: Findings) -> Verdict:
    if found.spec is None:
        return _pending(ConditionType.SCALING_ACTIVE)
    scaled = [region for region in found.regions if region.scale is not None]
    # That nothing is added in a region which the endpoint has left is as it should be.
    scaled = [region for region in scaled if region.is_wanted] or scaled
    verdict = join_verdicts([(region.name, region.scale.verdict) for region in scaled if region.scale is not None])
    refuses = found.weights is not None and found.weights.reason is Reason.CLAIM_NOT_FOUND
    if verdict.reason is Reason.SCALED_TO_ZERO and refuses:
        return replace(verdict, message="nothing runs, and requests are refused: see the condition WeightsReady")
    return verdict


def _rollout_blocked(found: Findings) -> Verdict:
    kind = ConditionType.ROLLOUT_BLOCKED
    if found.spec is None:
        return _pending(kind)
    blocked = [
        region
        for region in found.regions
        if region.rollout is not None and region.rollout.reason is not Reason.NOT_BLOCKED
    ]
    if not blocked:
        return Verdict(kind, "False", Reason.NOT_BLOCKED, "nothing keeps the newest generation from the engines")
    first = blocked[0].rollout
    assert first is not None
    where = f"{blocked[0].name}: " if blocked[0].name != names.DEFAULT_REGION else ""
    return Verdict(kind, "True", first.reason, f"{where}{first.message}")


def _reconciling(found: Findings, blocked: Verdict | None) -> Verdict | None:
    """While the newest generation is not in all engines. A wake or a sleep is no roll-out."""
    if found.rejection is not None:
        return None
    left = [region.name for region in found.regions if not region.is_wanted and region.deployment is not None]
    held_back = [region for region in found.regions if region.is_wanted and region.is_held_back and region.num_alive]
    without_place = next(
        (region.placement for region in held_back if region.placement and region.rollout is None), None
    )
    if without_place is not None:
        return _rolling_out(f"engines of the newest generation wait for a place: {without_place.message}")
    if blocked is not None:
        return _left_behind(left)
    wanted = [region for region in found.regions if region.is_wanted]
    if any(region.is_template_new or region.deployment is None for region in wanted if _is_placed(region)):
        return _rolling_out("the newest generation is being written to the endpoint's objects")
    rolling = [region for region in wanted if region.rollout is not None and not region.rollout.is_over]
    waiting = next((region.rollout.message for region in held_back if region.rollout is not None), None)
    if waiting is not None:
        return _rolling_out(waiting)
    old = [name for region in rolling for name in _old_pods(region)]
    if old:
        return _rolling_out(
            f"{engines(len(old))} of an older generation and still to be replaced: {', '.join(old[:5])}"
        )
    missing = sum(max(0, region.desired - region.num_alive) for region in rolling)
    if missing:
        return _rolling_out(f"{engines(missing)} still to be created for the newest generation")
    # Not only that they are there: who waits for this condition to go wants them to answer. The first template replaces nothing.
    starting = sum(max(0, region.desired - region.num_ready) for region in rolling if not _is_first_template(region))
    if starting:
        return _rolling_out(f"{engines(starting)} not ready yet at the newest generation")
    return _left_behind(left)


def _left_behind(regions: list[str]) -> Verdict | None:
    if not regions:
        return None
    return _rolling_out(f"engines in {', '.join(regions)} go on until one of a region that the endpoint names answers")


def _rolling_out(message: str) -> Verdict:
    return Verdict(ConditionType.RECONCILING, "True", Reason.ROLLING_OUT, message)


def _is_placed(region: RegionFindings) -> bool:
    return region.placement is not None and region.placement.is_placed


def _old_pods(region: RegionFindings) -> list[str]:
    if region.deployment is None:
        return []
    annotations = region.deployment["spec"]["template"].get("metadata", {}).get("annotations", {})
    newest = annotations.get(names.ANNOTATION_TEMPLATE_HASH, "")
    return [pod.name for pod in region.pods if pod.template_hash != newest and not pod.terminating]


def _is_first_template(region: RegionFindings) -> bool:
    annotations = region.deployment["metadata"].get("annotations", {}) if region.deployment else {}
    return bool(annotations.get(names.DEPLOYMENT_REVISION) == "1")


def _pending(kind: ConditionType) -> Verdict:
    return Verdict(kind, "Unknown", Reason.PENDING, _PENDING)


def _sentences(messages: Iterable[str]) -> str:
    """Each once, in order."""
    return "; ".join(dict.fromkeys(messages))
