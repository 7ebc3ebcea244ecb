"""Each process exposes exactly the metrics that the contract names for it, as the kind that it says."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from emberline_contract import metrics
from emberline_gateway.measures import Measures
from emberline_operator.health import Metrics as OperatorMetrics
from emberline_runtime.server.metrics import Metrics as EngineMetrics

REGISTRIES = {
    "Engine": EngineMetrics("m").registry,
    "Gateway": Measures().registry,
    "Operator": OperatorMetrics().registry,
}


@pytest.mark.parametrize("process", REGISTRIES)
def test_a_process_exposes_its_metrics(process: str) -> None:
    spec = importlib.util.spec_from_file_location("gen", Path(__file__).parents[2] / "scripts" / "gen.py")
    assert spec is not None
    assert spec.loader is not None
    gen = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(gen)
    expected = {
        entry.value.removesuffix("_total"): entry.doc.split()[0].rstrip(":;,").lower()
        for entry in gen.documented(metrics)
        if entry.section.startswith(process)
    }
    assert exposed(REGISTRIES[process]) == expected


def exposed(registry: CollectorRegistry) -> dict[str, str]:
    return {family.name.removesuffix("_total"): family.type for family in registry.collect()}
