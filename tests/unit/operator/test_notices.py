"""Events tell of what has just become so, once."""

from __future__ import annotations

from typing import Any

import pytest

from emberline_contract.conditions import ALWAYS_PRESENT, ConditionType, Reason
from emberline_operator.plan.notices import notices_of

FINE = {
    "Accepted": ("True", "Valid"),
    "AliasReady": ("True", "NoAlias"),
    "Placed": ("True", "InRegion"),
    "WeightsReady": ("True", "ClaimBound"),
    "Ready": ("True", "Serving"),
    "ScalingActive": ("True", "FollowsDemand"),
    "RolloutBlocked": ("False", "NotBlocked"),
    "Degraded": ("False", "AsExpected"),
}


def status(rest: dict[str, Any] | None = None, /, **changes: tuple[str, str]) -> dict[str, Any]:
    conditions = [
        {"type": kind, "status": sign[0], "reason": sign[1], "message": f"{kind}: {sign[1]}", "observedGeneration": 2}
        for kind, sign in {**FINE, **changes}.items()
    ]
    return {"conditions": conditions, **(rest or {})}


def test_the_table_of_this_test_has_every_condition() -> None:
    assert set(FINE) == {kind.value for kind in ALWAYS_PRESENT}


@pytest.mark.parametrize(
    ("kind", "sign"),
    [
        ("Accepted", ("False", "InvalidSpec")),
        ("Accepted", ("False", "NameTaken")),
        ("AliasReady", ("False", "NameConflict")),
        ("Placed", ("False", "UnknownRegion")),
        ("Placed", ("True", "PartlyPlaced")),
        ("WeightsReady", ("False", "ClaimNotFound")),
        ("ScalingActive", ("False", "MetricsUnavailable")),
        ("ScalingActive", ("Unknown", "DemandUnknown")),
        ("RolloutBlocked", ("True", "WaitingForGpu")),
        ("Degraded", ("True", "ContainerFailed")),
        ("Degraded", ("True", "ResidencyViolation")),
    ],
)
def test_what_goes_wrong_is_a_warning_once(kind: str, sign: tuple[str, str]) -> None:
    wrong = status(**{kind: sign})
    (notice,) = notices_of(status(), wrong)
    assert (notice.type, notice.reason, notice.message) == ("Warning", Reason(sign[1]), f"{kind}: {sign[1]}")
    assert notices_of({}, wrong) == (notice,)
    assert notices_of(wrong, wrong) == ()
    assert notices_of(wrong, status()) == ()


def test_that_a_roll_out_waits_for_a_drain_is_told_and_no_warning() -> None:
    (notice,) = notices_of(status(), status(RolloutBlocked=("True", "WaitingForDrain")))
    assert (notice.type, notice.reason) == ("Normal", Reason.WAITING_FOR_DRAIN)


@pytest.mark.parametrize(
    ("kind", "sign"),
    [
        ("Ready", ("False", "Starting")),
        ("Ready", ("True", "ScaledToZero")),
        ("Placed", ("Unknown", "Pending")),
        ("ScalingActive", ("True", "ScaledToZero")),
        ("ScalingActive", ("Unknown", "Pending")),
        # Placed tells of it.
        ("ScalingActive", ("False", "NotPlaced")),
    ],
)
def test_the_ordinary_course_of_things_is_no_event(kind: str, sign: tuple[str, str]) -> None:
    assert notices_of(status(), status(**{kind: sign})) == ()


def test_a_reason_that_two_conditions_share_is_told_once() -> None:
    wrong = status(Placed=("False", "NoNodes"), Degraded=("True", "NoNodes"))
    assert [notice.reason for notice in notices_of(status(), wrong)] == [Reason.NO_NODES]


def test_another_reason_is_another_event() -> None:
    before, after = status(Degraded=("True", "Unschedulable")), status(Degraded=("True", "ContainerFailed"))
    assert [notice.reason for notice in notices_of(before, after)] == [Reason.CONTAINER_FAILED]


def test_hardware_and_precision_are_told_when_they_are_chosen_and_chosen_anew() -> None:
    def chosen(gpu: str, precision: str) -> dict[str, Any]:
        return status(
            {"precision": {"format": precision, "reason": "why"}, "regions": [{"name": "eu", "gpuClass": gpu}]}
        )

    h100, a100 = chosen("h100", "fp8"), chosen("a100", "bf16")
    (notice,) = notices_of(status(), h100)
    assert (notice.type, notice.reason, notice.message) == ("Normal", Reason.DECIDED, "precision fp8: why")
    assert notices_of(h100, h100) == ()
    assert [notice.reason for notice in notices_of(h100, a100)] == [Reason.DECIDED]
    assert notices_of(h100, status()) == ()


def test_the_end_of_a_roll_out_is_told() -> None:
    rolling = status(Reconciling=("True", "RollingOut"))
    (notice,) = notices_of(rolling, status())
    assert (notice.type, notice.reason, notice.message) == (
        "Normal", Reason.ROLLED_OUT, "all engines are of generation 2"
    )  # fmt: skip
    assert notices_of(rolling, status(Ready=("True", "ScaledToZero"))) == ()


def test_every_condition_that_can_go_wrong_is_thought_of() -> None:
    quiet = {ConditionType.READY, ConditionType.RECONCILING, ConditionType.STALLED}
    for kind in set(ConditionType) - quiet:
        bad = "True" if kind in (ConditionType.DEGRADED, ConditionType.ROLLOUT_BLOCKED) else "False"
        assert notices_of(status(), status(**{kind.value: (bad, "Unschedulable")})), kind
