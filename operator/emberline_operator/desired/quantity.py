"""Kubernetes quantities in the one notation that the API server keeps: `1000m` comes back as `1`, `1.5Gi` as `1536Mi`."""

from __future__ import annotations

import re
from decimal import ROUND_CEILING, Decimal
from typing import Final

_QUANTITY: Final = re.compile(r"(\d+(?:\.\d+)?)(n|u|m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?", re.ASCII)
_DECIMAL: Final = {"E": 18, "P": 15, "T": 12, "G": 9, "M": 6, "k": 3, "": 0, "m": -3, "u": -6, "n": -9}
_BINARY: Final = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_NANO: Final = Decimal("1e-9")


def canonical_quantity(text: str) -> str:
    """The notation that the API server writes back; a text that is no quantity stays as it is, for the API server to refuse."""
    match = _QUANTITY.fullmatch(text)
    if match is None:
        return text
    suffix = match[2] or ""
    if suffix in _BINARY and suffix:
        value = Decimal(match[1]) * 1024 ** _BINARY.index(suffix)
        if value >= 1024 and value == value.to_integral_value():
            return _binary(int(value))
    else:
        value = Decimal(match[1]).scaleb(_DECIMAL[suffix])
    return _decimal(value.quantize(_NANO, rounding=ROUND_CEILING))


def _binary(value: int) -> str:
    power = 0
    while value % 1024 == 0 and power + 1 < len(_BINARY):
        value //= 1024
        power += 1
    return f"{value}{_BINARY[power]}"


def _decimal(value: Decimal) -> str:
    if not value:
        return "0"
    for suffix, power in _DECIMAL.items():
        scaled = value.scaleb(-power)
        if scaled == scaled.to_integral_value():
            return f"{int(scaled)}{suffix}"
    raise AssertionError(f"{value} has a part below a billionth")
