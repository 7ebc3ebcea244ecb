"""Errors that `emberline-local` shows to its user as one message, without a traceback.

LocalError
├── ProgramMissingError   no control plane program, and no way to build one
├── ProgramBuildError     the Go build ended with an error
├── PlaneError            a program of the control plane ended or did not become ready
├── OptionError           a word on the command line cannot be used
├── ClusterError          the cluster's own objects could not be applied or did not become ready
├── ClusterStateError     the named cluster is not in the state that the command needs
└── ModelError            the model to try things with cannot be made
    ├── ModelMissingError     its package is not installed
    ├── ModelSourceError      its file is damaged, or holds what the conversion does not know
    └── ModelCacheError       its folder cannot be written
"""

from __future__ import annotations


class LocalError(Exception):
    """Base of this package's errors: what went wrong and what to do about it."""


class ProgramMissingError(LocalError):
    """There is no control plane program and no Go to build it with."""


class ProgramBuildError(LocalError):
    """Building the control plane program failed."""


class PlaneError(LocalError):
    """A program of the control plane ended, or did not become ready in time."""


class OptionError(LocalError):
    """A word on the command line cannot be used."""


class ClusterError(LocalError):
    """The cluster's objects could not be applied, or its own pods did not become ready."""


class ClusterStateError(LocalError):
    """The named cluster is not in the state that the command needs."""


class ModelError(LocalError):
    """The model to try things with cannot be made."""


class ModelMissingError(ModelError):
    """The package that carries the model is not installed."""


class ModelSourceError(ModelError):
    """The model's file is damaged, or holds what the conversion does not know."""


class ModelCacheError(ModelError):
    """The model's folder cannot be written."""
