"""Stop strings: found in the accumulated text, however tokens and chunks cut it. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Passed:
    """What may be shown now, and the stop string that ended the text, if one did."""

    text: str
    stop: str | None = None


class StopMatcher:
    """Feeds on the text of one token at a time and holds back what could still become a stop string.

    Neither a stop string nor anything after it is ever passed on. What is held back begins at a token's first
    character, so that parsers further on see whole token texts.
    """

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = stops
        self._longest = max((len(stop) for stop in stops), default=0)
        self._held: list[str] = []

    def push(self, piece: str) -> Passed:
        """Take the text of the next token."""
        if not self._stops:
            return Passed(piece)
        if not piece:
            return Passed("")
        window = "".join(self._held) + piece
        found = self._first_match(window)
        if found is not None:
            self._held.clear()
            position, stop = found
            return Passed(window[:position], stop)
        self._held.append(piece)
        return Passed(self._release(len(window) - self._undecided(window)))

    def flush(self) -> str:
        """The text has ended: what was held back is no stop string after all."""
        rest = "".join(self._held)
        self._held.clear()
        return rest

    def _first_match(self, window: str) -> tuple[int, str] | None:
        """Earliest match; of those that begin together, the longest."""
        matches = [(window.find(stop), -len(stop), stop) for stop in self._stops]
        found = [match for match in matches if match[0] >= 0]
        if not found:
            return None
        position, _, stop = min(found)
        return position, stop

    def _undecided(self, window: str) -> int:
        """Length of the longest suffix of `window` that is a proper prefix of a stop string."""
        for length in range(min(len(window), self._longest - 1), 0, -1):
            suffix = window[-length:]
            if any(len(stop) > length and stop.startswith(suffix) for stop in self._stops):
                return length
        return 0

    def _release(self, num_decided: int) -> str:
        """Let go of the leading pieces that lie wholly within the first `num_decided` characters."""
        end = count = 0
        for piece in self._held:
            if end + len(piece) > num_decided:
                break
            end += len(piece)
            count += 1
        text = "".join(self._held[:count])
        del self._held[:count]
        return text
