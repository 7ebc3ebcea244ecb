"""Kubernetes quantities in the one notation that the API server keeps: `1000m` comes back as `1`, `1.5Gi` as `1536Mi`."""

from __future__ import annotations

import re
from decimal import ROUND_CEILING, Decimal, localcontext
from typing import Final

_QUANTITY: Final = re.compile(r"(\d+(?:\.\d+)?)(n|u|m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?", re.ASCII)
_DECIMAL: Final = {"E": 18, "P": 15, "T": 12, "G": 9, "M": 6, "k": 3, "": 0, "m": -3, "u": -6, "n": -9}
_BINARY: Final = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_NANO: Final = Decimal("1e-9")
_MILLI: Final = Decimal("1e-3")
_MOST_BINARY: Final = 2**63 - 1
"""What a larger number with a binary suffix becomes; one with a decimal suffix stays what it is."""
_DIGITS: Final = 100
"""More than a number of any field has, so that none is rounded on the way."""


def canonical_quantity(text: str, *, is_resource: bool = False) -> str:
    """The notation that the API server writes back; a text that is no quantity stays as it is, for the API server to refuse.

    `is_resource`: a container's request or limit, of which the API server keeps thousandths at most.
    """
    match = _QUANTITY.fullmatch(text)
    if match is None:
        return text
    finest = _MILLI if is_resource else _NANO
    suffix = match[2] or ""
    with localcontext(prec=_DIGITS):
        if suffix in _BINARY and suffix:
            value = Decimal(match[1]) * 1024 ** _BINARY.index(suffix)
            if value > _MOST_BINARY:
                return str(_MOST_BINARY)
            if value >= 1024 and value == value.to_integral_value():
                return _binary(int(value))
        else:
            value = Decimal(match[1]).scaleb(_DECIMAL[suffix])
        return _decimal(value.quantize(finest, rounding=ROUND_CEILING))


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
