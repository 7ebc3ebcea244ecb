"""Records come back as they were written, and those of strangers are none."""

from __future__ import annotations

import json
from datetime import UTC, datetime

from hypothesis import given, settings
from hypothesis import strategies as st

from emberline_operator.choice import Choice
from emberline_operator.decision import Decision
from emberline_operator.regions.record import from_text, to_text
from support.examples import examples

CPU = Choice("", "bf16", "bf16", None, "auto", "", (), None, "because")
moments = st.integers(0, 2_000_000_000).map(lambda seconds: datetime.fromtimestamp(seconds, UTC))
decisions = st.builds(
    Decision,
    node_labels=st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3),
    choice=st.builds(Choice),
    unknown_since=st.none() | moments,
    unknown_nodes=st.dictionaries(st.text(max_size=5), moments, max_size=3),
    impossible_since=st.none() | moments,
    has_moved=st.booleans(),
)


@settings(**examples(60))
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
