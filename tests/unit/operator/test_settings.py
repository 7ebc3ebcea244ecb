"""Settings and the API's errors."""

from __future__ import annotations

import json

import pytest

from emberline_contract import names
from emberline_operator.cluster.api import _converted
from emberline_operator.errors import (
    ClusterError,
    ConflictError,
    NotFoundError,
    RefusedError,
    SettingsError,
    UnavailableError,
)
from emberline_operator.settings import DEFAULT_PUBLIC_URL, LeaseTimes, Settings

IMAGE = {names.ENV_RUNTIME_IMAGE: "engine:1"}


def test_defaults() -> None:
    settings = Settings.from_environ(IMAGE)
    assert settings.install.runtime_image == "engine:1"
    assert settings.install.public_url == DEFAULT_PUBLIC_URL == "http://emberline-gateway.emberline-system.svc:8080"
    assert settings.host == "127.0.0.1"
    assert str(settings.admin_token_path) == names.ADMIN_TOKEN_PATH
    assert settings.pod_name == names.OPERATOR_NAME
    assert settings.watch_namespaces == (), "all"
    assert settings.lease == LeaseTimes(duration_s=15, renew_deadline_s=10, retry_s=2, request_timeout_s=3, drain_s=10)


def test_the_environment_is_read() -> None:
    settings = Settings.from_environ(
        {
            **IMAGE,
            names.ENV_PUBLIC_URL: "https://llm.example/",
            names.ENV_POD_IP: "10.1.2.3",
            names.ENV_POD_NAME: "operator-1",
            names.ENV_WATCH_NAMESPACES: "team-b, team-a,team-b",
        }
    )
    assert settings.pod_name == "operator-1"
    assert settings.watch_namespaces == ("team-b", "team-a")
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
        (
            {**IMAGE, names.ENV_WATCH_NAMESPACES: "team,"},
            "EMBERLINE_WATCH_NAMESPACES has the namespace ''; write names of",
        ),
        ({**IMAGE, names.ENV_WATCH_NAMESPACES: "Team"}, "has the namespace 'Team'"),
        ({**IMAGE, names.ENV_WATCH_NAMESPACES: "a" * 64}, "at most 63 lower-case letters"),
    ],
)
def test_what_cannot_be_used_is_named(environ: dict[str, str], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        Settings.from_environ(environ)


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
