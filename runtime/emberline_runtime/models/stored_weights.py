"""What a checkpoint that is quantised already says of itself in config.json: `quantization_config`.

Two ways of writing are read, both with eight bits and one scale an output channel or a matrix: that of compressed-tensors, and
the older one whose quant_method is fp8. Which matrices are so is told by their own types in the files.
"""

from __future__ import annotations

from typing import Literal

from emberline_runtime.models.config_fields import ConfigFields
from emberline_runtime.models.errors import ModelConfigError

StoredWeights = Literal["fp8", "int8"]

FIELD = "quantization_config"
WEIGHT = ".weight"
WEIGHT_SCALE = ".weight_scale"
"""In place of a weight's ending: the name of its scales."""
UNUSED_SCALES = (".input_scale", ".k_scale", ".v_scale")
"""Of activations, for which each token has its own scale here, and of the KV cache, whose scale is 1."""

_REMEDY = (
    "served are fp8 and int8 weights with one scale an output channel or a matrix; use such a checkpoint, or the 16-bit one of "
    "the model and set quantization"
)
_STRATEGIES = ("channel", "tensor")


def read_stored_weights(config: ConfigFields) -> StoredWeights | None:
    """How the linear layers' weights are stored; None if in 16 bits or more. ModelConfigError if it is not read."""
    if not config.has(FIELD):
        return None
    fields = config.nested(FIELD)
    match method := fields.text("quant_method"):
        case "compressed-tensors":
            return _read_compressed_tensors(fields)
        case "fp8":
            if fields.has("weight_block_size"):
                raise _refused("weight_block_size", "is set: scales by block are not computed")
            return "fp8"
        case _:
            raise _refused("quant_method", f"is {method!r}")


def _read_compressed_tensors(fields: ConfigFields) -> StoredWeights:
    groups = fields.nested("config_groups")
    found = {_read_group(groups.nested(name).nested("weights"), f"config_groups.{name}") for name in groups.names()}
    if len(found) != 1:
        raise _refused("config_groups", f"has {len(found)} kinds of weights, not one")
    return found.pop()


def _read_group(weights: ConfigFields, where: str) -> StoredWeights:
    kind, num_bits = weights.text("type"), weights.count("num_bits")
    if num_bits != 8 or kind not in ("float", "int"):
        raise _refused(where, f"has weights of type {kind!r} with {num_bits} bits")
    strategy = weights.text("strategy")
    if strategy not in _STRATEGIES or not weights.flag("symmetric", default=True):
        raise _refused(where, f"has weights with scales by {strategy!r} or a zero point")
    return "fp8" if kind == "float" else "int8"


def _refused(field: str, what: str) -> ModelConfigError:
    return ModelConfigError(f"config.json: {FIELD}.{field} {what}; {_REMEDY}")
