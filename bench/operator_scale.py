"""The operator at size: a thousand endpoints, five thousand pods on nodes that only say they run, on a real control plane.

In one run: endpoints from creation to Ready; a quiet restart, in which nothing may be written; spec changes, from the answer to the
patch until the Deployment is changed; status writes while every endpoint is busy; memory over rounds of churn, in each of which
a fifth of the endpoints is created, changed and deleted; CPU at rest. What the operator does is counted from the API server's audit
log. The last line is JSON; the code is not zero when one of the limits below is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

from aiohttp import web
from kubernetes.aio import config
from kubernetes.aio.client import ApiClient, Configuration
from operator_cluster import AT_ONCE, CHURN_NAMESPACE, GATEWAY_ADDRESS, NUM_NAMESPACES, Bench, Raw, is_write, say

from emberline_contract import names
from emberline_local import children, program
from emberline_local.node_api import NodeApi, NodeApiError
from emberline_local.node_spec import NodeSpec, PretendedGpus
from emberline_local.plane import Plane
from emberline_local.status_only import Delays, StatusOnlyNodes

MAX_QUIET_WRITES = 0
MAX_APPLY_P99_S = 1.0
MAX_STATUS_WRITES_PER_S_AND_ENDPOINT = 1 / 5
MAX_GROWTH = 1.10
PODS_OF_A_NODE = 110
CHANGES_PER_S = 4.0
"""On two cores that also carry API server, scheduler and controllers: a roll-out of five engines is a hundred requests of theirs."""


async def run_operator(told: str) -> None:
    """The operator's own process."""
    from emberline_operator import main
    from emberline_operator.settings import Install, Settings

    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    wish = json.loads(told)
    await main.run(
        Settings(
            install=Install("emberline/runtime:bench", "http://127.0.0.1:8080"),
            health_port=wish["health_port"],
            kubeconfig=Path(wish["kubeconfig"]),
            admin_token_path=Path(wish["token"]),
            gateway_admin_port=wish["admin_port"],
        )
    )


async def measure_changes(bench: Bench, keys: list[tuple[str, str]], num_changes: int) -> list[float]:
    """Seconds from the answer to a change of spec until the Deployment shows it, four changes a second."""
    seen: dict[tuple[str, str], asyncio.Future[float]] = {}
    listed = asyncio.Event()

    async def follow() -> None:
        wanted = {"labelSelector": names.LABEL_ENDPOINT}
        async for kind, item in bench.api.watch("/apis/apps/v1/deployments", wanted):
            listed.set()
            if kind != "MODIFIED":
                continue
            labels = item["metadata"]["labels"]
            key = (item["metadata"]["namespace"], labels[names.LABEL_ENDPOINT])
            waiting = seen.get(key)
            if waiting and not waiting.done() and item["metadata"]["generation"] > generations[key]:
                waiting.set_result(time.monotonic())

    deployments = (await bench.api.request("GET", "/apis/apps/v1/deployments"))["items"]
    generations = {
        (d["metadata"]["namespace"], d["metadata"]["labels"][names.LABEL_ENDPOINT]): d["metadata"]["generation"]
        for d in deployments
    }
    following = asyncio.create_task(follow())
    await listed.wait()
    took_s: list[float] = []

    async def change(rank: int, key: tuple[str, str]) -> None:
        await asyncio.sleep(rank / CHANGES_PER_S)
        seen[key] = asyncio.get_running_loop().create_future()
        # One in five replaces engines, the others change what is around them.
        spec = (
            {"engine": {"maxSequences": 16}} if rank % 5 == 0 else {"rollout": {"drainTimeout": f"{5 + rank % 50}m1s"}}
        )
        await bench.patch(key, spec)
        began_s = time.monotonic()
        took_s.append(max(0.0, await asyncio.wait_for(seen[key], 60) - began_s))

    try:
        await asyncio.gather(*(change(rank, key) for rank, key in enumerate(keys[:num_changes])))
    finally:
        following.cancel()
    return took_s


