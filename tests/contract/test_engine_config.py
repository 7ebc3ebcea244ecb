"""EngineConfig survives its file, whatever it says; what it cannot mean is refused by name."""

from __future__ import annotations

import json
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from emberline_contract.engine_config import (
    Device,
    Dtype,
    EngineConfig,
    EngineOptions,
    ExecutorName,
    KvCacheDtype,
    Quantization,
)

quantities = st.builds(
    lambda number, suffix: f"{number}{suffix}",
    st.integers(0, 10**9),
    st.sampled_from(["", "k", "M", "G", "T", "Ki", "Mi", "Gi", "Ti"]),
)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "max_model_len": st.none() | st.integers(16, 1_048_576),
    "max_batch_tokens": st.integers(16, 65_536),
    "max_sequences": st.integers(1, 1024),
    "max_queued_requests": st.integers(0, 100_000),
    "kv_cache": st.none() | quantities,
    "prefix_caching": st.booleans(),
    "model_path": st.text(min_size=1, max_size=50),
    "served_names": st.lists(st.text(min_size=1, max_size=20), min_size=1, max_size=4).map(tuple),
    "executor": st.sampled_from(get_args(ExecutorName)),
    "device": st.sampled_from(get_args(Device)),
    "dtype": st.sampled_from(get_args(Dtype)),
    "quantization": st.none() | st.sampled_from(get_args(Quantization)),
    "kv_cache_dtype": st.sampled_from(get_args(KvCacheDtype)),
    "drain_timeout_s": st.floats(0, 3600),
}
configs = st.fixed_dictionaries(VALUES).map(EngineConfig.model_validate)


def test_the_strategy_knows_every_field() -> None:
    assert VALUES.keys() == EngineConfig.model_fields.keys()
    assert set(EngineOptions.model_fields) < VALUES.keys()


@given(configs)
def test_parse_of_render_is_the_same(config: EngineConfig) -> None:
    assert EngineConfig.model_validate_json(config.to_json()) == config


@given(configs)
def test_equal_configurations_have_equal_bytes(config: EngineConfig) -> None:
    assert EngineConfig.model_validate_json(config.to_json()).to_json() == config.to_json()
    keys = list(json.loads(config.to_json()))
    assert keys == sorted(keys)
    assert not any("_" in key for key in keys)


def test_a_default_is_left_out() -> None:
    """So that an engine of an older release takes a newer operator's file, as long as nothing new is asked of it."""
    assert json.loads(EngineConfig(served_names=("m",), dtype="bf16", kv_cache_dtype="auto").to_json()) == {
        "servedNames": ["m"]
    }


def test_bytes_of_the_kv_cache() -> None:
    assert EngineConfig(served_names=("m",), kv_cache="2Gi").kv_cache_bytes == 2 << 30
    assert EngineConfig(served_names=("m",)).kv_cache_bytes is None


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"maxBatchTokns": 1}, "maxBatchTokns"),
        ({"maxModelLen": 15}, "maxModelLen"),
        ({"maxBatchTokens": 65_537}, "maxBatchTokens"),
        ({"maxSequences": 0}, "maxSequences"),
        ({"maxQueuedRequests": -1}, "maxQueuedRequests"),
        ({"kvCache": "2 GB"}, "kvCache"),
        ({"servedNames": []}, "servedNames"),
        ({"servedNames": [""]}, "servedNames: a name is empty"),
        ({"executor": "onnx"}, "executor"),
        ({"device": "tpu"}, "device"),
        ({"dtype": "int3"}, "dtype"),
        ({"quantization": "int2"}, "quantization"),
        ({"kvCacheDtype": "fp16"}, "kvCacheDtype"),
        ({"drainTimeoutS": 3601}, "drainTimeoutS"),
        ({"modelPath": ""}, "modelPath"),
    ],
)
def test_what_it_cannot_mean_is_refused_by_name(change: dict[str, Any], names: str) -> None:
    with pytest.raises(ValidationError, match=names):
        EngineConfig.model_validate({"servedNames": ["m"]} | change)


def test_it_cannot_be_changed() -> None:
    config = EngineConfig(served_names=("m",))
    with pytest.raises(ValidationError, match="frozen"):
        config.max_sequences = 1  # type: ignore[misc]
