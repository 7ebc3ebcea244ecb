"""Why a model folder cannot be served. Every message says what, where, and what to do."""

from __future__ import annotations


class ModelFolderError(Exception):
    """The model folder cannot be served as it is."""


class UnknownArchitectureError(ModelFolderError):
    """No family of ours reads this architecture."""


class ModelConfigError(ModelFolderError):
    """config.json lacks a field or has one that cannot be honoured."""


class WeightsError(ModelFolderError):
    """The weight files are damaged, or are not the weights that config.json describes."""
