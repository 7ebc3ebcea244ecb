"""Who decides how many engines run, and whose the metrics API is."""

from __future__ import annotations

import pytest

from emberline_contract.conditions import ConditionType, Reason
from emberline_operator.plan.conditions import Verdict
from emberline_operator.plan.scaling_verdict import join_verdicts
from emberline_operator.plan.via import Via, choose_via, read_metrics_api
from emberline_operator.snapshot import MetricsApi
from support.scaling_cases import OURS, Raw, Region, hpa_of, spec_of

OUR_SERVICE = {"namespace": "emberline-system", "name": "emberline-gateway"}
THEIRS = {"namespace": "monitoring", "name": "prometheus-adapter"}


def service(version: str, service: Raw | None, *, available: bool = True, group: str = "custom.metrics.k8s.io") -> Raw:
    status = {"type": "Available", "status": str(available), "message": "" if available else "no endpoints"}
    return {
        "metadata": {"name": f"{version}.{group}"}, "spec": {"service": service}, "status": {"conditions": [status]}
    }  # fmt: skip


@pytest.mark.parametrize(
    ("services", "expected"),
    [
        ([], MetricsApi()),
        ([service("v1beta2", OUR_SERVICE)], OURS),
        ([service("v1beta2", OUR_SERVICE), service("v1beta1", OUR_SERVICE)], OURS),
        ([service("v1beta2", OUR_SERVICE), service("v1beta1", THEIRS)], MetricsApi(owner="monitoring/prometheus-adapter")),
        ([service("v1beta1", THEIRS)], MetricsApi(owner="monitoring/prometheus-adapter")),
        ([service("v1beta2", OUR_SERVICE, available=False)], MetricsApi(message="no endpoints")),
        ([service("v1beta2", OUR_SERVICE), service("v1beta1", OUR_SERVICE, available=False)],
         MetricsApi(message="no endpoints")),
        ([{**service("v1beta2", OUR_SERVICE), "status": {}}], MetricsApi(message="the API server has not asked it yet")),
        ([service("v1beta1", THEIRS, group="external.metrics.k8s.io")], MetricsApi()),
        ([service("v1", None, group="apps")], MetricsApi()),
    ],
)  # fmt: skip
def test_whose_the_metrics_api_is(services: list[Raw], expected: MetricsApi) -> None:
    assert read_metrics_api(services) == expected


def via(asked: str, api: MetricsApi, *, has_hpa: bool = False, uid: str | None = None) -> Via:
    live = (hpa_of(uid=uid) if uid else hpa_of()) if has_hpa else None
    region = Region(spec_of(scaling={"via": asked}), api=api, hpa=live)
    return choose_via(region.spec, region.seen)


OUT_OF_ORDER = MetricsApi(message="no endpoints")
FOREIGN = MetricsApi(owner="monitoring/prometheus-adapter")


@pytest.mark.parametrize("api", [OURS, OUT_OF_ORDER, FOREIGN, MetricsApi()])
def test_what_is_asked_for_without_metrics_is_so_whatever_is_there(api: MetricsApi) -> None:
    assert via("External", api).mode == "External"
    assert via("Operator", api).mode == "Operator"


@pytest.mark.parametrize("asked", ["Auto", "HPA"])
def test_an_autoscaler_where_its_metrics_can_be_had(asked: str) -> None:
    assert via(asked, OURS).mode == "HPA"
    assert via(asked, MetricsApi()).mode == "Operator"
    assert via(asked, FOREIGN, has_hpa=True).mode == "Operator", "taken over by somebody else"


@pytest.mark.parametrize("asked", ["Auto", "HPA"])
def test_one_that_is_there_outlives_a_gateway_that_restarts(asked: str) -> None:
    assert via(asked, OUT_OF_ORDER, has_hpa=True).mode == "HPA"
    assert via(asked, OUT_OF_ORDER).mode == "Operator", "none is begun"
    assert via(asked, OUT_OF_ORDER, has_hpa=True, uid="of an earlier endpoint").mode == "Operator"


def test_the_owner_is_named() -> None:
    """T15: the other one's APIService is left to it, and status says whose it is."""
    assert via("HPA", FOREIGN).reason is Reason.METRICS_UNAVAILABLE
    assert "monitoring/prometheus-adapter" in via("HPA", FOREIGN).message
    assert "monitoring/prometheus-adapter" in via("Auto", FOREIGN).message
    assert via("Auto", FOREIGN).reason is Reason.FOLLOWS_DEMAND
    assert "no endpoints" in via("HPA", OUT_OF_ORDER).message
    assert via("Auto", MetricsApi()).message == "", "nothing is amiss"


def verdict(status: str, reason: Reason, message: str = "m") -> Verdict:
    return Verdict(ConditionType.SCALING_ACTIVE, status, reason, message)  # type: ignore[arg-type]


def test_several_regions_are_as_the_worst_of_them() -> None:
    good = verdict("True", Reason.FOLLOWS_HPA)
    asleep = verdict("True", Reason.SCALED_TO_ZERO, "z")
    bad = verdict("False", Reason.METRICS_UNAVAILABLE, "no answer")
    assert join_verdicts([("eu", good)]) == good
    assert join_verdicts([("eu", good), ("us", good)]) == good
    joined = join_verdicts([("eu", asleep), ("us", good)])
    assert (joined.reason, joined.message) == (Reason.FOLLOWS_HPA, "region us: m")
    joined = join_verdicts([("eu", good), ("us", bad), ("ap", verdict("Unknown", Reason.DEMAND_UNKNOWN))])
    assert (joined.status, joined.message) == ("False", "region us: no answer")
    assert join_verdicts([]).reason is Reason.PENDING
