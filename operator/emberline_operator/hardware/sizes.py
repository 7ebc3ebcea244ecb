"""Amounts of memory and of parameters: as resources write them, and as people read them."""

from __future__ import annotations

import re
from typing import Final

_UNITS: Final = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15,
                 "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50}  # fmt: skip
_QUANTITY: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?")


def memory_quantity_bytes(text: str) -> int:
    """Bytes of a Kubernetes quantity; the CRD has checked its form, except that thousandths are no memory."""
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no quantity of memory; write it like 40Gi or 80G")
    number, unit = float(match[1]), match[2] or ""
    return int(number / 1000) if unit == "m" else int(number * _UNITS[unit])


def gib_text(num_bytes: float) -> str:
    """Such as `8.5 GiB`, the unit of the labels and of quantities."""
    return f"{num_bytes / 2**30:.1f} GiB"


def parameters_text(parameters: int) -> str:
    """Such as `8.0 B` or `135 M`."""
    return f"{parameters / 1e9:.1f} B" if parameters >= 1e9 else f"{parameters / 1e6:.0f} M"
