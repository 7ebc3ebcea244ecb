"""How many examples property tests draw: a fixed few in `make test`, many new ones in `make soak`."""

from __future__ import annotations

import os
from typing import Any

SOAK = int(os.environ.get("EMBERLINE_SOAK", "1"))
"""How many times as many."""


def examples(number: int) -> dict[str, Any]:
    """Settings of a property test; without soak the same examples every time, so that a red run means a change."""
    return {"max_examples": number * SOAK, "derandomize": SOAK == 1, "deadline": None, "database": None}
