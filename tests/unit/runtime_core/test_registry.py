"""The choice of an executor and the reasons of those refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from emberline_contract.engine_config import EngineConfig
from emberline_contract.names import ENV_EXECUTOR, ENV_ORACLE_LOAD_S, ENV_ORACLE_STEP_S
from emberline_runtime.executors.base import Executor
from emberline_runtime.executors.oracle import OracleExecutor
from emberline_runtime.executors.registry import Entry, Environ, NoExecutorError, select

CONFIG = EngineConfig(served_names=("m",))
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "vocab_size": 100,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 256,
    "tie_word_embeddings": True,
}


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    return tmp_path


def make_oracle(environ: Environ) -> Executor:
    return OracleExecutor()


def entry(name: str, reasons: list[str], *, is_automatic: bool = True) -> Entry:
    return Entry(name, lambda model, config: reasons, make_oracle, is_automatic=is_automatic, needs_spec=False)


def test_auto_takes_the_first_that_can_and_keeps_the_reasons_of_the_others(tmp_path: Path) -> None:
    entries = (
        entry("a", ["no cuda", "no triton"]),
        entry("hidden", [], is_automatic=False),
        entry("b", []),
        entry("c", []),
    )
    selection = select(CONFIG, tmp_path, {}, entries)
    assert selection.name == "b"
    assert selection.refused == {"a": ["no cuda", "no triton"]}


def test_none_that_can_serve_is_an_error_with_all_reasons(tmp_path: Path) -> None:
    with pytest.raises(NoExecutorError, match="a: no cuda, no triton; b: no torch"):
        select(CONFIG, tmp_path, {}, (entry("a", ["no cuda", "no triton"]), entry("b", ["no torch"])))


def test_a_name_is_taken_at_its_word_and_the_environment_before_the_configuration(tmp_path: Path) -> None:
    entries = (entry("torch", []), entry("oracle", ["tired"], is_automatic=False))
    with pytest.raises(NoExecutorError, match="oracle: tired"):
        select(CONFIG.model_copy(update={"executor": "oracle"}), tmp_path, {}, entries)
    with pytest.raises(NoExecutorError, match="oracle: tired"):
        select(CONFIG, tmp_path, {ENV_EXECUTOR: "oracle"}, entries)
    config = CONFIG.model_copy(update={"executor": "oracle"})
    assert select(config, tmp_path, {ENV_EXECUTOR: "torch"}, entries).name == "torch"
    assert select(config, tmp_path, {ENV_EXECUTOR: "auto"}, entries).name == "torch"
    with pytest.raises(NoExecutorError, match="no executor 'tpu'; choose one of auto, torch, oracle"):
        select(CONFIG, tmp_path, {ENV_EXECUTOR: "tpu"}, entries)


def test_a_llama_folder_is_served_by_torch_with_its_spec(llama: Path) -> None:
    selection = select(CONFIG, llama, {})
    assert selection.name == "torch"
    assert selection.model.spec is not None
    assert selection.model.spec.vocab == 100
    assert selection.model.path == llama


@pytest.mark.parametrize(
    ("change", "reason"),
    [({"architectures": ["MambaForCausalLM"]}, "MambaForCausalLM"), ({"hidden_act": "gelu"}, "activation")],
)
def test_what_torch_cannot_serve_is_said(llama: Path, change: dict[str, object], reason: str) -> None:
    (llama / "config.json").write_text(json.dumps({**LLAMA, **change}))
    with pytest.raises(NoExecutorError, match=reason):
        select(CONFIG, llama, {})


def test_a_folder_without_a_model_is_said_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(NoExecutorError, match=r"torch: .*config\.json"):
        select(CONFIG, tmp_path, {})


def test_the_oracle_needs_no_model_and_is_never_chosen_unasked(tmp_path: Path) -> None:
    selection = select(CONFIG, tmp_path, {ENV_EXECUTOR: "oracle", ENV_ORACLE_LOAD_S: "0.5", ENV_ORACLE_STEP_S: ""})
    assert isinstance(selection.make(), OracleExecutor)


@pytest.mark.parametrize("value", ["soon", "-1", "nan", "1e9"])
def test_a_wrong_pace_is_said(tmp_path: Path, value: str) -> None:
    selection = select(CONFIG, tmp_path, {ENV_EXECUTOR: "oracle", ENV_ORACLE_STEP_S: value})
    with pytest.raises(NoExecutorError, match=f"{ENV_ORACLE_STEP_S} is '{value}'"):
        selection.make()


def test_choosing_imports_nothing_heavy(llama: Path) -> None:
    script = f"""
import sys
from pathlib import Path
from emberline_contract.engine_config import EngineConfig
from emberline_runtime.executors.registry import select
assert select(EngineConfig(served_names=("m",)), Path({str(llama)!r}), {{}}).name == "torch"
assert select(EngineConfig(served_names=("m",), executor="oracle"), Path({str(llama)!r}), {{}}).make()
print([name for name in ("torch", "numpy", "transformers") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
