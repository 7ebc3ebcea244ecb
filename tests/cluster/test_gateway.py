"""The gateway on a real API server, with its own ServiceAccount, its own rights, and pods that are played by status writes."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
import yaml
from kubernetes.aio import client
from kubernetes.aio.client.exceptions import ApiException

from emberline_contract import names
from emberline_contract.http import ADMIN_CLOSE, ADMIN_DEMAND, CHAT_COMPLETIONS, CloseRequest
from emberline_gateway.activation import ClusterError, WakeOutcome
from emberline_gateway.cluster import Cluster
from emberline_gateway.directory import Directory
from emberline_gateway.objects import Target
from support.gateway import FakeEngine, Running, eventually, running_engine, running_gateway
from support.plane import TestPlane

pytestmark = pytest.mark.cluster

MANIFEST = Path(__file__).parents[2] / "manifests/base/gateway.yaml"
WORKLOADS = ("Deployment", "Service")


@pytest.fixture(scope="module")
def installed(plane: TestPlane) -> TestPlane:
    """The plane with the gateway's account, rights and admission policy."""
    documents = [d for d in yaml.safe_load_all(MANIFEST.read_text()) if d["kind"] not in WORKLOADS]
    plane.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": names.SYSTEM_NAMESPACE}})
    plane.apply(*documents)
    for name in (names.OPERATOR_NAME, "stranger"):
        account = {"name": name, "namespace": names.SYSTEM_NAMESPACE}
        plane.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account})
    return plane


def token_of(plane: TestPlane, account: str, *audiences: str) -> str:
    """A short-lived token of an account of our namespace."""
    flags = [f"--audience={audience}" for audience in audiences]
    return plane.kubectl("create", "token", account, "-n", names.SYSTEM_NAMESPACE, *flags).strip()


@asynccontextmanager
async def own_cluster(plane: TestPlane) -> AsyncIterator[Cluster]:
    """The gateway's connection: nothing but its ServiceAccount's token."""
    configuration = client.Configuration()
    configuration.host = f"https://127.0.0.1:{plane.api_port}"
    configuration.ssl_ca_cert = str(plane.ca_file)
    configuration.api_key = {"BearerToken": f"Bearer {token_of(plane, names.GATEWAY_NAME)}"}
    async with client.ApiClient(configuration) as api:
        yield Cluster(api)


def endpoint(namespace: str, name: str = "tiny", **scaling: Any) -> dict[str, Any]:
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.ENDPOINT_KIND,
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"model": {"source": "pvc://models/tiny"}, "scaling": scaling},
    }


def deployment(namespace: str, replicas: int, name: str = "tiny", *, is_ours: bool = True) -> dict[str, Any]:
    ours = {names.LABEL_ENDPOINT: name, names.LABEL_REGION: names.DEFAULT_REGION}
    labels = ours if is_ours else {"app": "foreign"}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": names.child_name(name, names.DEFAULT_REGION), "namespace": namespace, "labels": labels},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    # No node has it: the pods stay pending until the test says otherwise.
                    "nodeSelector": {"nowhere": "to-be-found"},
                    "terminationGracePeriodSeconds": 0,
                    "containers": [
                        {
                            "name": names.ENGINE_CONTAINER,
                            "image": "none",
                            "ports": [{"name": names.PORT_NAME_HTTP, "containerPort": names.ENGINE_PORT}],
                        }
                    ],
                },
            },
        },
    }


async def play_pod(plane: TestPlane, namespace: str, engine: FakeEngine, *, ready: bool = True) -> str:
    """Makes the Deployment's pod one that runs at the engine's address; the port goes into its own container."""
    async with plane.client() as api:
        core = client.CoreV1Api(api)
        async with asyncio.timeout(10):
            while not (pods := (await core.list_namespaced_pod(namespace)).items):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        name = pods[0].metadata.name
    set_pod_status(plane, namespace, name, engine.url, ready=ready)
    return str(name)


