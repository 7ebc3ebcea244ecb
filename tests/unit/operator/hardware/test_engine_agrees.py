"""The operator's table of what the engine loads, held against the engine: a choice that the engine refuses would be a lie."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from emberline_contract.engine_config import EngineConfig, Quantization
from emberline_operator.hardware.known_models import Stored
from emberline_operator.hardware.precision import ENGINE_LOADS_STORED, ENGINE_QUANTISES_TO
from emberline_runtime.executors.torch.refusals import refusals
from emberline_runtime.models.config_fields import ConfigFields
from emberline_runtime.models.errors import ModelConfigError
from emberline_runtime.models.stored_weights import read_stored_weights


@pytest.mark.parametrize("quantization", get_args(Quantization))
def test_what_it_quantises_to(quantization: Quantization) -> None:
    said = refusals(None, EngineConfig(served_names=("m",), quantization=quantization))
    assert any("quantization" in reason for reason in said) != (quantization in ENGINE_QUANTISES_TO)


def eight_bits(kind: str) -> dict[str, Any]:
    weights = {"num_bits": 8, "type": kind, "strategy": "channel", "symmetric": True}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": weights}}}


CHECKPOINTS: dict[Stored, dict[str, Any] | None] = {
    "None": None,
    "FP8": eight_bits("float"),
    "INT8": eight_bits("int"),
    "AWQ": {"quant_method": "awq", "bits": 4, "group_size": 128},
    "GPTQ": {"quant_method": "gptq", "bits": 4, "group_size": 128},
    "FP4": {"quant_method": "mxfp4"},
}


@pytest.mark.parametrize("stored", get_args(Stored))
def test_which_checkpoints_it_reads(stored: Stored) -> None:
    said = CHECKPOINTS[stored]
    config = ConfigFields({} if said is None else {"quantization_config": said})
    try:
        read_stored_weights(config)
        reads = True
    except ModelConfigError:
        reads = False
    assert reads == (stored in ENGINE_LOADS_STORED)
