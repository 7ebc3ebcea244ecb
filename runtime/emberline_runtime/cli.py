"""The engine's command line. Listens before it imports anything else: a probe or a client that comes early waits instead of
being refused. So this module's own imports are the standard library's lightest.
"""

from __future__ import annotations

import faulthandler
import os
import resource
import socket
import sys
import time
from collections.abc import Mapping, Sequence

from emberline_contract.names import ENGINE_PORT, ENV_POD_IP

EXIT_FAILED = 1
EXIT_REFUSED = 2
BACKLOG = 1024
SEND_BUFFER_BYTES = 128 * 1024
"""A client that does not read costs this much of the kernel's memory instead of megabytes."""
DEAD_PEER_MS = 60_000
"""Unacknowledged bytes for this long mean that the peer is gone."""


def prepare_process() -> None:
    """What holds for the whole process and must come first; the program does it, tests that call `main` do not."""
    faulthandler.enable()
    # Each stream takes a descriptor.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    # A small interval between switches of Python threads: at the default, a step of 1.7 ms without the GIL took 6.9 ms beside
    # a busy loop, so it takes 2.3 ms.
    sys.setswitchinterval(0.0005)
    # Looking for pydantic's plugins reads the metadata of every installed package; this process has none.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    # One more series for each counter and histogram, which vLLM's dashboards do not know.
    os.environ.setdefault("PROMETHEUS_DISABLE_CREATED_SERIES", "true")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run an engine; returns the process's exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    started_s = process_start_s()
    if {"-h", "--help"}.intersection(arguments):
        return _serve(arguments, None, started_s)
    try:
        listener = listen(*listen_address(arguments, os.environ))
    except OSError as error:
        print(f"emberline_runtime: {error}", file=sys.stderr)
        return EXIT_FAILED
    with listener:
        return _serve(arguments, listener, started_s)


def listen_address(arguments: Sequence[str], environ: Mapping[str, str]) -> tuple[str, str]:
    """Host and port by `--host` and `--port`, before the real parser is imported; the last one wins, as it does there."""
    host, port = environ.get(ENV_POD_IP) or "127.0.0.1", str(ENGINE_PORT)
    for index, argument in enumerate(arguments):
        name, _, value = argument.partition("=")
        if name in ("--host", "--port"):
            value = value or (arguments[index + 1] if index + 1 < len(arguments) else "")
            host, port = (value, port) if name == "--host" else (host, value)
    return host, port


def listen(host: str, port: str) -> socket.socket:
    """A listening socket. OSError says what address it was and what to do."""
    if not port.isdecimal() or int(port) > 65535:
        raise OSError(f"--port {port} is no port; give a number from 0 to 65535")
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Connections inherit both.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, DEAD_PEER_MS)
        listener.bind((host, int(port)))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise OSError(
            f"cannot listen on {host} port {port}: {error.strerror}; choose others with --host and --port"
        ) from error
    return listener


def process_start_s() -> float:
    """When this process was started, on the clock of `time.monotonic`: the start is timed from there."""
    try:
        with open("/proc/self/stat", encoding="ascii") as file:  # noqa: PTH123 - pathlib is not imported yet
            ticks = int(file.read().rsplit(")", 1)[1].split()[19])
    except (OSError, ValueError, IndexError):
        return time.monotonic()
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.monotonic() - age_s


def _serve(arguments: Sequence[str], listener: socket.socket | None, started_s: float) -> int:
    from pathlib import Path

    from emberline_runtime.errors import StartRefused
    from emberline_runtime.executors.registry import NoExecutorError, select
    from emberline_runtime.resolve import resolve

    try:
        options = resolve(arguments, lambda path: path.read_text(encoding="utf-8"))
        selection = select(options.config, Path(options.config.model_path), os.environ)
    except (StartRefused, NoExecutorError) as error:
        print(f"emberline_runtime: {error}", file=sys.stderr)
        return EXIT_REFUSED
    assert listener is not None, "--help has ended the process"
    from emberline_runtime.server.process import run_process
    from emberline_runtime.server.request_log import set_up_logging

    set_up_logging(sys.stderr)
    return run_process(options.config, selection, listener, log_requests=options.log_requests, started_s=started_s)
