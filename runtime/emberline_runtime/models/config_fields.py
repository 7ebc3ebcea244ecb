"""Typed reading of an HF config.json: a wrong or missing field is refused by its name."""

from __future__ import annotations

import math
from collections.abc import Mapping

from emberline_runtime.models.errors import ModelConfigError


class ConfigFields:
    """A JSON object with getters that name the field when they refuse it; null counts as absent."""

    def __init__(self, fields: Mapping[str, object], where: str = "config.json") -> None:
        self._fields = fields
        self._where = where

    def has(self, name: str) -> bool:
        """Whether the field is there and not null."""
        return self._fields.get(name) is not None

    def names(self) -> tuple[str, ...]:
        """Those of all fields."""
        return tuple(self._fields)

    def count(self, name: str, default: int | None = None) -> int:
        """An integer of at least 1."""
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self._wrong(name, value, "an integer of at least 1")
        return value

    def positive(self, name: str, default: float | None = None) -> float:
        """A finite number above 0."""
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise self._wrong(name, value, "a finite number above 0")
        return float(value)

    def flag(self, name: str, default: bool | None = None) -> bool:
        """A boolean."""
        value = self._get(name, default)
        if not isinstance(value, bool):
            raise self._wrong(name, value, "true or false")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        """A string."""
        value = self._get(name, default)
        if not isinstance(value, str):
            raise self._wrong(name, value, "a string")
        return value

    def nested(self, name: str) -> ConfigFields:
        """A nested object; empty if absent."""
        value = self._fields.get(name)
        if value is None:
            value = {}
        if not isinstance(value, Mapping):
            raise self._wrong(name, value, "an object")
        return ConfigFields(value, f"{self._where}: {name}")

    def _get(self, name: str, default: object) -> object:
        value = self._fields.get(name)
        if value is None:
            value = default
        if value is None:
            raise ModelConfigError(f"{self._where}: field {name!r} is missing; the folder's config.json is incomplete")
        return value

    def _wrong(self, name: str, value: object, wanted: str) -> ModelConfigError:
        return ModelConfigError(f"{self._where}: field {name!r} is {value!r:.80}; it must be {wanted}")
