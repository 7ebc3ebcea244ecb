"""Whether the tensors found are exactly the model's parameters."""

from __future__ import annotations

import mmap
from collections.abc import Mapping, Sequence

from emberline_runtime.models.errors import WeightsError
from emberline_runtime.models.parameters import ModelParameters
from emberline_runtime.weights.safetensors_file import StoredTensor

_NUM_NAMED = 8


def check_parameters(parameters: ModelParameters, found: Mapping[str, StoredTensor]) -> None:
    """Refuse, by name, a parameter that is missing, has another shape, or is left over.

    A tied model's checkpoint may hold the output projection too, if it equals the embedding bit for bit.
    """
    required = {parameter.name: parameter for parameter in parameters.required()}
    missing = sorted(required.keys() - found.keys())
    if missing:
        raise WeightsError(
            f"{_named(missing)} missing from the weight files; the checkpoint is incomplete or is not the one that "
            "config.json describes"
        )
    for name, parameter in required.items():
        if found[name].shape != parameter.shape:
            raise WeightsError(
                f"parameter {name!r} has shape {list(found[name].shape)} in the file and {list(parameter.shape)} by "
                "config.json; the two are of different models"
            )
    left_over = sorted(
        name for name in found.keys() - required.keys() if not name.endswith(parameters.ignored_suffixes)
    )
    if parameters.tied and parameters.head.name in left_over:
        if not _equal_bytes(found[parameters.head.name], found[parameters.embedding.name]):
            raise WeightsError(
                f"config.json says tie_word_embeddings, but parameter {parameters.head.name!r} differs from "
                f"{parameters.embedding.name!r}; set tie_word_embeddings to false if the file is right"
            )
        left_over.remove(parameters.head.name)
    if left_over:
        raise WeightsError(
            f"{_named(left_over)} left over: the weight files hold what the architecture does not use, so config.json "
            "and weights are of different models"
        )


def _named(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:_NUM_NAMED])
    more = f" and {len(names) - _NUM_NAMED} more" if len(names) > _NUM_NAMED else ""
    return f"parameter {shown} is" if len(names) == 1 else f"parameters {shown}{more} are"


def _equal_bytes(a: StoredTensor, b: StoredTensor) -> bool:
    if (a.dtype, a.num_bytes) != (b.dtype, b.num_bytes):
        return False
    with (
        a.path.open("rb") as file_a,
        b.path.open("rb") as file_b,
        mmap.mmap(file_a.fileno(), 0, access=mmap.ACCESS_READ) as map_a,
        mmap.mmap(file_b.fileno(), 0, access=mmap.ACCESS_READ) as map_b,
        memoryview(map_a) as view_a,
        memoryview(map_b) as view_b,
    ):
        return view_a[a.offset : a.offset + a.num_bytes] == view_b[b.offset : b.offset + b.num_bytes]
