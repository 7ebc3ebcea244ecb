"""Command line, signals, and the process's own settings."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
from collections.abc import Sequence

import uvloop

from emberline_contract import names
from emberline_gateway import logs, server
from emberline_gateway.activation import ClusterError
from emberline_gateway.cluster import connected
from emberline_gateway.gateway import gateway, settle_memory


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Flags; the defaults are what a pod needs."""
    parser = argparse.ArgumentParser(prog="python -m emberline_gateway", description="Emberline's HTTP front.")
    parser.add_argument("--host", default=os.environ.get(names.ENV_POD_IP, "127.0.0.1"), help="address to bind")
    parser.add_argument("--port", type=int, default=names.GATEWAY_PORT, help="public port")
    parser.add_argument("--admin-port", type=int, default=names.GATEWAY_ADMIN_PORT, help="the operator's port")
    own = os.environ.get(names.ENV_REGION, "")
    parser.add_argument("--region", default=own, help="InferenceRegion that it runs in, which it prefers")
    parser.add_argument("--unready-s", type=float, default=3.0, help="time between SIGTERM and the last new connection")
    parser.add_argument("--grace-s", type=float, default=600.0, help="time for running streams after that")
    parser.add_argument("--log-level", default="INFO", choices=("DEBUG", "INFO", "WARNING", "ERROR"))
    return parser.parse_args(argv)


async def run(options: argparse.Namespace) -> None:
    """Serves until SIGTERM or SIGINT has been obeyed."""
    public = server.listen(options.host, options.port)
    admin = server.listen(options.host, options.admin_port, num_listeners=1)
    async with connected() as cluster, gateway(cluster, options.grace_s, options.region) as made:
        loop = asyncio.get_running_loop()
        stops: list[asyncio.Task[None]] = []

        def on_signal() -> None:
            if not stops:
                stops.append(loop.create_task(made.stop(options.unready_s, options.grace_s)))

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, on_signal)
        settle_memory()
        await made.serve(public, admin)
        await asyncio.gather(*stops)


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point of `python -m emberline_gateway`."""
    options = parse(argv)
    logs.set_up(options.log_level)
    server.raise_descriptor_limit()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run(options))
    except (server.ListenError, ClusterError) as error:
        raise SystemExit(str(error)) from error
