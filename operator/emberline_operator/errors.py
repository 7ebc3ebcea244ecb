"""What can go wrong between the operator and the cluster. Foreign exceptions become these in `cluster` and `demand`.

OperatorError
├── ClusterError            the API server's answer, with its status and message
│   ├── NotFoundError       404
│   ├── ConflictError       409: the object is not what the write assumed; look again and decide again
│   ├── RefusedError        400, 403, 422: refused again until somebody changes something
│   └── UnavailableError    no answer, 429, 5xx: try again later
├── LostLeadershipError     another replica may lead; this one writes nothing more and ends
└── SettingsError           an environment variable has a value that cannot be used
"""

from __future__ import annotations

from http import HTTPStatus


class OperatorError(Exception):
    """Base of this package's errors."""


class SettingsError(OperatorError):
    """An environment variable has a value that cannot be used."""


class LostLeadershipError(OperatorError):
    """Another replica may lead by now: nothing more may be written. It ends the process and is never handled."""


class ClusterError(OperatorError):
    """The API server did not do what it was asked."""

    def __init__(self, request: str, status: int | None, message: str) -> None:
        super().__init__(f"{request}: {message}")
        self.request = request
        self.status = status
        self.message = message


class NotFoundError(ClusterError):
    """The object is not there."""


class ConflictError(ClusterError):
    """The object is not what the write assumed."""


class RefusedError(ClusterError):
    """The API server refuses this write."""

    @property
    def is_invalid(self) -> bool:
        """Whether the object itself is wrong; a quota, a right or a policy may come to allow the same one."""
        return self.status == HTTPStatus.UNPROCESSABLE_ENTITY


class UnavailableError(ClusterError):
    """The API server did not answer, or not now."""
