"""What the gateway adds to a call, what it carries, and how fast it wakes: one gateway, beside the same engines asked directly.

Processes on loopback: a real API server, the gateway as `python -m emberline_gateway` with its own account's rights, engines that
think or stream at a pace (gateway_backend), clients (gateway_load), and this one. Keys, both kinds of routing, counters and the
log line of each request are on. Direct rounds and rounds through the gateway alternate, and the median over the rounds counts.
What is added is the difference of what passes outside of the engine. The last line is JSON; the code is 1 on a miss.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gateway_cluster import (
    KEY,
    MODELS,
    NAMESPACE,
    NUM_PODS,
    BenchCluster,
    Gateway,
    Worker,
    asleep,
    machine_cpu_s,
    process_cpu_s,
    say,
    worker,
)
from kubernetes.aio import config
from kubernetes.aio.client import ApiClient, Configuration

from emberline_contract.names import qualified_name
from emberline_local import children, program
from emberline_local.node_api import NodeApi
from emberline_local.plane import Plane

THINK_MS = 100
PACE_MS = 20
LATENCY_LEVELS = ((1, 0.0), (32, 150.0), (256, 1_000.0))
"""Clients, and new requests a second, so few that most clients are idle: none waits for one. 0: one after the other."""
STREAM_LEVELS = (1, 100, 600, 800)
JUDGED_STREAMS = 600
"""30,000 chunks a second at a pace of 20 ms; 800 are 40,000, told and not judged."""
MAX_ADDED_MS = {"p50": 1.0, "p99": 5.0}
MAX_CHUNK_ADDED_MS = {"p50": 0.5, "p99": 10.0}
MIN_CHUNKS_PER_S = 29_000
"""Offered are 30,000; a few are on their way at either end of the count."""
MIN_RPS = 5_000
NUM_IDLE = 5_000
MAX_IDLE_RSS_MIB = 400
MAX_CANCEL_P99_MS = 50
MAX_WAKE_PATCH_P50_MS = 50
Result = dict[str, Any]


@dataclass
class Bench:
    """What the phases share."""

    options: argparse.Namespace
    cluster: BenchCluster
    engine: Worker
    engine_ports: list[int]
    load: Worker
    gateway: Gateway
    errors: list[str] = field(default_factory=list)

    async def ask(self, do: str, *, is_direct: bool = False, **fields: Any) -> Any:
        """A command to the clients; what went wrong with any request is kept."""
        answer = await self.load.ask(do, ports=self.engine_ports if is_direct else [self.gateway.port], **fields)
        way = "direct" if is_direct else "through"
        self.errors += [f"{do}, {way}: {error}" for error in answer.get("errors", ())]
        return answer

    async def let_go(self) -> Any:
        """Ends what `hold` and `wake` left open."""
        answer = await self.load.ask("let_go")
        self.errors += [f"held: {error}" for error in answer["errors"]]
        return answer

    async def both(self, do: str, rounds: int, **fields: Any) -> tuple[list[Any], list[Any]]:
        """Rounds of direct calls and of calls through the gateway in turn."""
        found: tuple[list[Any], list[Any]] = ([], [])
        for number in range(rounds):
            for is_direct in (number % 2 == 0, number % 2 == 1):
                found[0 if is_direct else 1].append(await self.ask(do, is_direct=is_direct, **fields))
        return found


def compared(direct: list[Any], through: list[Any], what: str) -> dict[str, float]:
    """Medians over the rounds, of each way and of the difference of the rounds that belong together."""
    found: dict[str, float] = {}
    for q in ("p50", "p99"):
        before, after = [r[what][q] for r in direct], [r[what][q] for r in through]
        found[f"direct_{q}_ms"] = statistics.median(before)
        found[f"through_{q}_ms"] = statistics.median(after)
        found[f"added_{q}_ms"] = statistics.median(b - a for a, b in zip(before, after, strict=True))
    return found


async def latencies(bench: Bench) -> Result:
    """Whole answers and first chunks, by clients."""
    result: Result = {}
    for clients, rate in LATENCY_LEVELS:
        if clients > bench.options.max_clients:
            continue
        seconds = bench.options.latency_s
        direct, through = await bench.both(
            "latency", bench.options.rounds, clients=clients, rate=rate, seconds=seconds, think_ms=THINK_MS
        )
        for what in ("whole", "first"):
            result[f"{what}_{clients}"] = compared(direct, through, what)
        say(f"{clients} clients, {rate or 'one after the other'}: {_told(result[f'whole_{clients}'])}; first chunk "
            f"{_told(result[f'first_{clients}'])}")  # fmt: skip
    return result


async def chunks(bench: Bench) -> Result:
    """Delays of chunks, by streams."""
    result: Result = {}
    for clients in STREAM_LEVELS:
        if clients > bench.options.max_streams:
            continue
        direct, through = await bench.both(
            "streams", bench.options.stream_rounds, clients=clients, pace_ms=PACE_MS, seconds=bench.options.stream_s
        )
        found = result[f"streams_{clients}"] = compared(direct, through, "delay")
        found["chunks_per_s"] = statistics.median(r["per_s"] for r in through)
        say(f"{clients} streams, {found['chunks_per_s']:.0f} chunks a second: {_told(found)}")
    return result


async def rates(bench: Bench) -> Result:
    """Requests a second when each client asks again at once."""
    result: Result = {}
    for clients in (32, 256):
        used_s = bench.gateway.cpu_s
        direct, through = await bench.both(
            "rps", bench.options.stream_rounds, clients=clients, seconds=bench.options.rps_s
        )
        used_s = bench.gateway.cpu_s - used_s
        found = {
            "direct": statistics.median(r["rps"] for r in direct),
            "through": statistics.median(r["rps"] for r in through),
        }
        # The half second before each count is the gateway's work as well.
        num_through = sum(r["rps"] for r in through) * (bench.options.rps_s + 0.5)
        found["gateway_cpu_us"] = used_s / num_through * 1e6
        result[f"rps_{clients}"] = found
        say(f"{clients} clients: {found['through']:.0f} requests a second ({found['direct']:.0f} directly)")
    return result


async def idle(bench: Bench) -> Result:
    """Streams that are open and say nothing."""
    before_mib = bench.gateway.rss_mib
    opened = await bench.ask("hold", clients=bench.options.idle_streams)
    rss_mib = 0.0
    for _ in range(6):
        await asyncio.sleep(0.5)
        rss_mib = max(rss_mib, bench.gateway.rss_mib)
    ended = await bench.let_go()
    num_open = min(opened["open"], ended["open"])
    say(f"{num_open} open streams (opened in {opened['seconds']:.1f} s): {rss_mib:.0f} MiB, {before_mib:.0f} before")
    return {"idle_streams": num_open, "rss_mib": rss_mib, "rss_before_mib": before_mib, "open_s": opened["seconds"]}


async def cancels(bench: Bench) -> Result:
    """From a client's end to the engine's notice of it, among a hundred paced streams."""
    await bench.engine.ask("cancelled")
    taken_ms: dict[bool, list[float]] = {True: [], False: []}
    for is_direct in (True, False, True, False):
        at_ns = (await bench.ask("cancel", is_direct=is_direct, clients=100))["at_ns"]
        seen_ns: dict[str, int] = {}
        for _ in range(20):
            await asyncio.sleep(0.1)
            seen_ns |= await bench.engine.ask("cancelled")
            if at_ns.keys() <= seen_ns.keys():
                break
        else:
            bench.errors.append(f"{len(at_ns.keys() - seen_ns.keys())} cancelled requests never ended at the engine")
        taken_ms[is_direct] += [(seen_ns[id_] - ns) / 1e6 for id_, ns in at_ns.items() if id_ in seen_ns]
    result: Result = {}
    for is_direct, values in taken_ms.items():
        ordered, way = sorted(values), "direct_cancel" if is_direct else "cancel"
        result |= {f"{way}_p50_ms": ordered[len(ordered) // 2], f"{way}_p99_ms": ordered[int(0.99 * len(ordered))]}
    say(f"cancel: p50 {result['cancel_p50_ms']:.2f} ms, p99 {result['cancel_p99_ms']:.2f} ms")
    return result


async def wakes(bench: Bench) -> Result:
    """From a request's first byte to the API server's answer to the scale-up."""
    taken_ms = []
    for number in range(bench.options.wakes):
        model = qualified_name(NAMESPACE, asleep(number))
        sent = await bench.ask("wake", model=model)
        accepted_unix_s = await bench.cluster.accepted_scale_up(asleep(number))
        taken_ms.append((accepted_unix_s - sent["sent_unix_s"]) * 1e3)
        await asyncio.sleep(0.2)
    await bench.let_go()
    taken_ms.sort()
    say(f"wake: p50 {statistics.median(taken_ms):.1f} ms, at most {taken_ms[-1]:.1f} ms")
    return {"wake_patch_p50_ms": statistics.median(taken_ms), "wake_patch_max_ms": taken_ms[-1]}


PHASES = {"latency": latencies, "chunks": chunks, "rps": rates, "cancel": cancels, "idle": idle, "wake": wakes}


def _told(found: Mapping[str, float]) -> str:
    return ", ".join(
        f"{q} {found[f'through_{q}_ms']:.2f} - {found[f'direct_{q}_ms']:.2f} ms, added {found[f'added_{q}_ms']:.2f}"
        for q in ("p50", "p99")
    )


def summary(result: Result) -> Result:
    """The figures that are judged, each the worst of its levels."""
    found: Result = {}
    whole = [result[key] for key in result if key.startswith(("whole_", "first_"))]
    for q in ("p50", "p99"):
        if whole:
            found[f"added_{q}_ms"] = max(level[f"added_{q}_ms"] for level in whole)
        if f"streams_{JUDGED_STREAMS}" in result:
            found[f"chunk_added_{q}_ms"] = result[f"streams_{JUDGED_STREAMS}"][f"added_{q}_ms"]
    if f"streams_{JUDGED_STREAMS}" in result:
        found["chunks_per_s"] = result[f"streams_{JUDGED_STREAMS}"]["chunks_per_s"]
    if rps := [result[key] for key in result if key.startswith("rps_")]:
        found["rps"] = min(level["through"] for level in rps)
        found["direct_rps"] = min(level["direct"] for level in rps)
        found["gateway_cpu_us_per_request"] = max(level["gateway_cpu_us"] for level in rps)
    return found


def misses(found: Result, options: argparse.Namespace) -> list[str]:
    """The limits that were not met, of what was measured."""
    at_most = {
        **{f"added_{q}_ms": limit for q, limit in MAX_ADDED_MS.items()},
        **{f"chunk_added_{q}_ms": limit for q, limit in MAX_CHUNK_ADDED_MS.items()},
        "rss_mib": MAX_IDLE_RSS_MIB,
        "cancel_p99_ms": MAX_CANCEL_P99_MS,
        "wake_patch_p50_ms": MAX_WAKE_PATCH_P50_MS,
    }
    at_least = {"chunks_per_s": MIN_CHUNKS_PER_S, "rps": MIN_RPS, "idle_streams": options.idle_streams}
    missed = [
        f"{name} is {found[name]:.3g}, the limit is {most:g}"
        for name, most in at_most.items()
        if found.get(name, 0) > most
    ]
    missed += [
        f"{name} is {found[name]:.0f}, at least {least} are wanted"
        for name, least in at_least.items()
        if name in found and found[name] < least
    ]
    return missed


async def measure(bench: Bench, phases: list[str]) -> Result:
    """All phases, and how much of the machine somebody else had meanwhile."""
    loop = asyncio.get_running_loop()
    pids = [bench.gateway.pid, bench.engine.process.pid, bench.load.process.pid, os.getpid()]
    began_s, (used_s, stolen_s), own_s = loop.time(), machine_cpu_s(), sum(map(process_cpu_s, pids))
    await bench.ask("rps", clients=32, seconds=1.0)  # warms up
    result: Result = {}
    for phase in phases:
        result |= await PHASES[phase](bench)
    passed_s, (used_end_s, stolen_end_s) = loop.time() - began_s, machine_cpu_s()
    others_s = used_end_s - used_s - (sum(map(process_cpu_s, pids)) - own_s)
    result["seconds"] = passed_s
    result["others_cores"] = others_s / passed_s
    result["stolen_cores"] = (stolen_end_s - stolen_s) / passed_s
    result["rss_end_mib"] = bench.gateway.rss_mib
    return result


async def run(options: argparse.Namespace) -> tuple[Result, list[str]] | None:
    """Starts everything, measures, stops everything."""
    found = program.find_program(os.environ)
    if found is None:
        say("the control plane program is needed; `emberline-local up` builds it, or set EMBERLINE_LOCALPLANE")
        return None
    folder = Path(tempfile.mkdtemp(prefix="emberline-bench-"))
    plane = Plane(found, folder, {**os.environ, children.MARK: str(folder)}, audit_log=True)
    models = json.dumps([qualified_name(NAMESPACE, name) for name in MODELS])
    try:
        async with plane, worker("gateway_backend.py", str(len(MODELS) * NUM_PODS)) as engine:
            ports = await engine.line()
            connection = Configuration()
            await config.load_kube_config(str(plane.kubeconfig), client_configuration=connection)
            async with ApiClient(connection) as client:
                cluster = BenchCluster(plane, found, NodeApi(client), folder)
                await cluster.prepare(ports, options.wakes)
            async with worker("gateway_load.py", models, KEY) as load, cluster.gateway(options.log_level) as gateway:
                say(f"the gateway serves (process {gateway.pid})")
                bench = Bench(options, cluster, engine, ports, load, gateway)
                return await measure(bench, options.phases), bench.errors
    finally:
        children.sweep(folder)
        if options.keep:
            say(f"kept: {folder}")
        else:
            shutil.rmtree(folder)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="of latencies; each is a direct one and one through")
    parser.add_argument("--latency-s", type=float, default=2.5, help="length of a round of latencies")
    parser.add_argument("--stream-rounds", type=int, default=3, help="of streams and of requests a second")
    parser.add_argument("--stream-s", type=float, default=4.0, help="length of a round of streams")
    parser.add_argument("--rps-s", type=float, default=2.0, help="length of a round of requests a second")
    parser.add_argument("--max-clients", type=int, default=256, help="levels with more are left out")
    parser.add_argument("--max-streams", type=int, default=800, help="levels with more are left out")
    parser.add_argument("--idle-streams", type=int, default=NUM_IDLE)
    parser.add_argument("--wakes", type=int, default=20, help="at most 26")
    parser.add_argument("--log-level", default="INFO", help="of the gateway")
    parser.add_argument("--keep", action="store_true", help="keep the folder with the logs")
    parser.add_argument("phases", nargs="*", default=list(PHASES), help=f"some of {', '.join(PHASES)}; all without any")
    return parser.parse_args()


def main() -> int:
    options = parse()
    made = asyncio.run(run(options))
    if made is None:
        return 2
    result, errors = made
    found = {**summary(result), **result}
    missed = misses(found, options)
    if errors:
        missed.append(f"{len(errors)} requests went wrong, such as: {errors[0]}")
    for miss in missed:
        say(f"missed: {miss}")
    print(json.dumps({"bench": "gateway", "ok": not missed, "misses": missed, **_rounded(found)}))
    return 1 if missed else 0


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(part) for name, part in value.items()}
    return round(value, 3) if isinstance(value, float) else value


if __name__ == "__main__":
    sys.exit(main())
