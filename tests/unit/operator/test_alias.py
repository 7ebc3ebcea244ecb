"""Of several endpoints that want one name, the oldest has it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from emberline_contract.conditions import Reason
from emberline_contract.resources import ModelSpec
from emberline_operator.plan.alias import judge_alias
from emberline_operator.snapshot import Rival, Snapshot, time_text
from support.operator_objects import NOW, make_endpoint


def seen(*rivals: Rival) -> Snapshot:
    endpoint = make_endpoint()
    endpoint["metadata"]["creationTimestamp"] = time_text(NOW)
    return Snapshot(endpoint, rivals=rivals)


ALIAS = ModelSpec(source="pvc://models", served_name="llama")
OLDER = Rival(NOW.replace(microsecond=0) - timedelta(seconds=1), "zoo", "zebra")
YOUNGER = Rival(NOW.replace(microsecond=0) + timedelta(seconds=1), "a", "a")
SAME_SECOND_BEFORE = Rival(NOW.replace(microsecond=0), "team", "a")
SAME_SECOND_AFTER = Rival(NOW.replace(microsecond=0), "team", "zebra")


@pytest.mark.parametrize(
    ("rivals", "reason"),
    [
        ((), Reason.ALIAS_SERVED),
        ((YOUNGER,), Reason.ALIAS_SERVED),
        ((SAME_SECOND_AFTER,), Reason.ALIAS_SERVED),
        ((SAME_SECOND_BEFORE,), Reason.NAME_CONFLICT),
        ((OLDER,), Reason.NAME_CONFLICT),
        ((YOUNGER, OLDER), Reason.NAME_CONFLICT),
    ],
)
def test_the_oldest_has_it(rivals: tuple[Rival, ...], reason: Reason) -> None:
    verdict = judge_alias(ALIAS, seen(*rivals))
    assert verdict.reason is reason
    assert verdict.status == ("False" if reason is Reason.NAME_CONFLICT else "True")
    assert "'team/tiny'" in verdict.message


def test_another_endpoints_qualified_name_is_never_ours() -> None:
    ours = replace(seen(YOUNGER), is_shadowed=True)
    verdict = judge_alias(ModelSpec(source="pvc://models", served_name="zoo/zebra"), ours)
    assert (verdict.status, verdict.reason) == ("False", Reason.NAME_CONFLICT)
    assert "'zoo/zebra'" in verdict.message
    assert "'team/tiny'" in verdict.message


def test_who_has_it_is_named() -> None:
    assert "older endpoint zoo/zebra" in judge_alias(ALIAS, seen(OLDER)).message


def test_without_an_alias_there_is_nothing_to_clash() -> None:
    assert judge_alias(ModelSpec(source="pvc://models"), seen()).reason is Reason.NO_ALIAS
