"""Where pods may run, and what they weigh there."""

from __future__ import annotations

import pytest

from emberline_contract.conditions import Reason
from emberline_contract.resources import PlacementSpec, PrecisionSpec
from emberline_operator.accept import ClaimSource
from emberline_operator.placement import Placement, Unplaced, place
from emberline_operator.plan.weights import judge_claim
from emberline_operator.precision import choose_precision

REGIONS = {
    "eu": {"metadata": {"name": "eu"}, "spec": {}},
    "us": {"metadata": {"name": "us"}, "spec": {"nodeSelector": {"example.com/pool": "us-1", "zone": "b"}}},
}


def test_without_a_region_any_node_will_do() -> None:
    placement = place(PlacementSpec(), REGIONS)
    assert isinstance(placement, Placement)
    assert (placement.region, placement.node_labels, placement.reason) == ("default", {}, Reason.ANYWHERE)


@pytest.mark.parametrize(
    ("name", "labels", "words"),
    [
        ("eu", {"topology.kubernetes.io/region": "eu"}, "topology.kubernetes.io/region=eu"),
        ("us", {"example.com/pool": "us-1", "zone": "b"}, "example.com/pool=us-1, zone=b"),
    ],
)
def test_a_region_brings_its_nodes_labels(name: str, labels: dict[str, str], words: str) -> None:
    placement = place(PlacementSpec(regions=(name,)), REGIONS)
    assert isinstance(placement, Placement)
    assert (placement.region, placement.node_labels, placement.reason) == (name, labels, Reason.IN_REGION)
    assert words in placement.message


def test_an_unknown_region_is_no_place() -> None:
    placement = place(PlacementSpec(regions=("mars",)), REGIONS)
    assert isinstance(placement, Unplaced)
    assert placement.reason is Reason.UNKNOWN_REGION
    assert "there are: eu, us" in placement.message
    nowhere = place(PlacementSpec(regions=("mars",)), {})
    assert isinstance(nowhere, Unplaced)
    assert "there are: none" in nowhere.message


def test_precision() -> None:
    assert choose_precision(PrecisionSpec()).dtype == "bf16"
    assert "Auto" in choose_precision(PrecisionSpec()).reason
    assert choose_precision(PrecisionSpec(format="fp32")).dtype == "fp32"
    assert "precision.format" in choose_precision(PrecisionSpec(format="fp32")).reason


@pytest.mark.parametrize(
    ("claim", "status", "reason", "words"),
    [
        (None, "False", Reason.CLAIM_NOT_FOUND, "no PersistentVolumeClaim 'models' in this namespace; create it"),
        ({"status": {"phase": "Bound"}}, "True", Reason.CLAIM_BOUND, "folder 'tiny' of"),
        ({"status": {"phase": "Lost"}}, "False", Reason.CLAIM_NOT_BOUND, "is Lost, not Bound"),
        ({}, "False", Reason.CLAIM_NOT_BOUND, "is Pending, not Bound; see `kubectl describe pvc models`"),
    ],
)
def test_claims(claim: dict[str, object] | None, status: str, reason: Reason, words: str) -> None:
    state = judge_claim(ClaimSource("models", "tiny"), claim)
    assert (state.status, state.reason) == (status, reason)
    assert words in state.message
