"""What Argo CD and Flux make of an InferenceEndpoint's status: one table through the shipped Lua and through kstatus's rules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from emberline_contract import names
from emberline_contract.conditions import ALWAYS_PRESENT, ConditionType, Reason
from support.argo_health import CONFIG, KEY, argo_health
from support.kstatus import Kstatus, compute

GITOPS = Path(__file__).parents[3] / "manifests" / "gitops"
WORDS = "words of the condition"
Raw = dict[str, Any]


def endpoint(*conditions: tuple[ConditionType, str, str], observed: int | None = 3, **metadata: Any) -> Raw:
    """An endpoint at generation 3 with these conditions besides those that are always there; without any, with no condition."""
    usual = {kind.value: ("Unknown", Reason.PENDING.value) for kind in ALWAYS_PRESENT} if conditions else {}
    given = {kind.value: (status, reason) for kind, status, reason in conditions}
    listed = [
        {"type": kind, "status": status, "reason": reason, "message": WORDS, "observedGeneration": 3}
        for kind, (status, reason) in {**usual, **given}.items()
    ]
    status: Raw = {"conditions": listed} if listed else {}
    if observed is not None:
        status["observedGeneration"] = observed
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.ENDPOINT_KIND,
        "metadata": {"name": "tiny", "generation": 3, **metadata},
        **({"status": status} if status else {}),
    }


READY, DEGRADED = ConditionType.READY, ConditionType.DEGRADED
RECONCILING, STALLED = ConditionType.RECONCILING, ConditionType.STALLED
SERVING = (READY, "True", Reason.SERVING.value)
ASLEEP = (READY, "True", Reason.SCALED_TO_ZERO.value)
STOPPED = (READY, "True", Reason.STOPPED.value)
STARTING = (READY, "False", Reason.STARTING.value)
WAKING = (READY, "True", Reason.STARTING.value)
FAILING = (READY, "False", Reason.CONTAINER_FAILED.value)
ROLLING = (RECONCILING, "True", Reason.ROLLING_OUT.value)
FAILED = (DEGRADED, "True", Reason.CONTAINER_FAILED.value)
NO_NODE = (READY, "False", Reason.UNSCHEDULABLE.value)
WAITING = (DEGRADED, "True", Reason.UNSCHEDULABLE.value)
WELL = (DEGRADED, "False", Reason.AS_EXPECTED.value)
REFUSED = (STALLED, "True", Reason.INVALID_SPEC.value)
DELETED: Raw = {"deletionTimestamp": "2026-12-01T00:00:00Z"}

# What Argo CD says, and what kstatus says.
TABLE: dict[str, tuple[Raw, str, Kstatus]] = {
    "serving": (endpoint(SERVING, WELL), "Healthy", Kstatus.CURRENT),
    "asleep": (endpoint(ASLEEP, WELL), "Healthy", Kstatus.CURRENT),
    "waking, and requests are held": (endpoint(WAKING, WELL), "Healthy", Kstatus.CURRENT),
    "stopped by hand": (endpoint(STOPPED, WELL), "Suspended", Kstatus.CURRENT),
    "stopped by hand after a failure": (endpoint(STOPPED, FAILED), "Suspended", Kstatus.CURRENT),
    "first start": (endpoint(STARTING, WELL), "Progressing", Kstatus.IN_PROGRESS),
    "rolling out while the old ones serve": (endpoint(SERVING, WELL, ROLLING), "Progressing", Kstatus.IN_PROGRESS),
    "rolling out, asleep": (endpoint(ASLEEP, WELL, ROLLING), "Progressing", Kstatus.IN_PROGRESS),
    "a roll-out that fails while the old ones serve": (
        endpoint(SERVING, FAILED, ROLLING), "Degraded", Kstatus.IN_PROGRESS),
    "an engine that fails while others serve": (endpoint(SERVING, FAILED), "Degraded", Kstatus.CURRENT),
    "nothing but engines that fail": (endpoint(FAILING, FAILED), "Degraded", Kstatus.IN_PROGRESS),
    "asleep after a failed start": (endpoint(ASLEEP, FAILED), "Degraded", Kstatus.CURRENT),
    "waiting for a node": (endpoint(NO_NODE, WAITING), "Progressing", Kstatus.IN_PROGRESS),
    "one more waits for a node while others serve": (endpoint(SERVING, WAITING), "Progressing", Kstatus.CURRENT),
    "rolling out, and waiting for a node": (endpoint(SERVING, WAITING, ROLLING), "Progressing", Kstatus.IN_PROGRESS),
    "asleep after a start that found no node": (endpoint(ASLEEP, WAITING), "Degraded", Kstatus.CURRENT),
    "refused": (endpoint((READY, "False", Reason.NOT_ACCEPTED.value), WELL, REFUSED), "Degraded", Kstatus.FAILED),
    "refused, and the last one that was not still serves": (endpoint(SERVING, WELL, REFUSED), "Degraded", Kstatus.FAILED),
    "not judged yet": (endpoint((READY, "Unknown", Reason.PENDING.value)), "Progressing", Kstatus.IN_PROGRESS),
    "being deleted": (endpoint(SERVING, WELL, **DELETED), "Progressing", Kstatus.TERMINATING),
    "being deleted, refused": (endpoint(STARTING, REFUSED, **DELETED), "Progressing", Kstatus.TERMINATING),
    "a newer generation that nobody has seen": (endpoint(SERVING, WELL, observed=2), "Progressing", Kstatus.IN_PROGRESS),
    "a newer generation of a refused one": (endpoint(STARTING, REFUSED, observed=2), "Progressing", Kstatus.IN_PROGRESS),
    "a newer generation of a stopped one": (endpoint(STOPPED, WELL, observed=2), "Progressing", Kstatus.IN_PROGRESS),
    "as the API server shows it before anybody has seen it": (endpoint(observed=-1), "Progressing", Kstatus.IN_PROGRESS),
    "a generation without a condition": (endpoint(observed=3), "Progressing", Kstatus.CURRENT),
    # Not as our API server stores it, but Argo CD may be asked about less.
    "no status at all": (endpoint(observed=None), "Progressing", Kstatus.CURRENT),
}  # fmt: skip


@pytest.mark.parametrize("case", TABLE)
def test_argo_cd(case: str) -> None:
    obj, expected, _ = TABLE[case]
    status, message = argo_health(names.ENDPOINT_KIND, obj)
    assert status == expected
    assert message
    is_judged = obj.get("status", {}).get("observedGeneration") == 3 and "deletionTimestamp" not in obj["metadata"]
    assert (message == WORDS) is (is_judged and bool(obj["status"].get("conditions")))


@pytest.mark.parametrize("case", TABLE)
def test_kstatus(case: str) -> None:
    obj, _, expected = TABLE[case]
    assert compute(obj) is expected


def test_the_table_has_every_answer() -> None:
    assert {argo for _, argo, _ in TABLE.values()} == {"Healthy", "Suspended", "Progressing", "Degraded"}
    assert {kstatus for _, _, kstatus in TABLE.values()} == set(Kstatus)


def test_the_message_is_the_one_of_the_condition_that_decides() -> None:
    obj = endpoint(SERVING, FAILED, ROLLING)
    for condition in obj["status"]["conditions"]:
        condition["message"] = f"of {condition['type']}"
    assert argo_health(names.ENDPOINT_KIND, obj) == ("Degraded", "of Degraded")


def test_a_region() -> None:
    region: Raw = {"kind": names.REGION_KIND, "metadata": {"name": "eu", "generation": 1}, "spec": {}}
    assert argo_health(names.REGION_KIND, region)[0] == "Healthy"
    assert argo_health(names.REGION_KIND, {**region, "metadata": {"name": "eu", **DELETED}})[0] == "Progressing"
    assert compute(region) is Kstatus.CURRENT


def test_the_scripts_name_conditions_of_the_contract() -> None:
    """One that was renamed would make its branch dead."""
    script = CONFIG["data"][KEY + names.ENDPOINT_KIND]
    for kind in (READY, DEGRADED, RECONCILING, STALLED):
        assert f'is_true("{kind.value}")' in script
    for reason in (Reason.STOPPED, Reason.SCALED_TO_ZERO):
        assert f'reason == "{reason.value}"' in script
    for reason in (Reason.UNSCHEDULABLE, Reason.WEIGHTS_NOT_READY):
        assert f"{reason.value} = true" in script
    assert CONFIG["data"].keys() == {KEY + names.ENDPOINT_KIND, KEY + names.REGION_KIND}


def test_the_samples_say_what_the_advice_says() -> None:
    application = yaml.safe_load((GITOPS / "argocd" / "application.yaml").read_text())
    (ignored,) = application["spec"]["ignoreDifferences"]
    assert (ignored["group"], ignored["kind"]) == (names.GROUP, names.ENDPOINT_KIND)
    assert ignored["jsonPointers"] == ["/spec/replicas"]
    assert "RespectIgnoreDifferences=true" in application["spec"]["syncPolicy"]["syncOptions"]
    flux = yaml.safe_load((GITOPS / "flux" / "endpoints.yaml").read_text())
    assert flux["spec"]["wait"] is True
