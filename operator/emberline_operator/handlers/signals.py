"""SIGTERM and SIGINT as events of ours: kopf would stop at once, before the passes in flight have ended."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from typing import Any

import kopf


def register(registry: kopf.OperatorRegistry, on_signal: Callable[[], None]) -> None:
    """Take both signals over when kopf has installed its own handlers, which it does before its start-up handlers run."""

    @kopf.on.startup(registry=registry, id="signals")
    async def take_over(**_: Any) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, on_signal)
