"""Health verdicts as a table, the metrics' names as vLLM has them, the engine's heartbeat."""

import asyncio
from pathlib import Path

import pytest

from emberline_contract import metrics as names
from emberline_contract.engine_config import EngineConfig
from emberline_contract.health import Phase
from emberline_runtime.engine import lifecycle
from emberline_runtime.server.health import decide_health, decide_live, decide_ready
from emberline_runtime.server.metrics import Metrics
from emberline_runtime.server.routes import package_version
from support.engine_server import GatedOracle, completion, serving


@pytest.mark.parametrize(
    ("phase", "stalled_s", "live", "ready", "health"),
    [
        (Phase.IMPORTS, None, 200, 503, 503),
        (Phase.WEIGHTS, None, 200, 503, 503),
        (Phase.READY, None, 200, 200, 200),
        (Phase.READY, 31.0, 503, 200, 503),
        (Phase.DRAINING, None, 200, 503, 200),
        (Phase.FAILED, None, 503, 503, 503),
    ],
)
def test_verdicts(phase: Phase, stalled_s: float | None, live: int, ready: int, health: int) -> None:
    assert decide_live(phase, stalled_s).status == live
    assert decide_ready(phase).status == ready
    assert decide_health(phase, stalled_s).status == health


async def test_work_without_steps_is_not_alive_and_no_work_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "STALL_S", 0.05)
    gate = GatedOracle()
    async with serving(tmp_path, gate) as server:
        assert (await server.get("/live"))[0] == 200
        body = completion(max_tokens=3)
        stuck = asyncio.create_task(server.post("/v1/completions", body))
        await server.until(lambda: server.process.engine.stalled_s() is not None)
        status, answer = await server.get("/live")
        assert (status, answer["phase"]) == (503, "ready")
        assert "no step" in answer["reason"]
        gate.open()
        assert (await stuck)[0] == 200
        assert (await server.get("/live"))[0] == 200


async def test_names_and_labels(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        await server.post("/v1/completions", completion("abc", max_tokens=4))
        await server.post("/v1/completions", completion("abc", max_tokens=4))
        async with server.http.get(server.url + "/metrics") as answer:
            text = await answer.text()
        assert await server.get("/version") == (200, {"version": package_version()})
    labels = '{engine="0",model_name="tests/model"}'
    for line in (
        f"{names.PROMPT_TOKENS}_total{labels} 8.0",
        f"{names.GENERATION_TOKENS}_total{labels} 8.0",
        f"{names.NUM_REQUESTS_RUNNING}{labels} 0.0",
        f"{names.PREFIX_CACHE_QUERIES}_total{labels} 8.0",
        f"{names.TIME_TO_FIRST_TOKEN}_count{labels} 2.0",
        f"{names.E2E_REQUEST_LATENCY}_count{labels} 2.0",
        f"{names.REQUEST_QUEUE_TIME}_count{labels} 2.0",
        f"{names.INTER_TOKEN_LATENCY}_count{labels} 6.0",
        f'{names.REQUEST_SUCCESS}_total{{engine="0",finished_reason="length",model_name="tests/model"}} 2.0',
    ):
        assert line in text.splitlines()
    assert f'{names.ITERATION_TOKENS}_bucket{{engine="0",le="8.0",model_name="tests/model"}}' in text
    for phase in ("imports", "weights", "kv", "warmup"):
        assert f'{names.STARTUP_SECONDS}{{phase="{phase}"}}' in text
    assert f'{names.ENGINE_INFO}{{device="cpu",dtype="bf16",executor="oracle",kv_cache_dtype="bf16"' in text


@pytest.mark.parametrize(
    ("precision", "labels"),
    [
        ({}, 'dtype="bf16",executor="oracle",kv_cache_dtype="bf16"|quantization="none"'),
        (
            {"device": "cuda", "dtype": "fp16", "quantization": "int8", "kv_cache_dtype": "auto"},
            'dtype="fp16",executor="oracle",kv_cache_dtype="fp16"|quantization="int8"',
        ),
        (
            {"device": "cuda", "quantization": "fp8", "kv_cache_dtype": "fp8"},
            'dtype="bf16",executor="oracle",kv_cache_dtype="fp8"|quantization="fp8"',
        ),
        (
            {"device": "cuda", "quantization": "int4", "kv_cache_dtype": "bf16"},
            'dtype="bf16",executor="oracle",kv_cache_dtype="bf16"|quantization="int4"',
        ),
    ],
)
async def test_a_pretended_gpu_serves_every_precision_and_says_so(
    tmp_path: Path, precision: dict[str, str], labels: str
) -> None:
    async with serving(tmp_path, **precision) as server:
        assert (await server.post("/v1/completions", completion("abc", max_tokens=2)))[0] == 200
        async with server.http.get(server.url + "/metrics") as answer:
            lines = (await answer.text()).splitlines()
    (info,) = [line for line in lines if line.startswith(names.ENGINE_INFO)]
    assert all(part in info for part in labels.split("|")), info


@pytest.mark.parametrize(("stored_weights", "shown"), [("fp8", "fp8"), (None, "none")])
def test_a_checkpoint_that_is_quantised_already_is_shown_as_such(stored_weights: str | None, shown: str) -> None:
    metrics = Metrics("m")
    metrics.set_info("torch", EngineConfig(served_names=("m",)), stored_weights, "1.2.3")
    assert f'kv_cache_dtype="bf16",model_name="m",quantization="{shown}"' in metrics.text().decode()
