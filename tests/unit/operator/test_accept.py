"""What is accepted, and the words about what is not."""

from __future__ import annotations

from typing import Any

import pytest

from emberline_contract.conditions import Reason
from emberline_operator.accept import Accepted, ClaimSource, Rejection, accept, parse_source
from support.operator_objects import make_endpoint


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("pvc://models", ClaimSource("models", "")),
        ("pvc://models/smollm2", ClaimSource("models", "smollm2")),
        ("pvc://a.b-c/x/y_z.1", ClaimSource("a.b-c", "x/y_z.1")),
        ("pvc://models/..", None),
        ("pvc://models/a/../../b", None),
        ("pvc://models/..a", ClaimSource("models", "..a")),
        ("pvc://Models", None),
        ("pvc://", None),
        ("hf://org/name", None),
        ("", None),
        ("pvc://models/a b", None),
    ],
)
def test_sources(text: str, source: ClaimSource | None) -> None:
    assert parse_source(text) == source


def test_a_valid_endpoint_is_parsed() -> None:
    accepted = accept(make_endpoint(scaling={"idleAfter": "1m30s"}))
    assert isinstance(accepted, Accepted)
    assert accepted.spec.scaling.idle_after_s == 90
    assert accepted.source == ClaimSource("models", "tiny")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"scaling": {"idleAfter": "5 minutes"}}, "scaling.idleAfter: '5 minutes' is no duration; write it like 30s"),
        ({"rollout": {"drainTimeout": "-1s"}}, "rollout.drainTimeout: '-1s' is no duration"),
        ({"serving": {"heartbeat": ""}}, "serving.heartbeat: '' is no duration"),
        ({"scaling": {"activationTimeout": "1d"}}, "scaling.activationTimeout"),
        ({"scaling": {"minReplicas": 9}}, "scaling.minReplicas is 9, larger than scaling.maxReplicas 4; lower it or raise"),
        ({"scaling": {"initialReplicas": 5}}, "scaling.initialReplicas is 5"),
        ({"scaling": {"minReplicas": -1}}, "scaling.minReplicas: Input should be greater than or equal to 0"),
        ({"scaling": {"newer": 1}}, "scaling.newer: Extra inputs are not permitted; correct or remove the field"),
        ({"model": {"source": "hf://org/name"}}, "write pvc://<claim> or pvc://<claim>/<folder>"),
        ({"model": {}}, "model.source: Field required"),
        ({"accelerator": {"kind": "Tpu"}}, "accelerator.kind"),
        ({"engine": {"maxSequences": "many"}}, "engine.maxSequences"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_what_to_do(changes: dict[str, Any], words: str) -> None:
    endpoint = make_endpoint()
    endpoint["spec"] = {**endpoint["spec"], **changes}
    rejection = accept(endpoint)
    assert isinstance(rejection, Rejection)
    assert rejection.reason is Reason.INVALID_SPEC
    assert words in rejection.message


def test_all_that_is_wrong_is_named_at_once() -> None:
    endpoint = make_endpoint()
    endpoint["spec"]["scaling"] = {"idleAfter": "soon", "minReplicas": 9}
    rejection = accept(endpoint)
    assert isinstance(rejection, Rejection)
    assert "idleAfter" in rejection.message
    assert "minReplicas" in rejection.message
