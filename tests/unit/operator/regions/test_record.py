"""Records come back as they were written, and those of strangers are none."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emberline_operator.choice import Choice, Expression, Skipped
from emberline_operator.decision import Decision
from emberline_operator.regions.record import from_text, to_text
from support.examples import examples

CPU = Choice("", "bf16", "bf16", None, "auto", "", (), None, "because")
moments = st.integers(0, 2_000_000_000).map(lambda seconds: datetime.fromtimestamp(seconds, UTC))
words = st.text(max_size=5)
expressions = st.builds(
    Expression, words, st.sampled_from(["In", "Gt", "Exists"]), st.lists(words, max_size=2).map(tuple)
)
choices = st.builds(
    Choice,
    words,
    st.sampled_from(["bf16", "fp8", "int4"]),
    st.sampled_from(["bf16", "fp32"]),
    st.sampled_from([None, "fp8", "int8"]),
    st.sampled_from(["auto", "fp8"]),
    words,
    st.lists(st.lists(expressions, max_size=2).map(tuple), max_size=2).map(tuple),
    st.none() | st.integers(0, 2**50),
    words,
    st.lists(st.builds(Skipped, words, words), max_size=2).map(tuple),
)
decisions = st.builds(
    Decision,
    words,
    words,
    st.dictionaries(words, words, max_size=3),
    st.lists(words, max_size=3).map(tuple),
    choices,
    st.none() | moments,
    st.dictionaries(words, moments, max_size=3),
    st.none() | moments,
    st.booleans(),
)


@settings(**examples(40))
@given(decisions)
def test_every_decision_comes_back(decision: Decision) -> None:
    text = to_text(decision)
    assert from_text(text) == decision
    assert to_text(decision) == text


def test_a_newer_field_is_passed_over_and_a_newer_version_is_not_read() -> None:
    decision = Decision("eu", "1", {"a": "b"}, (), CPU)
    body = json.loads(to_text(decision))
    assert from_text(json.dumps({**body, "later": 1})) == decision
    assert from_text(json.dumps({**body, "version": 2})) is None


def test_defaults_are_left_out_so_that_a_later_field_changes_no_record() -> None:
    body = json.loads(to_text(Decision("eu", "1", {"a": "b"}, (), CPU)))
    assert body.keys() == {"version", "region", "inputs", "node_labels", "jurisdictions", "choice"}
    assert "skipped" not in body["choice"]


@pytest.mark.parametrize("time", ["2026-01-01T00:00:00", "9999-12-31T23:59:59Z", "0001-01-01T00:00:00+14:00"])
@pytest.mark.parametrize("field", ["unknown_since", "impossible_since", "unknown_nodes"])
def test_a_record_with_a_time_that_one_cannot_reckon_with_is_none(field: str, time: str) -> None:
    body = json.loads(to_text(Decision("eu", "1", {"a": "b"}, (), CPU)))
    assert from_text(json.dumps({**body, field: {"n": time} if field == "unknown_nodes" else time})) is None


def test_a_record_of_endless_brackets_is_none() -> None:
    assert from_text("[" * 100_000) is None