def set_pod_status(plane: TestPlane, namespace: str, name: str, url: str, *, ready: bool) -> None:
    state = "True" if ready else "False"
    status = {
        "phase": "Running",
        "podIP": url.removeprefix("http://").split(":")[0],
        "podIPs": [{"ip": url.removeprefix("http://").split(":")[0]}],
        "conditions": [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": state}],
        "containerStatuses": [
            {
                "name": names.ENGINE_CONTAINER,
                "image": "none",
                "imageID": "none",
                "ready": ready,
                "restartCount": 0,
                "state": {"running": {}},
            }
        ],
    }
    plane.kubectl(
        "patch",
        "pod",
        name,
        "-n",
        namespace,
        "--subresource=status",
        "--type=merge",
        "-p",
        json.dumps({"status": status}),
    )


def replicas(plane: TestPlane, namespace: str, name: str = "tiny") -> int:
    child = names.child_name(name, names.DEFAULT_REGION)
    return int(plane.kubectl("get", "deployment", child, "-n", namespace, "-o=jsonpath={.spec.replicas}"))


def scale_writes(plane: TestPlane, namespace: str) -> list[dict[str, Any]]:
    """Scale requests of the gateway's account in the audit log."""
    found = []
    for line in plane.audit_file.read_text().splitlines():
        event = json.loads(line)
        reference = event.get("objectRef") or {}
        is_scale = reference.get("subresource") == "scale" and reference.get("namespace") == namespace
        is_own = event["user"]["username"].endswith(f":{names.GATEWAY_NAME}")
        if is_scale and is_own and event["verb"] == "patch" and event["stage"] == "ResponseComplete":
            found.append(event)
    return found


async def test_it_wakes_and_nothing_else(installed: TestPlane, namespace: str) -> None:
    """The 0 -> 1 that its code writes passes; whatever else its account tries on scale is refused by the API server."""
    installed.apply(deployment(namespace, 0), deployment(namespace, 0, "foreign", is_ours=False))
    child = names.child_name("tiny", names.DEFAULT_REGION)
    async with own_cluster(installed) as cluster:
        target = Target(namespace, "tiny", names.DEFAULT_REGION)
        assert await cluster.replicas(target) == 0
        assert await cluster.wake(target) is WakeOutcome.WOKE
        assert await cluster.replicas(target) == 1
        assert await cluster.wake(target) is WakeOutcome.AWAKE_ALREADY
        with pytest.raises(ClusterError, match=r"403 .*only Deployments of an InferenceEndpoint"):
            await cluster.wake(Target(namespace, "foreign", names.DEFAULT_REGION))
        with pytest.raises(ClusterError, match="404"):
            await cluster.wake(Target(namespace, "absent", names.DEFAULT_REGION))

        apps = client.AppsV1Api(cluster._api)
        for before, after in ((1, 2), (1, 0), (0, 2)):
            installed.kubectl("scale", "deployment", child, "-n", namespace, f"--replicas={before}")
            with pytest.raises(ApiException) as refused:
                await apps.patch_namespaced_deployment_scale(child, namespace, {"spec": {"replicas": after}})
            assert refused.value.status == 403, (before, after)
            assert "only from 0 to 1" in refused.value.body
            assert replicas(installed, namespace) == before
        for forbidden in (
            apps.delete_namespaced_deployment(child, namespace),
            apps.patch_namespaced_deployment(child, namespace, {"spec": {"replicas": 5}}),
            client.CoreV1Api(cluster._api).list_namespaced_secret(namespace),
        ):
            with pytest.raises(ApiException) as refused:
                await forbidden
            assert refused.value.status == 403


async def test_a_person_may_scale_as_they_like(installed: TestPlane, namespace: str) -> None:
    """The admission policy binds the gateway alone."""
    installed.apply(deployment(namespace, 0))
    installed.kubectl(
        "scale", "deployment", names.child_name("tiny", names.DEFAULT_REGION), "-n", namespace, "--replicas=3"
    )
    assert replicas(installed, namespace) == 3


@asynccontextmanager
async def own_gateway(plane: TestPlane) -> AsyncIterator[Running]:
    """The whole gateway with its own account."""
    async with own_cluster(plane) as cluster, running_gateway(cluster) as running:
        await eventually(lambda: running.gateway.directory.is_complete, 10)
        yield running


async def test_a_burst_of_twenty_wakes_once_and_all_are_answered(installed: TestPlane, namespace: str) -> None:
    installed.apply(endpoint(namespace), deployment(namespace, 0))
    async with engine_on_own_address() as engine, own_gateway(installed) as running:
        url = f"{running.url}/{namespace}/tiny/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as api:

            async def ask() -> str:
                stream = await api.chat.completions.create(
                    model="tiny", messages=[{"role": "user", "content": "Hi"}], stream=True
                )
                return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

            await eventually(lambda: running.gateway.directory.endpoint(namespace, "tiny"))
            answers = [asyncio.create_task(ask()) for _ in range(20)]
            name = await play_pod(installed, namespace, engine)
            assert await asyncio.gather(*answers) == ["Hello, world"] * 20
            assert [call.path for call in engine.calls] == ["/v1/chat/completions"] * 20
            writes = scale_writes(installed, namespace)
            assert [write["responseStatus"]["code"] for write in writes] == [200]
            assert replicas(installed, namespace) == 1

            # The pod leaves: known from the resource, the endpoint is held again, not unknown.
            installed.kubectl("delete", "pod", name, "-n", namespace, "--force", "--grace-period=0")
            await eventually(lambda: not running.gateway.directory.ready_pods(_target(namespace)))
            again = asyncio.create_task(ask())
            await play_pod(installed, namespace, engine)
            assert await again == "Hello, world"
        installed.kubectl("delete", names.ENDPOINT_PLURAL, "tiny", "-n", namespace)
        await eventually(lambda: running.gateway.directory.endpoint(namespace, "tiny") is None)


async def test_two_gateways_wake_once_and_both_answer(installed: TestPlane, namespace: str) -> None:
    installed.apply(endpoint(namespace), deployment(namespace, 0))
    async with (
        engine_on_own_address() as engine,
        own_gateway(installed) as one,
        own_gateway(installed) as other,
        aiohttp.ClientSession() as session,
    ):
        for running in (one, other):
            await eventually(lambda running=running: running.gateway.directory.endpoint(namespace, "tiny"))  # type: ignore[misc]

        async def ask(url: str) -> int:
            body = {"model": f"{namespace}/tiny", "messages": []}
            async with session.post(url + CHAT_COMPLETIONS, json=body) as response:
                return response.status

        answers = [asyncio.create_task(ask(running.url)) for running in (one, other) for _ in range(10)]
        await play_pod(installed, namespace, engine)
        assert await asyncio.gather(*answers) == [200] * 20
        codes = [write["responseStatus"]["code"] for write in scale_writes(installed, namespace)]
        assert codes.count(200) == 1
        assert set(codes) <= {200, 422}


def _target(namespace: str) -> Target:
    return Target(namespace, "tiny", names.DEFAULT_REGION)


@asynccontextmanager
async def engine_on_own_address() -> AsyncIterator[FakeEngine]:
    """An engine on the port that every engine's pod has, on a loopback address that nobody else uses."""
    async with running_engine(address=_free_address(), port=names.ENGINE_PORT) as engine:
        yield engine


def _free_address() -> str:
    return f"127.{secrets.randbelow(100) + 100}.{secrets.randbelow(256)}.{secrets.randbelow(250) + 2}"


async def test_admin_port_lets_two_accounts_in(installed: TestPlane, namespace: str) -> None:
    installed.apply(endpoint(namespace), deployment(namespace, 0))
    request = CloseRequest(namespace=namespace, name="tiny", region=names.DEFAULT_REGION, epoch=1).model_dump()
    async with own_gateway(installed) as running, aiohttp.ClientSession() as session:
        await eventually(lambda: running.gateway.directory.endpoint(namespace, "tiny"))

        async def status(token: str | None) -> tuple[int, int]:
            headers = {"authorization": f"Bearer {token}"} if token else {}
            async with session.get(running.admin_url + ADMIN_DEMAND, headers=headers) as demand:
                pass
            async with session.post(running.admin_url + ADMIN_CLOSE, headers=headers, json=request) as close:
                pass
            return demand.status, close.status

        for account in (names.OPERATOR_NAME, names.GATEWAY_NAME):
            assert await status(token_of(installed, account, names.ADMIN_AUDIENCE)) == (200, 200)
        assert await status(None) == (401, 401)
        assert await status("made.up.token") == (401, 401)
        assert await status(token_of(installed, names.OPERATOR_NAME)) == (401, 401)  # the API server's audience
        assert await status(token_of(installed, names.OPERATOR_NAME, "another-audience")) == (401, 401)
        assert await status(token_of(installed, "stranger", names.ADMIN_AUDIENCE)) == (403, 403)


async def test_watches_resume_and_list_again(installed: TestPlane, namespace: str) -> None:
    """What happens while a watch is broken is not missed."""
    installed.apply(endpoint(namespace, "first"))
    directory = Directory()
    async with own_cluster(installed) as cluster:
        watching = asyncio.create_task(cluster.watch(directory))
        await eventually(lambda: directory.endpoint(namespace, "first"), 10)
        connections = cluster._api.rest_client.pool_manager.connector._acquired
        await eventually(lambda: directory.is_complete and len(connections) == 2, 10)  # both watches are open
        for connection in tuple(connections):
            connection.transport.abort()
        installed.apply(endpoint(namespace, "second"))
        installed.kubectl("delete", names.ENDPOINT_PLURAL, "first", "-n", namespace)
        await eventually(lambda: directory.endpoint(namespace, "second"), 10)
        await eventually(lambda: directory.endpoint(namespace, "first") is None, 10)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
