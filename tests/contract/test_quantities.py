"""Durations and quantities as Kubernetes writes them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emberline_contract.quantities import duration_s, quantity_bytes


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0s", 0.0),
        ("1s", 1.0),
        ("500ms", 0.5),
        ("1.5h", 5400.0),
        ("1h30m", 5400.0),
        ("2h45m30s", 9930.0),
        ("100us", 1e-4),
        ("100µs", 1e-4),
        ("5m", 300.0),
        ("10ns", 1e-8),
    ],
)
def test_duration(text: str, seconds: float) -> None:
    assert duration_s(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text", ["", "5", "s", "5 m", "5m ", "-5m", "+5m", "5d", "1h30", "5M", "1e3s", "\u0665m", "5m5", "1..5s"]
)
def test_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="is no duration; write it like 30s, 5m or 1h30m"):
        duration_s(text)


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("0", 0),
        ("1", 1),
        ("1k", 1000),
        ("1Ki", 1024),
        ("512Mi", 536_870_912),
        ("2Gi", 2_147_483_648),
        ("2G", 2_000_000_000),
        ("1.5Gi", 1_610_612_736),
        ("1Ti", 1_099_511_627_776),
        ("1T", 10**12),
    ],
)
def test_quantity(text: str, num_bytes: int) -> None:
    assert quantity_bytes(text) == num_bytes


@pytest.mark.parametrize("text", ["", "Gi", "1 Gi", "1gi", "1GB", "-1Gi", "1K", "\u0663Gi", "1Gi\n", "0x10"])
def test_no_quantity(text: str) -> None:
    with pytest.raises(ValueError, match="is no quantity of bytes; write it like 512Mi or 2Gi"):
        quantity_bytes(text)


@given(hours=st.integers(0, 10_000), minutes=st.integers(0, 59), seconds=st.integers(0, 59))
def test_parts_add_up(hours: int, minutes: int, seconds: int) -> None:
    assert duration_s(f"{hours}h{minutes}m{seconds}s") == hours * 3600 + minutes * 60 + seconds


@given(st.integers(0, 2**50))
def test_plain_bytes_are_exact(number: int) -> None:
    assert quantity_bytes(str(number)) == number
