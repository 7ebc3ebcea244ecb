"""What is generated is committed, and says something about everything."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from emberline_contract import conditions, metrics
from emberline_contract.conditions import ConditionType, Reason
from emberline_contract.engine_config import EngineConfig

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def gen() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gen", ROOT / "scripts" / "gen.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_nothing_is_stale(gen: ModuleType) -> None:
    assert gen.stale(ROOT) == [], "run `make gen` and commit the result"


def test_a_changed_a_missing_and_a_left_over_file_are_stale(gen: ModuleType, tmp_path: Path) -> None:
    for path, content in gen.generated().items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(content)
    assert gen.stale(tmp_path) == []
    (tmp_path / "docs/reference/metrics.md").write_text("by hand")
    (tmp_path / "docs/reference/conditions.md").unlink()
    (tmp_path / "crds/old.yaml").write_text("")
    assert gen.stale(tmp_path) == ["crds/old.yaml", "docs/reference/conditions.md", "docs/reference/metrics.md"]


def test_every_condition_and_reason_is_documented(gen: ModuleType) -> None:
    documented = {(entry.owner, entry.value): entry.doc for entry in gen.documented(conditions)}
    for member in (*ConditionType, *Reason):
        assert documented[type(member).__name__, member.value].endswith("."), member


def test_every_metric_is_documented_with_its_kind(gen: ModuleType) -> None:
    entries = list(gen.documented(metrics))
    constants = {value for name, value in vars(metrics).items() if name.isupper() and isinstance(value, str)}
    assert {entry.value for entry in entries} == constants
    for entry in entries:
        assert entry.doc.startswith(("Gauge", "Counter", "Histogram")), entry
        assert entry.section, entry


def test_every_engine_field_is_on_its_page(gen: ModuleType) -> None:
    page = gen.generated()["docs/reference/engine-config.md"]
    for name, field in EngineConfig.model_fields.items():
        assert f"| `{field.alias or name}` |" in page
        assert field.description
        assert " ".join(field.description.split()) in page
