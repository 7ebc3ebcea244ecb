"""The program: its start, its imports, its signals, its exit codes."""

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from emberline_contract.names import ENV_ORACLE_LOAD_S, ENV_ORACLE_STEP_S, ENV_POD_IP

FORBIDDEN = ("torch", "numpy", "transformers", "safetensors", "fastapi", "aiohttp", "kubernetes")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Program:
    """A running `python -m emberline_runtime`."""

    def __init__(self, folder: Path, *arguments: str, **environ: str) -> None:
        self.port = free_port()
        config = folder / "engine.json"
        config.write_text(
            json.dumps({"servedNames": ["m"], "modelPath": str(folder), "executor": "oracle", "drainTimeoutS": 20})
        )
        command = [sys.executable, "-m", "emberline_runtime", "--config", str(config), "--port", str(self.port)]
        self.process = subprocess.Popen(
            [*command, *arguments], stderr=subprocess.PIPE, env=os.environ | environ, text=True
        )

    def ask(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        with contextlib.closing(connection):
            connection.request(method, path, None if body is None else json.dumps(body))
            answer = connection.getresponse()
            return answer.status, answer.read()

    def phases_until_ready(self) -> list[str]:
        """What /ready said, each word once, until it said ready."""
        phases: list[str] = []
        deadline_s = time.monotonic() + 20
        while time.monotonic() < deadline_s:
            try:
                status, body = self.ask("GET", "/ready")
            except ConnectionRefusedError:
                assert self.process.poll() is None, "it ended before it listened"
                time.sleep(0.005)
                continue
            phase = json.loads(body)["phase"]
            if phase not in phases:
                phases.append(phase)
            if status == 200:
                return phases
            time.sleep(0.005)
        raise AssertionError(f"not ready in time: {phases}")

    def end(self) -> tuple[int, str]:
        """Exit code and log."""
        _, log = self.process.communicate(timeout=20)
        return self.process.returncode, log


@contextlib.contextmanager
def running(folder: Path, *arguments: str, **environ: str) -> Iterator[Program]:
    program = Program(folder, *arguments, **environ)
    try:
        yield program
    finally:
        if program.process.poll() is None:
            program.process.kill()
            program.process.communicate()


def test_start_drain_and_end(tmp_path: Path) -> None:
    environ = {ENV_ORACLE_LOAD_S: "0.3", ENV_ORACLE_STEP_S: "0.005"}
    with running(tmp_path, "--log-requests", **environ) as program:
        phases = program.phases_until_ready()
        assert phases[-1] == "ready"
        assert "weights" in phases, "it answers while it loads"

        connection = http.client.HTTPConnection("127.0.0.1", program.port, timeout=20)
        body = {"model": "m", "prompt": "x", "max_tokens": 150, "stream": True}
        connection.request("POST", "/v1/completions", json.dumps(body))
        stream = connection.getresponse()
        first = stream.readline()
        program.process.send_signal(signal.SIGTERM)
        deadline_s = time.monotonic() + 10
        while program.ask("GET", "/ready")[0] == 200:
            assert time.monotonic() < deadline_s
        assert program.ask("POST", "/v1/completions", body)[0] == 503
        rest = stream.read()
        connection.close()
        assert b'"finish_reason":"length"' in first + rest
        assert rest.endswith(b"data: [DONE]\n\n")
        code, log = program.end()
    assert code == 0
    lines = [json.loads(line) for line in log.splitlines()]
    assert [line["message"] for line in lines] == ["ready", "draining", "request", "request"]
    assert lines[0]["details"]["startup_s"]["weights"] >= 0.3


def test_a_second_interrupt_ends_streams_at_once_and_a_second_sigterm_does_not(tmp_path: Path) -> None:
    with running(tmp_path, **{ENV_ORACLE_STEP_S: "0.01"}) as program:
        program.phases_until_ready()
        connection = http.client.HTTPConnection("127.0.0.1", program.port, timeout=20)
        body = {"model": "m", "prompt": "x", "max_tokens": 8000, "stream": True}
        connection.request("POST", "/v1/completions", json.dumps(body))
        stream = connection.getresponse()
        stream.readline()
        for number in (signal.SIGTERM, signal.SIGTERM):
            program.process.send_signal(number)
        while program.ask("GET", "/ready")[0] == 200:
            time.sleep(0.005)
        assert stream.readline() + stream.readline() + stream.readline(), "it goes on"
        program.process.send_signal(signal.SIGINT)
        rest = stream.read()
        connection.close()
        assert b'data: {"error":' in rest
        assert program.end()[0] == 0


def test_a_signal_during_the_load_ends_it(tmp_path: Path) -> None:
    with running(tmp_path, **{ENV_ORACLE_LOAD_S: "30"}) as program:
        while True:
            try:
                assert program.ask("GET", "/ready")[0] == 503
                break
            except ConnectionRefusedError:
                time.sleep(0.005)
        assert program.ask("POST", "/v1/completions", {"model": "m", "prompt": "x"})[0] == 503
        started_s = time.monotonic()
        program.process.send_signal(signal.SIGTERM)
        assert program.end()[0] == 0
        assert time.monotonic() - started_s < 10


def test_nothing_heavy_is_imported(tmp_path: Path) -> None:
    """Serve a chat request through the oracle in a fresh interpreter and look at what was imported for it."""
    script = f"""
import asyncio, json, sys, time
from pathlib import Path
from emberline_runtime.cli import listen
from emberline_runtime.executors.registry import select
from emberline_runtime.resolve import resolve
from emberline_runtime.server.process import EngineProcess
options = resolve(["--served-names", "m", "--executor", "oracle", "--model-path", {str(tmp_path)!r}], Path.read_text)
async def main():
    selection = select(options.config, Path(options.config.model_path), {{}})
    process = EngineProcess(options.config, selection, log_requests=False, started_s=time.monotonic())
    listener = listen("127.0.0.1", "0")
    serving = asyncio.create_task(process.serve(listener))
    while not process.engine.is_ready:
        await asyncio.sleep(0.01)
    reader, writer = await asyncio.open_connection(*listener.getsockname())
    body = json.dumps({{"model": "m", "messages": [{{"role": "user", "content": "x"}}], "max_tokens": 2}}).encode()
    writer.write(b"POST /v1/chat/completions HTTP/1.1\\r\\nhost: x\\r\\ncontent-length: %d\\r\\n\\r\\n" % len(body) + body)
    assert b" 200 " in await reader.readline()
    writer.close()
    process.stop()
    assert await serving == 0
    listener.close()
asyncio.run(main())
print(json.dumps(sorted(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    modules = json.loads(done.stdout)
    assert "emberline_runtime.server.process" in modules
    assert [name for name in modules if name.split(".")[0] in FORBIDDEN] == []


def test_listening_comes_before_heavy_imports() -> None:
    script = "import sys, emberline_runtime.cli; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=True)
    loaded = set(done.stdout.split())
    assert not loaded & {
        "pydantic",
        "starlette",
        "uvicorn",
        "asyncio",
        "argparse",
        "json",
        "logging",
        "prometheus_client",
    }


@pytest.mark.parametrize(
    ("content", "arguments", "words"),
    [
        ('{"servedNames": ["m"], "surprise": 1}', [], ["engine.json", "surprise", "no such field"]),
        ('{"servedNames": ["m"], "maxModelLen": 3}', [], ["maxModelLen", "16"]),
        ('{"servedNames": ["m"]}', ["--max-sequences", "lots"], ["maxSequences", "integer"]),
        ('{"servedNames": ["m"]}', ["--surprise", "1"], ["--surprise"]),
        ('{"servedNames": ["m"]}', ["--executor", "abacus"], ["executor"]),
        ("{}", [], ["--served-names"]),
        ("{", [], ["engine.json", "no JSON"]),
        ("[]", [], ["list"]),
        (None, [], ["cannot be read"]),
    ],
)
def test_a_wrong_configuration_is_refused_in_one_line(
    tmp_path: Path, content: str | None, arguments: list[str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    from emberline_runtime.cli import main

    path = tmp_path / "engine.json"
    if content is not None:
        path.write_text(content)
    try:
        code = main(["--config", str(path), "--port", "0", "--model-path", str(tmp_path), *arguments])
    except SystemExit as end:  # argparse ends the process itself
        code = int(str(end.code))
    assert code == 2
    last = capsys.readouterr().err.strip().splitlines()[-1]
    for word in words:
        assert word in last


def test_a_taken_address_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from emberline_runtime.cli import main

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert main(["--served-names", "m", "--port", port]) == 1
    assert f"127.0.0.1 port {port}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "environ", "address"),
    [
        ([], {}, ("127.0.0.1", "8000")),
        ([], {ENV_POD_IP: "127.9.9.9"}, ("127.9.9.9", "8000")),
        (["--host", "::1", "--port=9"], {ENV_POD_IP: "127.9.9.9"}, ("::1", "9")),
        (["--port", "1", "--port", "2"], {}, ("127.0.0.1", "2")),
    ],
)
def test_where_it_listens(arguments: list[str], environ: dict[str, str], address: tuple[str, str]) -> None:
    from emberline_runtime.cli import listen_address

    assert listen_address(arguments, environ) == address


def test_flags_override_the_file(tmp_path: Path) -> None:
    from emberline_contract.engine_config import EngineConfig
    from emberline_runtime.resolve import resolve

    path = tmp_path / "engine.json"
    path.write_text(json.dumps({"servedNames": ["a"], "maxSequences": 3, "maxBatchTokens": 64}))
    options = resolve(
        f"--config {path} --max-sequences 5 --no-prefix-caching --served-names b c --kv-cache 1Gi"
        " --drain-timeout-s 1.5 --max-model-len 128".split(),
        lambda file: file.read_text(),
    )
    assert options.config == EngineConfig(
        served_names=("b", "c"),
        max_sequences=5,
        max_batch_tokens=64,
        prefix_caching=False,
        kv_cache="1Gi",
        drain_timeout_s=1.5,
        max_model_len=128,
    )


def test_every_field_has_a_flag_with_its_description() -> None:
    from emberline_contract.engine_config import EngineConfig
    from emberline_runtime.resolve import make_parser

    text = " ".join(make_parser().format_help().split())
    for name, field in EngineConfig.model_fields.items():
        assert "--" + name.replace("_", "-") in text
        assert field.description
        assert " ".join(field.description.split())[:30] in text
