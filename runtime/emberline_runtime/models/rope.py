"""The rotation frequencies of a RopeSpec, as plain numbers, so that every executor turns by the same angles."""

from __future__ import annotations

import math

from emberline_runtime.models.spec import RopeSpec


def inverse_frequencies(rope: RopeSpec, head_dim: int) -> tuple[float, ...]:
    """Angle per position, in radians, of each of the rotated pairs: element i turns dimensions i and i + rotary_dim / 2.

    Kinds other than default and llama3 are the caller's to refuse.
    """
    rotary_dim = rope.rotary_dim or head_dim
    plain = tuple(rope.theta ** (-i / rotary_dim) for i in range(0, rotary_dim, 2))
    match rope.kind:
        case "default":
            return plain
        case "llama3":
            return tuple(_llama3(frequency, rope) for frequency in plain)
        case "linear" | "yarn":
            raise ValueError(f"rope kind {rope.kind!r} has no frequencies here; default and llama3 have")


def _llama3(frequency: float, rope: RopeSpec) -> float:
    """Keep the fast turns, slow the long ones by `factor`, and go smoothly from one to the other between."""
    turns = rope.original_max_positions * frequency / (2 * math.pi)
    if turns <= rope.low_freq_factor:
        return frequency / rope.factor
    if turns >= rope.high_freq_factor:
        return frequency
    kept = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    return kept * frequency + (1 - kept) * frequency / rope.factor
