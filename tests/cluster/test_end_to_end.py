"""The whole path: kubectl, operator, gateway, scheduler, a process node, an engine, and the `openai` client at the other end.

One cluster for the module: a CPU node, whose engines run the real model, and a node that pretends to have GPUs.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from emberline_contract import names
from emberline_local.cluster import ROOT
from emberline_local.demo import condition
from emberline_local.record import ClusterFolder
from support.audit import OPERATOR_USER, lacked_rights

pytestmark = [pytest.mark.cluster, pytest.mark.model]

GATEWAY_ACCOUNT = f"system:serviceaccount:{names.SYSTEM_NAMESPACE}:{names.GATEWAY_NAME}"
GPU_ENDPOINT = "pretend"


@dataclass(frozen=True, slots=True)
class Local:
    """A cluster that is up."""

    program: Path
    folder: ClusterFolder

    def kubectl(self, *words: str, stdin: str | None = None) -> str:
        done = subprocess.run(
            [str(self.program), "kubectl", "--kubeconfig", str(self.folder.kubeconfig), *words],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def get(self, *words: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.kubectl("get", *words, "-o", "json"))
        return found

    def endpoint(self, name: str) -> dict[str, Any]:
        return self.get("iep", name)

    def ready_reason(self, name: str) -> str | None:
        ready = condition(self.endpoint(name).get("status", {}), "Ready")
        return ready["reason"] if ready.get("status") == "True" else None

    def pods(self, name: str) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = self.get("pods", "-l", f"{names.LABEL_ENDPOINT}={name}")["items"]
        return items

    def wait_for(self, what: Callable[[], bool], timeout_s: float) -> None:
        deadline_s = time.monotonic() + timeout_s
        while not what():
            assert time.monotonic() < deadline_s, (
                f"not within {timeout_s} s; {self.kubectl('get', 'iep,pods', '-o', 'yaml')}"
            )
            time.sleep(0.1)

    def url(self, name: str) -> str:
        self.wait_for(lambda: self.ready_reason(name) is not None, 30)
        return str(self.endpoint(name)["status"]["url"])

    def num_scale_ups(self, child: str) -> int:
        """Scale-ups of a Deployment that the API server let the gateway make."""
        entries = map(json.loads, (self.folder.plane_dir / "audit.log").read_text().splitlines())
        return sum(
            entry["verb"] == "patch"
            and entry["user"]["username"] == GATEWAY_ACCOUNT
            and entry["objectRef"].get("subresource") == "scale"
            and entry["objectRef"]["name"] == child
            and entry["responseStatus"]["code"] == 200
            for entry in entries
            if entry["stage"] == "ResponseComplete" and "objectRef" in entry
        )


@pytest.fixture(scope="module")
def local(localplane: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Local]:
    state_home = tmp_path_factory.mktemp("state")
    environ = {**os.environ, "EMBERLINE_LOCALPLANE": str(localplane), "XDG_STATE_HOME": str(state_home)}

    def command(*words: str) -> None:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "emberline_local.cli", *words, "--name", "end-to-end"],
            env=environ,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    nodes = ("name=cpu-1", "name=gpu-1,region=eu,gpu=h100:8,load=300ms,step=20ms")
    try:
        command("up", *(word for node in nodes for word in ("--node", node)), "--gateway-port", "0", "--audit-log")
        running = Local(localplane, ClusterFolder(state_home / "emberline" / "end-to-end"))
        yield running
        # As they are shipped, under their own accounts, in processes of their own.
        for account in (OPERATOR_USER, GATEWAY_ACCOUNT):
            assert lacked_rights(running.folder.plane_dir / "audit.log", account) == set()
    finally:
        command("down")


@pytest.fixture(scope="module")
def sample(local: Local) -> str:
    """The sample endpoint, asleep; its URL."""
    local.kubectl("apply", "-f", str(ROOT / "manifests" / "samples" / "smollm2.yaml"))
    return local.url("smollm2")


@pytest.fixture(scope="module")
def pretend(local: Local) -> str:
    """An endpoint on the node that pretends to have GPUs, asleep; its URL."""
    spec = {
        "model": {"source": "pvc://models/smollm2"},
        "accelerator": {"kind": "Nvidia", "count": 1},
        "placement": {"nodeSelector": {names.LABEL_TOPOLOGY_REGION: "eu"}},
        "scaling": {"minReplicas": 0, "maxReplicas": 1, "idleAfter": "3s"},
        "rollout": {"drainTimeout": "5s"},
    }
    body = {
        "apiVersion": names.API_VERSION,
        "kind": names.ENDPOINT_KIND,
        "metadata": {"name": GPU_ENDPOINT, "namespace": "default"},
        "spec": spec,
    }
    local.kubectl("apply", "-f", "-", stdin=json.dumps(body))
    return local.url(GPU_ENDPOINT)


def test_a_burst_of_twenty_wakes_a_sleeping_endpoint_once_and_all_are_answered(local: Local, sample: str) -> None:
    assert local.ready_reason("smollm2") == "ScaledToZero"
    assert local.pods("smollm2") == []

    async def burst() -> list[str]:
        async with AsyncOpenAI(base_url=sample, api_key="none", max_retries=0, timeout=150) as client:
            answers = await asyncio.gather(
                *(
                    client.chat.completions.create(
                        model="smollm2",
                        messages=[{"role": "user", "content": "What is the capital of France?"}],
                        max_tokens=8,
                        temperature=0,
                    )
                    for _ in range(20)
                )
            )
        return [answer.choices[0].message.content or "" for answer in answers]

    answers = asyncio.run(burst())
    assert len(answers) == 20
    assert all("Paris" in answer for answer in answers), Counter(answers)
    assert local.num_scale_ups("smollm2--default") == 1
    assert local.get("deployment", "smollm2--default")["spec"]["replicas"] == 1
    assert local.ready_reason("smollm2") == "Serving"


def test_a_stream_comes_in_pieces_and_says_what_it_used(local: Local, sample: str) -> None:
    with OpenAI(base_url=sample, api_key="none", max_retries=0, timeout=60) as client:
        stream = client.chat.completions.create(
            model="default/smollm2",
            messages=[{"role": "user", "content": "Count from one to five."}],
            max_tokens=24,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = list(stream)
    texts = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices and chunk.choices[0].delta.content]
    assert len(texts) > 3
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens >= len(texts)
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] in ("stop", "length")


def test_models_are_listed_asleep_or_not(local: Local, sample: str, pretend: str) -> None:
    base = sample.removesuffix("/default/smollm2/v1") + "/v1"
    with OpenAI(base_url=base, api_key="none", max_retries=0, timeout=30) as client:
        assert {"default/smollm2", f"default/{GPU_ENDPOINT}"} <= {model.id for model in client.models.list()}
        with pytest.raises(openai.NotFoundError):
            client.chat.completions.create(model="nobody", messages=[{"role": "user", "content": "?"}])


def engine_pid(address: str) -> int:
    """The engine process that serves at a pod's address."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                environ = (folder / "environ").read_bytes().split(b"\0")
                words = (folder / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue  # ended meanwhile
            if f"{names.ENV_POD_IP}={address}".encode() in environ and b"emberline_runtime" in words:
                found.append(int(folder.name))
    assert len(found) == 1, found
    return found[0]


def test_killing_the_engine_under_load_loses_no_client_silently_and_the_next_request_works(
    local: Local, pretend: str
) -> None:
    async def stream(client: AsyncOpenAI, num_tokens: int) -> str:
        """How a stream ended: its finish reason, or the error that its client was told."""
        finish = "cut"
        try:
            chunks = await client.chat.completions.create(
                model=GPU_ENDPOINT,
                messages=[{"role": "user", "content": "Go on and on."}],
                max_tokens=num_tokens,
                stream=True,
                extra_body={"ignore_eos": True},
            )
            async for chunk in chunks:
                if chunk.choices and chunk.choices[0].finish_reason:
                    finish = chunk.choices[0].finish_reason
        except openai.APIError as error:
            return f"told: {error.message}"
        return finish

    async def scenario() -> tuple[list[str], str]:
        async with AsyncOpenAI(base_url=pretend, api_key="none", max_retries=0, timeout=60) as client:
            assert await stream(client, 4) == "length"  # awake now
            (pod,) = local.pods(GPU_ENDPOINT)
            load = [asyncio.create_task(stream(client, 2000)) for _ in range(8)]
            await asyncio.sleep(1)
            os.kill(engine_pid(pod["status"]["podIP"]), signal.SIGKILL)
            ends = await asyncio.gather(*load)
            return ends, await stream(client, 4)

    ends, after = asyncio.run(scenario())
    assert all(end.startswith("told: ") for end in ends), ends
    assert after == "length"
    (pod,) = local.pods(GPU_ENDPOINT)
    (status,) = pod["status"]["containerStatuses"]
    assert status["restartCount"] == 1
    assert status["lastState"]["terminated"]["exitCode"] == 137


def test_an_idle_endpoint_goes_to_sleep_and_wakes_again(local: Local, pretend: str) -> None:
    local.wait_for(lambda: local.ready_reason(GPU_ENDPOINT) == "ScaledToZero", 40)
    local.wait_for(lambda: local.pods(GPU_ENDPOINT) == [], 30)
    with OpenAI(base_url=pretend, api_key="none", max_retries=0, timeout=60) as client:
        answer = client.completions.create(model=GPU_ENDPOINT, prompt="Again", max_tokens=4)
    assert answer.usage is not None
    assert answer.usage.completion_tokens >= 1


def test_deleting_an_endpoint_leaves_nothing_of_it(local: Local, pretend: str) -> None:
    local.kubectl("delete", "iep", GPU_ENDPOINT)
    selector = f"{names.LABEL_ENDPOINT}={GPU_ENDPOINT}"
    local.wait_for(lambda: local.get("deployments,services,configmaps,pods", "-l", selector)["items"] == [], 40)