async def churn(bench: Bench, num_endpoints: int) -> None:
    """Endpoints that come, are changed and go, with their pods."""
    keys = [(CHURN_NAMESPACE, f"c{n}") for n in range(num_endpoints)]
    await bench.each(keys, lambda key: bench.create(key, minReplicas=1, maxReplicas=2))
    await bench.until("churn ready", lambda: _is_count(bench.count_ready(CHURN_NAMESPACE), num_endpoints), 300)
    await bench.each(keys, lambda key: bench.patch(key, {"engine": {"maxSequences": 8}}))
    await bench.until("churn rolled out", lambda: _is_count(bench.count_ready(CHURN_NAMESPACE), num_endpoints), 300)
    await bench.each(keys, bench.delete)
    pods = f"/api/v1/namespaces/{CHURN_NAMESPACE}/pods"
    await bench.until("churn gone", lambda: _is_count(bench.count(pods), 0), 300)


async def _is_count(found: Awaitable[int], wanted: int) -> bool:
    return await found == wanted


async def _is_least(found: Awaitable[int], wanted: int) -> bool:
    return await found >= wanted


async def measure(bench: Bench, options: argparse.Namespace) -> Raw:
    """All phases in their order."""
    keys = [(bench.namespaces[n % NUM_NAMESPACES], f"e{n}") for n in range(options.endpoints)]
    bench.gateway.names = keys
    num_pods = options.endpoints * options.pods
    result: Raw = {"endpoints": options.endpoints, "pods": num_pods}
    async with bench.operator() as operator:
        say(f"creating {options.endpoints} endpoints with {options.pods} engines each")
        await bench.each(keys, lambda key: bench.create(key, minReplicas=options.pods, maxReplicas=options.pods + 3))
        took_s = await bench.until("all ready", lambda: _is_count(bench.count_ready(), len(keys)), 1800)
        result["all_ready_s"] = round(took_s, 1)
        say(f"all Ready after {took_s:.0f} s; memory {operator.rss_mib:.0f} MiB")
        await bench.until_quiet(20)
    say("a quiet restart")
    bench.audit.read()
    async with bench.operator() as operator:
        took_s = await bench.until("each looked at", lambda: _is_least(operator.num_passes(), len(keys)), 300)
        say(f"each looked at after {took_s:.0f} s")
        result["restart_s"] = round(took_s, 1)
        await asyncio.sleep(30)
        events = bench.audit.read()
        result["quiet_writes"] = sum(map(is_write, events))
        result["restart_requests"] = len(events)
        say(f"{result['quiet_writes']} writes, {len(events)} requests")

        say(f"{options.changes} changes of spec, {CHANGES_PER_S:g} a second")
        took = sorted(await measure_changes(bench, keys, options.changes))
        events = bench.audit.read()
        result["apply_p50_s"] = round(statistics.median(took), 3)
        result["apply_p99_s"] = round(took[min(len(took) - 1, int(0.99 * len(took)))], 3)
        result["requests_per_change"] = round(sum(e["verb"] != "watch" for e in events) / options.changes, 2)
        say(f"applied after p50 {result['apply_p50_s']} s, p99 {result['apply_p99_s']} s")
        await bench.until("rolled out", lambda: _is_count(bench.count_ready(), len(keys)), 900)
        await bench.until_quiet(10)

        say("every endpoint busy for 60 s")
        bench.gateway.is_busy = True
        bench.audit.read()
        await asyncio.sleep(60)
        writes = [event for event in bench.audit.read() if is_write(event)]
        num_status = sum(event["objectRef"].get("subresource") == "status" for event in writes)
        result["status_writes_per_s"] = round(num_status / 60, 2)
        result["busy_writes_per_s"] = round(len(writes) / 60, 2)
        say(f"{result['status_writes_per_s']} status writes a second")
        bench.gateway.is_busy = False

        rss = []
        for rank in range(1, options.rounds + 1):
            await churn(bench, options.endpoints // 5)
            rss.append(operator.rss_mib)
            say(f"round {rank} of churn: {rss[-1]:.0f} MiB")
        result["rss_mib"] = round(rss[-1], 1)
        result["rss_growth"] = round(rss[-1] / rss[min(1, len(rss) - 1)], 3)

        await bench.until_quiet(10)
        before_s = operator.cpu_s
        await asyncio.sleep(30)
        result["cpu_at_rest"] = round((operator.cpu_s - before_s) / 30, 4)
    return result


def misses(result: Raw) -> list[str]:
    """The limits that were not met."""
    limits = {
        "quiet_writes": MAX_QUIET_WRITES,
        "apply_p99_s": MAX_APPLY_P99_S,
        "status_writes_per_s": MAX_STATUS_WRITES_PER_S_AND_ENDPOINT * result["endpoints"],
        "rss_growth": MAX_GROWTH,
    }
    return [f"{name} is {result[name]}, the limit is {most:g}" for name, most in limits.items() if result[name] > most]


async def run(options: argparse.Namespace) -> int:
    found = program.find_program(os.environ)
    if found is None:
        say("the control plane program is needed; `emberline-local up` builds it, or set EMBERLINE_LOCALPLANE")
        return 2
    folder = Path(tempfile.mkdtemp(prefix="emberline-bench-"))
    plane = Plane(found, folder, {**os.environ, children.MARK: str(folder)}, audit_log=True)

    async def kubectl(*args: str, stdin: str | None = None) -> str:
        process = await asyncio.create_subprocess_exec(
            str(found), "kubectl", "--kubeconfig", str(plane.kubeconfig), *args,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        out, err = await process.communicate(stdin.encode() if stdin else None)
        if process.returncode != 0:
            raise RuntimeError(f"kubectl {' '.join(args)}: {err.decode()}")
        return out.decode()

    try:
        async with plane:
            client = ApiClient(await _configuration(plane.kubeconfig))
            try:
                result = await _on_nodes(Bench(plane, kubectl, NodeApi(client), folder), client, options)
            finally:
                await client.close()
    finally:
        children.sweep(folder)
        if options.keep:
            say(f"kept: {folder}")
        else:
            shutil.rmtree(folder)
    missed = misses(result)
    for miss in missed:
        say(f"missed: {miss}")
    print(json.dumps(result))
    return 1 if missed else 0


async def _configuration(kubeconfig: Path) -> Any:
    made = Configuration()
    made.connection_pool_maxsize = 2 * AT_ONCE
    await config.load_kube_config(str(kubeconfig), client_configuration=made)
    return made


async def _on_nodes(bench: Bench, client: ApiClient, options: argparse.Namespace) -> Raw:
    """Nodes and the gateway's admin port run in this process."""
    num_nodes = -(-(options.endpoints * (options.pods + 1) + options.endpoints) // PODS_OF_A_NODE)
    gpus = PretendedGpus(count=PODS_OF_A_NODE)
    specs = [
        NodeSpec(name=f"gpu-{n}", region="eu", zone=f"eu-{n % 3}", num_pods=PODS_OF_A_NODE, gpus=gpus)
        for n in range(num_nodes)
    ]
    nodes = StatusOnlyNodes(specs, client, delays=Delays(ready_s=0.2, gone_s=0.2))
    stop = asyncio.Event()
    await bench.prepare()
    serving = asyncio.create_task(nodes.run(stop))
    runner = web.AppRunner(bench.gateway.app(), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, GATEWAY_ADDRESS, bench.admin_port).start()
    try:
        await asyncio.wait_for(nodes.ready.wait(), 60)
        say(f"{num_nodes} nodes")
        return await measure(bench, options)
    except NodeApiError as error:
        raise RuntimeError(f"the API server: {error}") from error
    finally:
        await runner.cleanup()
        stop.set()
        await serving


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--endpoints", type=int, default=1000)
    parser.add_argument("--pods", type=int, default=5, help="engines of each endpoint")
    parser.add_argument("--changes", type=int, default=200, help="changes of spec that are timed")
    parser.add_argument("--rounds", type=int, default=10, help="rounds of churn")
    parser.add_argument("--keep", action="store_true", help="keep the folder with the logs")
    parser.add_argument("--operator", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.operator:
        asyncio.run(run_operator(options.operator))
        return 0
    return asyncio.run(run(options))


if __name__ == "__main__":
    sys.exit(main())
