"""Pods on a process node, against a real API server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from emberline_local import pod_logs
from emberline_local.node_spec import NodeSpec, PretendedGpus
from emberline_local.sources import Sources, needed_sources, read_sources
from support.local_node import (
    POD_IP,
    READY,
    SERVER,
    RunningNode,
    container,
    is_ready,
    running_node,
    waiting_reason,
)
from support.plane import TestPlane

pytestmark = pytest.mark.cluster


@pytest.fixture
async def node(plane: TestPlane, namespace: str, tmp_path: Path) -> AsyncIterator[RunningNode]:
    async with running_node(plane, namespace, tmp_path, name=f"node-{namespace}") as running:
        yield running


def server(**more: Any) -> dict[str, Any]:
    return {
        "command": ["python", "-I", "-S", "-c", SERVER],
        "env": [POD_IP, *more.pop("env", ())],
        "ports": [{"name": "http", "containerPort": 8000}],
        "readinessProbe": READY,
        **more,
    }


async def get(pod: dict[str, Any], path: str) -> tuple[int, str]:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://{pod['status']['podIP']}:8000{path}") as response,
    ):
        return response.status, await response.text()


def on_host(path: str) -> bool:
    return Path(path).exists()


def pids_of(pod: dict[str, Any]) -> list[int]:
    mark = f"EMBERLINE_LOCAL_POD={pod['metadata']['uid']}/".encode()
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and mark in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


async def test_pod_serves_at_its_own_address_and_sees_its_volumes(node: RunningNode, tmp_path: Path) -> None:
    weights = tmp_path / "weights"
    (weights / "tiny").mkdir(parents=True)
    (weights / "tiny" / "config.json").write_text("the model")
    claim = f"models-{node.namespace}"
    for path, item in (
        ("/api/v1/persistentvolumes", make_volume(claim, weights, node.namespace)),
        (f"/api/v1/namespaces/{node.namespace}/persistentvolumeclaims", make_claim(claim)),
    ):
        await node.api.request("POST", path, body=item)
    await node.create({"kind": "ConfigMap", "metadata": {"name": "settings"}, "data": {"engine.json": "{}", "a": "A"}})
    await node.create({"kind": "Secret", "metadata": {"name": "keys"}, "stringData": {"key": "hidden"}})
    names = [
        {"name": "MY_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "MY_COLOUR", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['colour']"}}},
        {"name": "FROM_MAP", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "a"}}},
        {"name": "FROM_SECRET", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "key"}}},
        {"name": "JOINED", "value": "$(MY_NAME)-$(FROM_MAP)-$$(MY_NAME)"},
    ]
    mounts = [
        {"name": "settings", "mountPath": "/etc/emberline"},
        {"name": "keys", "mountPath": "/var/run/keys", "readOnly": True},
        {"name": "models", "mountPath": "/models", "subPath": "tiny", "readOnly": True},
        {"name": "tmp", "mountPath": "/tmp"},
    ]
    volumes = [
        {"name": "settings", "configMap": {"name": "settings"}},
        {"name": "keys", "secret": {"secretName": "keys"}},
        {"name": "models", "persistentVolumeClaim": {"claimName": claim}},
        {"name": "tmp", "emptyDir": {"medium": "Memory"}},
    ]
    write = 'touch /tmp/mine; touch /models/x; ls /tmp > /tmp/listing; exec python -I -S -c "$0"'
    main = server(env=names, volumeMounts=mounts, command=["sh", "-c", write, SERVER])
    began_s = time.monotonic()
    pod = await node.create(node.pod("sees", main, volumes=volumes))
    ready = await node.wait(pod, is_ready)
    print(f"created to Ready: {1000 * (time.monotonic() - began_s):.0f} ms")

    assert ready["status"]["podIP"].startswith("127.")
    assert ready["status"]["phase"] == "Running"
    assert await get(ready, "/etc/emberline/engine.json") == (200, "{}")
    assert await get(ready, "/run/keys/key") == (200, "hidden")
    assert await get(ready, "/models/config.json") == (200, "the model")
    assert not (weights / "tiny" / "x").exists(), "the claim was mounted read-only"
    status, listing = await get(ready, "/tmp/listing")
    assert status == 200
    assert "mine" in listing.split()
    assert not on_host("/tmp/mine"), "what is written to an emptyDir stays there"
    assert await get(ready, "/env/FROM_SECRET") == (200, "hidden")
    assert await get(ready, "/env/MY_COLOUR") == (200, "blue")
    assert await get(ready, "/env/JOINED") == (200, "sees-A-$(MY_NAME)")
    assert (await get(ready, "/var/run/secrets/kubernetes.io/serviceaccount/token"))[0] == 404, "automount is off"
    assert not on_host("/models"), "no mount point is made on the host"

    await get(ready, "/unready")
    unready = await node.wait(pod, lambda now: not is_ready(now))
    assert container(unready)["state"].get("running"), "a readiness probe kills nothing"
    await node.api.request("DELETE", f"/api/v1/persistentvolumes/{claim}")


def make_volume(name: str, folder: Path, namespace: str) -> dict[str, Any]:
    every_node = [{"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "Exists"}]}]
    return {
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadOnlyMany"],
            "storageClassName": "",
            "claimRef": {"namespace": namespace, "name": name},
            "local": {"path": str(folder)},
            "nodeAffinity": {"required": {"nodeSelectorTerms": every_node}},
        },
    }


def make_claim(name: str) -> dict[str, Any]:
    return {
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name},
        "spec": {
            "accessModes": ["ReadOnlyMany"],
            "storageClassName": "",
            "volumeName": name,
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }


IN_CLUSTER = """
import asyncio, sys
from kubernetes.aio import client, config
async def main():
    config.load_incluster_config()
    async with client.ApiClient() as api:
        core = client.CoreV1Api(api)
        for what, ask in (("maps", core.list_namespaced_config_map), ("secrets", core.list_namespaced_secret)):
            try:
                await ask(sys.argv[1]); print(what, "allowed", flush=True)
            except client.ApiException as error:
                print(what, error.status, flush=True)
