"""Loopback addresses for pods: one `127.<cluster>.0.0/16` a cluster, so that clusters on one machine never meet.

The whole of 127.0.0.0/8 is loopback on Linux, so no address has to be made or removed.
"""

from __future__ import annotations

import errno
import socket
from typing import Self

_FIRST_CLUSTER, _LAST_CLUSTER = 16, 254
_LOCK_PORT = 47127
_LAST_INDEX = 250 * 256


class AddressesExhaustedError(RuntimeError):
    """No cluster number or no pod address is left."""


class AddressPool:
    """The pod addresses of one cluster. Not thread-safe; one pool a cluster, shared by its nodes.

    A cluster number is held by a bound UDP socket: the kernel refuses it to any other process of any user and frees
    it when this process ends in whatever way. Freed addresses are handed out again last, since peers may still hold
    connections to the pod that had them.
    """

    def __init__(self, lock: socket.socket, cluster: int) -> None:
        self._lock = lock
        self._cluster = cluster
        self._used: set[int] = set()
        self._next = 0

    @classmethod
    def claim(cls) -> Self:
        """Take the lowest cluster number that no running cluster of this machine holds."""
        for cluster in range(_FIRST_CLUSTER, _LAST_CLUSTER + 1):
            lock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            try:
                lock.bind((f"127.{cluster}.255.254", _LOCK_PORT))
            except OSError as error:
                lock.close()
                if error.errno != errno.EADDRINUSE:
                    raise
                continue
            return cls(lock, cluster)
        raise AddressesExhaustedError(
            f"all {_LAST_CLUSTER - _FIRST_CLUSTER + 1} cluster numbers of this machine are taken;"
            " stop a cluster with `emberline-local down`"
        )

    @property
    def cluster(self) -> int:
        """The second number of every address."""
        return self._cluster

    def take(self) -> str:
        """An address that no pod of this cluster has now."""
        for _ in range(_LAST_INDEX):
            index = self._next
            self._next = (self._next + 1) % _LAST_INDEX
            if index not in self._used:
                self._used.add(index)
                return self._address(index)
        raise AddressesExhaustedError(f"all {_LAST_INDEX} pod addresses of cluster {self._cluster} are taken")

    def give_back(self, address: str) -> None:
        """Free an address; one that is not taken is ignored."""
        _, cluster, high, low = (int(part) for part in address.split("."))
        if cluster == self._cluster:
            self._used.discard((high - 1) * 256 + low)

    def close(self) -> None:
        """Free the cluster number."""
        self._lock.close()

    def _address(self, index: int) -> str:
        # x starts at 1: 127.<cluster>.0.* is left to what is no pod.
        return f"127.{self._cluster}.{1 + index // 256}.{index % 256}"
