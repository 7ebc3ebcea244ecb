"""Whether a watch still tells what happens, proven by lists. Pure: times are arguments, in monotonic seconds.

A watch that says nothing may be quiet or dead; its silence proves neither. A list does: what it shows that was not known
must come from the watch as well. If that is so, the watch has told everything up to the list. If it is not so after a
while, and a second list shows the object to be there still, the watch has lost it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

Key = tuple[str, str]


class Watch:
    """The watch of one kind, in all namespaces that are watched."""

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        """So long a watch may take to tell what a list has shown."""
        self._untold: dict[Key, tuple[int, float]] = {}
        """Version and time at which a list showed an object that the watch had not told of."""
        self._ending: set[Key] = set()
        """What the last list showed to be gone, and the watch has not told yet."""
        self._overdue: set[Key] = set()
        self._listed_s: float | None = None
        self._proven_s: float | None = None
        self._event_s: float | None = None

    @property
    def is_stale(self) -> bool:
        """Whether the watch is proven to have lost something."""
        return bool(self._overdue)

    @property
    def num_lost(self) -> int:
        """Objects that the watch is proven to have lost."""
        return len(self._overdue)

    @property
    def num_untold(self) -> int:
        """Objects that lists have shown and the watch has not told of yet."""
        return len(self._untold)

    def age_s(self, now_s: float) -> float | None:
        """For how long it has not been proven that the watch tells everything; None: never yet."""
        return None if self._proven_s is None else now_s - self._proven_s

    def event_age_s(self, now_s: float) -> float | None:
        """Time since the watch last said something; None: never yet."""
        return None if self._event_s is None else now_s - self._event_s

    def needs_second_look(self, now_s: float) -> bool:
        """Whether something has been untold for too long, so that a list must show whether it is still there."""
        return any(now_s - since_s >= self._grace_s for _, since_s in self._untold.values())

    def told(self, key: Key, version: int, now_s: float) -> None:
        """The watch has told of an object, or of its end."""
        self._event_s = now_s
        was_doubtful = bool(self._untold or self._ending)
        untold = self._untold.get(key)
        if untold is not None and untold[0] <= version:
            del self._untold[key]
            self._overdue.discard(key)
        self._ending.discard(key)
        if was_doubtful and not self._untold and not self._ending:
            self._proven_s = self._listed_s

    def listed(self, present: Collection[Key], news: Mapping[Key, int], lost: Collection[Key], now_s: float) -> None:
        """A list has succeeded: the keys that it showed, the versions that were news, and what was known and is gone.

        That nothing is told of an object that is gone is no proof against the watch: it may have begun anew meanwhile, and
        then it tells only what is there. It is only no proof for it.
        """
        self._listed_s = now_s
        self._ending = set(lost)
        self._untold = {key: untold for key, untold in self._untold.items() if key in present}
        for key, version in news.items():
            _, since_s = self._untold.get(key, (0, now_s))
            self._untold[key] = (version, since_s)
        self._overdue = {key for key, (_, since_s) in self._untold.items() if now_s - since_s >= self._grace_s}
        if not self._untold and not self._ending:
            self._proven_s = now_s
