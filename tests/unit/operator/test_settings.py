"""Settings, health, metrics and the API's errors."""

from __future__ import annotations

import json

import aiohttp
import pytest

from emberline_contract import http, metrics, names
from emberline_operator.cluster.api import _converted
from emberline_operator.errors import (
    ClusterError,
    ConflictError,
    NotFoundError,
    RefusedError,
    SettingsError,
    UnavailableError,
)
from emberline_operator.health import Liveness, Metrics, serve
from emberline_operator.settings import DEFAULT_PUBLIC_URL, Settings

IMAGE = {names.ENV_RUNTIME_IMAGE: "engine:1"}


def test_defaults() -> None:
    settings = Settings.from_environ(IMAGE)
    assert settings.install.runtime_image == "engine:1"
    assert settings.install.public_url == DEFAULT_PUBLIC_URL == "http://emberline-gateway.emberline-system.svc:8080"
    assert settings.host == "127.0.0.1"
    assert str(settings.admin_token_path) == names.ADMIN_TOKEN_PATH


def test_the_environment_is_read() -> None:
    settings = Settings.from_environ(
        {**IMAGE, names.ENV_PUBLIC_URL: "https://llm.example/", names.ENV_POD_IP: "10.1.2.3"}
    )
    assert settings.install.public_url == "https://llm.example"
    assert settings.host == "10.1.2.3"


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({}, "EMBERLINE_RUNTIME_IMAGE is not set; give it the engine image"),
        ({names.ENV_RUNTIME_IMAGE: ""}, "EMBERLINE_RUNTIME_IMAGE is not set"),
        (
            {**IMAGE, names.ENV_PUBLIC_URL: "llm.example"},
            "EMBERLINE_PUBLIC_URL is 'llm.example'; it must begin with http://",
        ),
    ],
)
def test_what_cannot_be_used_is_named(environ: dict[str, str], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        Settings.from_environ(environ)


def test_healthy_while_lists_succeed() -> None:
    now = [0.0]
    liveness = Liveness(lambda: now[0], list_period_s=10)
    assert not liveness.is_healthy(), "before the first list"
    liveness.on_list()
    liveness.on_event("pods")
    now[0] = 29
    assert liveness.is_healthy()
    assert liveness.report() == {"healthy": True, "last_list_age_s": 29.0, "last_event_age_s": {"pods": 29.0}}
    now[0] = 31
    assert not liveness.is_healthy()


async def test_health_and_metrics_are_served() -> None:
    now = [0.0]
    liveness, counted = Liveness(lambda: now[0], list_period_s=10), Metrics()
    counted.on_write("Deployment", "apply")
    async with serve(["127.0.0.1"], 0, liveness, counted.registry) as port, aiohttp.ClientSession() as session:
        base = f"http://127.0.0.1:{port}"
        async with session.get(f"{base}/healthz") as answer:
            assert answer.status == 503
        liveness.on_list()
        async with session.get(f"{base}/healthz") as answer:
            assert answer.status == 200
            assert (await answer.json())["healthy"] is True
        async with session.get(base + http.METRICS) as answer:
            text = await answer.text()
    assert f'{metrics.OPERATOR_WRITES}_total{{kind="Deployment",verb="apply"}} 1.0' in text


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (404, NotFoundError),
        (409, ConflictError),
        (400, RefusedError),
        (403, RefusedError),
        (422, RefusedError),
        (401, UnavailableError),
        (429, UnavailableError),
        (500, UnavailableError),
        (None, UnavailableError),
    ],
)
def test_answers_become_errors(status: int | None, kind: type[ClusterError]) -> None:
    error = _converted("GET /x", status, json.dumps({"kind": "Status", "message": "because"}))
    assert type(error) is kind
    assert str(error) == "GET /x: because"
    assert _converted("GET /x", status, "plain text ").message == "plain text"
    assert _converted("GET /x", 500, "").message == "HTTP 500"
    assert _converted("GET /x", 500, "[1]").message == "[1]"
