"""Health endpoints: is it alive, does it take requests. The answers are pure functions of the engine's state."""

from __future__ import annotations

from dataclasses import dataclass

from emberline_contract.health import Phase

_GONE = (Phase.FAILED,)
_LOADED = (Phase.READY, Phase.DRAINING)


@dataclass(frozen=True, slots=True)
class Verdict:
    """A status and the body that says why."""

    status: int
    body: dict[str, object]


def decide_live(phase: Phase, stalled_s: float | None) -> Verdict:
    """Not alive: the executor is lost, or there is work and no step has come for too long. Loading is alive."""
    if phase in _GONE:
        return Verdict(503, {"phase": phase.value, "reason": "the executor is lost"})
    if stalled_s is not None:
        return Verdict(503, {"phase": phase.value, "reason": f"there is work and no step for {stalled_s:.0f} s"})
    return Verdict(200, {"phase": phase.value})


def decide_ready(phase: Phase) -> Verdict:
    """Ready: a request sent now is taken."""
    return Verdict(200 if phase is Phase.READY else 503, {"phase": phase.value})


def decide_health(phase: Phase, stalled_s: float | None) -> Verdict:
    """Healthy: loaded and alive; what other engines answer under this path."""
    live = decide_live(phase, stalled_s)
    return Verdict(live.status if phase in _LOADED else 503, live.body)
