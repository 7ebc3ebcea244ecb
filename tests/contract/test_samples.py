"""The samples around the gateway and its metrics name what is there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from emberline_contract import metrics, names

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = ROOT / "manifests" / "samples"


def sample(path: str) -> dict[str, Any]:
    loaded = yaml.safe_load((SAMPLES / path).read_text())
    assert isinstance(loaded, dict)
    return loaded


def test_what_exposes_the_gateway_points_at_its_service() -> None:
    (path,) = sample("exposing/ingress.yaml")["spec"]["rules"][0]["http"]["paths"]
    assert path["backend"]["service"] == {"name": names.GATEWAY_NAME, "port": {"name": names.PORT_NAME_HTTP}}
    (rule,) = sample("exposing/httproute.yaml")["spec"]["rules"]
    assert rule["backendRefs"] == [{"name": names.GATEWAY_NAME, "port": names.GATEWAY_PORT}]
    for file in ("exposing/ingress.yaml", "exposing/httproute.yaml"):
        assert sample(file)["metadata"]["namespace"] == names.SYSTEM_NAMESPACE, "else the Service is out of its reach"


def test_the_autoscaler_scales_the_endpoint() -> None:
    endpoint = {"apiVersion": names.API_VERSION, "kind": names.ENDPOINT_KIND, "name": "llama"}
    assert sample("autoscalers/keda.yaml")["spec"]["scaleTargetRef"] == endpoint


def test_prometheus_queries_name_metrics_of_the_gateway() -> None:
    (trigger,) = sample("autoscalers/keda.yaml")["spec"]["triggers"]
    query = trigger["metadata"]["query"]
    assert metrics.GATEWAY_HELD in query
    assert metrics.GATEWAY_DISPATCHED in query