asyncio.run(main())
"""


async def test_service_account_token_is_real_and_rights_are_too(node: RunningNode, plane: TestPlane) -> None:
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": {"name": "reads-maps", "namespace": node.namespace},
        "rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list"]}],
    }
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "reads-maps", "namespace": node.namespace},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reads-maps"},
        "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": node.namespace}],
    }
    for plural, item in (("roles", role), ("rolebindings", binding)):
        path = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{node.namespace}/{plural}"
        await node.api.request("POST", path, body=item)
    audience = {
        "name": "admin",
        "projected": {
            "sources": [
                {
                    "serviceAccountToken": {
                        "path": "token",
                        "audience": "emberline-gateway-admin",
                        "expirationSeconds": 600,
                    }
                }
            ]
        },
    }
    main = {
        "command": ["python", "-c", IN_CLUSTER, node.namespace],
        "volumeMounts": [{"name": "admin", "mountPath": "/var/run/secrets/emberline.dev/admin", "readOnly": True}],
    }
    reader = {
        "name": "reader",
        "image": "emberline/runtime:dev",
        "command": ["cat", "/var/run/secrets/emberline.dev/admin/token"],
        "volumeMounts": main["volumeMounts"],
    }
    item = node.pod("asks", main, restartPolicy="Never", automountServiceAccountToken=True, volumes=[audience])
    item["spec"]["containers"].append(reader)
    pod = await node.create(item)
    done = await node.wait(pod, lambda now: now["status"]["phase"] in ("Succeeded", "Failed"))
    logs = {
        name: pod_logs.find_logs(node.state_dir, namespace=node.namespace, pod="asks", container=name)[0].read_text()
        for name in ("main", "reader")
    }
    assert done["status"]["phase"] == "Succeeded", logs["main"]
    assert logs["main"].split("\n")[:2] == ["maps allowed", "secrets 403"]
    review = await node.api.request(
        "POST",
        "/apis/authentication.k8s.io/v1/tokenreviews",
        body={
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": logs["reader"], "audiences": ["emberline-gateway-admin"]},
        },
    )
    assert review["status"]["user"]["username"] == f"system:serviceaccount:{node.namespace}:default"
    assert review["status"]["user"]["extra"]["authentication.kubernetes.io/pod-uid"] == [pod["metadata"]["uid"]]


async def test_crash_is_restarted_at_once_then_with_growing_pauses(node: RunningNode) -> None:
    main = {"command": ["sh", "-c", "echo run; exit 3"], "terminationMessagePolicy": "FallbackToLogsOnError"}
    pod = await node.create(node.pod("crashes", main))
    seen = await node.wait(pod, lambda now: waiting_reason(now) == "CrashLoopBackOff")
    status = container(seen)
    assert status["lastState"]["terminated"]["exitCode"] == 3
    assert status["lastState"]["terminated"]["reason"] == "Error"
    assert status["lastState"]["terminated"]["message"] == "run\n"
    assert "back-off" in status["state"]["waiting"]["message"]
    assert status["restartCount"] >= 1, "the first restart is not delayed"
    later = await node.wait(pod, lambda now: container(now)["restartCount"] >= 3 and waiting_reason(now) != "")
    assert later["status"]["phase"] == "Running"
    assert not is_ready(later)
    # Only the last two runs keep their output.
    logs = pod_logs.find_logs(node.state_dir, namespace=node.namespace, pod="crashes")
    assert 1 <= len(logs) <= 3


async def test_killed_program_comes_back_and_its_children_go(node: RunningNode) -> None:
    # The child leaves the program's session: only its mark in the environment finds it.
    spawn = 'setsid sleep 1000 & exec python -I -S -c "$0"'
    pod = await node.create(node.pod("killed", server(command=["sh", "-c", spawn, SERVER])))
    ready = await node.wait(pod, is_ready)
    before = pids_of(ready)
    assert len(before) == 2
    with pytest.raises(aiohttp.ClientError):
        await get(ready, "/crash")
    again = await node.wait(pod, lambda now: is_ready(now) and container(now)["restartCount"] == 1)
    assert container(again)["lastState"]["terminated"]["exitCode"] == 3
    assert again["status"]["podIP"] == ready["status"]["podIP"], "the address is the pod's, not the container's"
    assert not set(before) & set(pids_of(ready)), "nothing of the first run is left"
    await node.delete(pod)
    await node.wait_gone(pod)
    assert pids_of(ready) == []


TRAPS_TERM = """
trap 'date +%s.%N > /out/term; sleep 0.3; date +%s.%N > /out/end; exit 7' TERM
date +%s.%N > /out/start
while :; do sleep 0.05; done
"""


async def test_deletion_runs_prestop_then_term_and_waits_for_the_program(node: RunningNode, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    main = {
        "command": ["bash", "-c", TRAPS_TERM],
        "volumeMounts": [{"name": "out", "mountPath": "/out"}],
        "lifecycle": {"preStop": {"exec": {"command": ["sh", "-c", "date +%s.%N > /out/hook; sleep 0.2"]}}},
    }
    volumes = [{"name": "out", "hostPath": {"path": str(out)}}]
    pod = await node.create(node.pod("drains", main, volumes=volumes, terminationGracePeriodSeconds=20))
    await node.wait(pod, lambda _: (out / "start").exists())
    await node.delete(pod)
    took_s = await node.wait_gone(pod)
    times = {name: float((out / name).read_text()) for name in ("start", "hook", "term", "end")}
    assert times["start"] < times["hook"] < times["term"] - 0.15
    assert times["term"] < times["end"]
    assert took_s < 15, "nobody waits for the whole grace period"


async def test_program_that_ignores_term_is_killed_when_its_grace_is_over(node: RunningNode) -> None:
    pod = await node.create(
        node.pod("stays", server(command=["bash", "-c", "trap '' TERM; exec python -I -S -c \"$0\"", SERVER]))
    )
    ready = await node.wait(pod, is_ready)
    await node.delete(pod, grace_s=1)
    took_s = await node.wait_gone(pod)
    assert 0.9 <= took_s < 9
    assert pids_of(ready) == []


async def test_prestop_sleep_delays_term(node: RunningNode) -> None:
    pod = await node.create(
        node.pod("sleeps", server(lifecycle={"preStop": {"sleep": {"seconds": 1}}}), terminationGracePeriodSeconds=10)
    )
    ready = await node.wait(pod, is_ready)
    await node.delete(pod)
    await asyncio.sleep(0.5)
    assert (await get(ready, "/ready"))[0] == 200, "it serves during preStop"
    assert 0.4 <= await node.wait_gone(pod) < 9


async def test_what_is_missing_is_named(node: RunningNode) -> None:
    unknown = await node.create(node.pod("unknown", {"image": "example.org/nothing:1", "command": ["true"]}))
    need_map = {"command": ["true"], "envFrom": [{"configMapRef": {"name": "later"}}]}
    no_map = await node.create(node.pod("no-map", need_map, restartPolicy="Never"))
    need_key = {"name": "K", "valueFrom": {"secretKeyRef": {"name": "half", "key": "absent"}}}
    await node.create({"kind": "Secret", "metadata": {"name": "half"}, "stringData": {"present": "x"}})
    no_key = await node.create(node.pod("no-key", {"command": ["true"], "env": [need_key]}))

    seen = await node.wait(unknown, lambda now: waiting_reason(now) == "ErrImagePull")
    message = container(seen)["state"]["waiting"]["message"]
    assert "emberline/operator:dev" in message
    assert "emberline/runtime:dev" in message
    seen = await node.wait(no_key, lambda now: waiting_reason(now) == "CreateContainerConfigError")
    assert "absent in Secret half" in container(seen)["state"]["waiting"]["message"]
    seen = await node.wait(no_map, lambda now: waiting_reason(now) == "CreateContainerConfigError")
    assert "ConfigMap 'later' not found" in container(seen)["state"]["waiting"]["message"]
    await node.create({"kind": "ConfigMap", "metadata": {"name": "later"}, "data": {"a": "b"}})
    await node.wait(no_map, lambda now: now["status"]["phase"] == "Succeeded")
    await node.delete(unknown)
    await node.wait_gone(unknown)


async def test_init_containers_run_in_order_before_the_others(node: RunningNode) -> None:
    shared = [{"name": "work", "mountPath": "/work-of-pod"}]

    def step(name: str, text: str) -> dict[str, Any]:
        command = ["sh", "-c", f"echo {text} >> /work-of-pod/steps"]
        return {"name": name, "image": "emberline/runtime:dev", "command": command, "volumeMounts": shared}

    main = {"command": ["cat", "/work-of-pod/steps"], "volumeMounts": shared}
    inits = [step("first", "1"), step("second", "2")]
    volumes = [{"name": "work", "emptyDir": {}}]
    pod = await node.create(node.pod("inits", main, initContainers=inits, volumes=volumes, restartPolicy="Never"))
    done = await node.wait(pod, lambda now: now["status"]["phase"] == "Succeeded")
    (path,) = pod_logs.find_logs(node.state_dir, namespace=node.namespace, pod="inits", container="main")
    assert path.read_text() == "1\n2\n"
    assert [init["state"]["terminated"]["exitCode"] for init in done["status"]["initContainerStatuses"]] == [0, 0]
    conditions = {c["type"]: c["status"] for c in done["status"]["conditions"]}
    assert conditions["Initialized"] == "True"
    assert conditions["Ready"] == "False"


async def test_liveness_probe_that_fails_restarts_and_startup_probe_holds_readiness_back(node: RunningNode) -> None:
    slow = 'sleep 0.6; exec python -I -S -c "$0"'
    main = server(
        command=["sh", "-c", slow, SERVER],
        startupProbe={"tcpSocket": {"port": 8000}, "periodSeconds": 1, "failureThreshold": 5},
        livenessProbe={"httpGet": {"path": "/ready", "port": 8000}, "periodSeconds": 1, "failureThreshold": 1},
    )
    pod = await node.create(node.pod("lives", main))
    running = await node.wait(pod, lambda now: "running" in container(now)["state"])
    assert not container(running)["started"]
    ready = await node.wait(pod, is_ready)
    assert container(ready)["started"]
    await get(ready, "/unready")
    again = await node.wait(pod, lambda now: container(now)["restartCount"] == 1 and is_ready(now))
    assert container(again)["lastState"]["terminated"]["exitCode"] == 143


async def test_start_takes_no_longer_than_it_must(node: RunningNode) -> None:
    """Bound -> running within 150 ms on an idle machine; here with room for a busy one."""
    took: list[tuple[float, float]] = []
    for n in range(4):
        began_s = time.monotonic()
        pod = await node.create(node.pod(f"quick-{n}", server(), automountServiceAccountToken=True))
        await node.wait(pod, lambda now: "running" in container(now)["state"])
        running_s = time.monotonic() - began_s
        await node.wait(pod, is_ready)
        took.append((running_s, time.monotonic() - began_s))
    print("running, ready (ms): ", [tuple(round(1000 * part) for part in pair) for pair in took])
    assert min(running for running, _ in took) < 1.0
    assert min(ready for _, ready in took) < 2.0


async def test_node_that_stops_leaves_no_process_and_one_that_starts_again_runs_its_pods_again(
    plane: TestPlane, namespace: str, tmp_path: Path
) -> None:
    name = f"node-{namespace}"
    async with running_node(plane, namespace, tmp_path, name=name) as first:
        pod = await first.create(
            first.pod("stays", server(command=["sh", "-c", 'setsid sleep 1000 & exec python -I -S -c "$0"', SERVER]))
        )
        ready = await first.wait(pod, is_ready)
        assert len(pids_of(ready)) == 2
    assert pids_of(ready) == []
    assert not (tmp_path / "nodes" / name).exists()
    async with running_node(plane, namespace, tmp_path, name=name, num_taken=3) as second:
        again = await second.wait(pod, lambda now: is_ready(now) and container(now)["restartCount"] == 1)
        assert again["status"]["podIPs"] == [{"ip": again["status"]["podIP"]}]
        assert again["status"]["podIP"].endswith(".1.3")
        assert (await get(again, "/ready"))[0] == 200


async def test_config_maps_in_volumes_follow_and_tokens_are_renewed_in_time(
    plane: TestPlane, namespace: str, tmp_path: Path
) -> None:
    async with running_node(plane, namespace, tmp_path, name=f"node-{namespace}", refresh_s=0.1) as node:
        settings = await node.create({"kind": "ConfigMap", "metadata": {"name": "settings"}, "data": {"a": "old"}})
        token = {"serviceAccountToken": {"path": "token", "audience": "somebody", "expirationSeconds": 600}}
        volumes = [
            {"name": "settings", "configMap": {"name": "settings"}},
            {"name": "token", "projected": {"sources": [token]}},
        ]
        mounts = [{"name": "settings", "mountPath": "/settings"}, {"name": "token", "mountPath": "/token"}]
        pod = await node.create(node.pod("follows", server(volumeMounts=mounts), volumes=volumes))
        ready = await node.wait(pod, is_ready)
        assert await get(ready, "/settings/a") == (200, "old")
        _, first = await get(ready, "/token/token")
        path = f"/api/v1/namespaces/{namespace}/configmaps/settings"
        await node.api.request("PUT", path, body={**settings, "data": {"b": "new"}})
        async with asyncio.timeout(10):
            while (await get(ready, "/settings/b"))[0] != 200:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert (await get(ready, "/settings/a"))[0] == 404
        assert (await get(ready, "/token/token"))[1] == first, "a fresh token is kept"

        needed = needed_sources(ready)
        now_s = time.time()
        fresh = await read_sources(node.api, ready, needed, previous=Sources(), now_s=now_s)
        same = await read_sources(node.api, ready, needed, previous=fresh, now_s=now_s + 400)
        later = await read_sources(node.api, ready, needed, previous=fresh, now_s=now_s + 500)
        assert same.tokens == fresh.tokens
        assert later.tokens != fresh.tokens
        assert fresh.renew_at_s is not None
        assert 470 < fresh.renew_at_s - now_s <= 490


async def test_pod_that_is_removed_by_force_ends_all_the_same(node: RunningNode) -> None:
    ignores = ["bash", "-c", "trap '' TERM; exec python -I -S -c \"$0\"", SERVER]
    pod = await node.create(node.pod("forced", server(command=ignores), terminationGracePeriodSeconds=600))
    ready = await node.wait(pod, is_ready)
    assert pids_of(ready)
    await node.delete(pod, grace_s=0)
    async with asyncio.timeout(10):
        while pids_of(ready):  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_pretended_gpus_take_pods_and_make_engines_pretend(
    plane: TestPlane, namespace: str, tmp_path: Path
) -> None:
    name = f"gpu-{namespace}"
    gpus = PretendedGpus(count=2, load_s=0.5, step_s=0.01)
    spec = NodeSpec(name=name, region="eu-west", zone="a", gpus=gpus)
    async with running_node(plane, namespace, tmp_path, name=name, spec=spec) as node:
        # The real scheduler binds it.
        item = node.pod("engine", server(resources={"limits": {"nvidia.com/gpu": "1"}}))
        del item["spec"]["nodeName"]
        item["spec"]["nodeSelector"] = {
            "topology.kubernetes.io/region": "eu-west",
            "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
            "kubernetes.io/hostname": name,
        }
        pod = await node.create(item)
        ready = await node.wait(pod, is_ready)
        assert ready["spec"]["nodeName"] == name
        assert await get(ready, "/env/EMBERLINE_EXECUTOR") == (200, "oracle")
        assert await get(ready, "/env/EMBERLINE_ORACLE_LOAD_S") == (200, "0.5")
