"""Remembers what earlier passes over an endpoint worked out of big objects, which come again with each pass unchanged.

It only saves time. An object of the caches is never changed in place, only replaced: that it is the same object says that its
content is the same, and for another one the content is compared.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

T = TypeVar("T")


class Memory:
    """The last answer to each question, with what it was worked out from."""

    def __init__(self) -> None:
        self._answers: dict[Hashable, tuple[tuple[Any, ...], Any]] = {}

    def recall(self, question: Hashable, inputs: tuple[Any, ...], answer: Callable[[], T]) -> T:
        """The answer to a question; it is worked out anew only if the inputs differ from the last ones."""
        known = self._answers.get(question)
        # Tuples compare their items by identity first.
        if known is not None and known[0] == inputs:
            found: T = known[1]
            return found
        made = answer()
        self._answers[question] = (inputs, made)
        return made
