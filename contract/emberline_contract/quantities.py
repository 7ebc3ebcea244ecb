"""Durations as the API server reads them (`format: duration`, Go's notation) and Kubernetes quantities of bytes."""

from __future__ import annotations

import re

_UNIT_S = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ns|us|µs|ms|s|m|h)", re.ASCII)
_SUFFIX_BYTES = {
    "": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12,
    "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40,
}  # fmt: skip
_QUANTITY = re.compile(r"(\d+(?:\.\d+)?)(|k|M|G|T|Ki|Mi|Gi|Ti)", re.ASCII)


def duration_s(text: str) -> float:
    """Seconds of a Go duration such as `1h30m` or `500ms`. Raises ValueError with the text and an example."""
    matches = list(_PART.finditer(text))
    if not matches or "".join(m.group(0) for m in matches) != text:
        raise ValueError(f"{text!r} is no duration; write it like 30s, 5m or 1h30m")
    return sum(float(m.group(1)) * _UNIT_S[m.group(2)] for m in matches)


def quantity_bytes(text: str) -> int:
    """Bytes of a Kubernetes quantity such as `512Mi` or `2G`. Raises ValueError with the text and an example."""
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no quantity of bytes; write it like 512Mi or 2Gi")
    return int(float(match.group(1)) * _SUFFIX_BYTES[match.group(2)])
