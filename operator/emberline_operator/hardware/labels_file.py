"""The file that `EMBERLINE_GPU_TABLE` names: GPUs that the table lacks, and labels that tell GPUs in this cluster."""

from __future__ import annotations

import json
from typing import Annotated

from pydantic import Field, ValidationError

from emberline_contract.model import ContractModel
from emberline_contract.schema import GpuType, LabelValue, Quantity, ShortString
from emberline_operator.hardware.gpu_table import GpuLabels, GpuModel, make_table, parse_compute
from emberline_operator.hardware.sizes import memory_quantity_bytes


class OwnGpu(ContractModel):
    """A GPU that the table lacks."""

    name: GpuType
    """Short name, for `accelerator.types`."""
    compute_capability: Annotated[str, Field(pattern=r"^([0-9]+\.[0-9]+|gfx[0-9a-f]+)$")]
    """Such as `9.0`, or `gfx942` for AMD."""
    memory: Quantity
    """Of one GPU, such as `80Gi`."""
    products: tuple[LabelValue, ...] = ()
    """Values of `nvidia.com/gpu.product` or `amd.com/gpu.product-name`."""


class LabelsFile(ContractModel):
    """The whole file."""

    gpus: tuple[OwnGpu, ...] = ()
    """GPUs that the table lacks."""
    labels: dict[ShortString, dict[LabelValue, GpuType]] = Field(default_factory=dict)
    """Node label -> value -> short name of the GPU that it means."""


def parse_gpu_labels(text: str) -> GpuLabels:
    """What the file adds to the table. Raises ValueError with the place in the file, what is wrong and the remedy."""
    try:
        file = LabelsFile.model_validate(json.loads(text))
    except json.JSONDecodeError as error:
        raise ValueError(f"is no JSON: {error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "the file"
        raise ValueError(f"{place}: {first['msg']}; see docs/gpus.md for its form") from None
    own = GpuLabels(
        models=tuple(_model(gpu) for gpu in file.gpus),
        labels=tuple((key, value, name) for key, values in file.labels.items() for value, name in values.items()),
    )
    make_table(own)
    return own


def _model(gpu: OwnGpu) -> GpuModel:
    compute = parse_compute(gpu.compute_capability)
    return GpuModel(
        name=gpu.name,
        compute=compute,
        memory_mib=memory_quantity_bytes(gpu.memory) // 2**20,
        bandwidth_gb_s=0,
        products=gpu.products,
        vendor="Amd" if isinstance(compute, str) else "Nvidia",
    )
