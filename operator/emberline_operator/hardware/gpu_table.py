"""What is known of GPUs: what each compute capability can do, and which products there are. The one home of both tables.

Nothing is ever decided by a product's name alone: a name gives compute capability and memory where labels do not.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, Literal

from emberline_contract.engine_config import Dtype
from emberline_operator.choice import Expression, Term

Vendor = Literal["Nvidia", "Amd"]
Compute = tuple[int, int] | str
"""CUDA compute capability, or AMD's architecture such as `gfx942`."""

# Labels of NVIDIA's GPU feature discovery. Those of a resource begin with its name: `nvidia.com/mig-1g.10gb.memory`.
MAJOR: Final = "nvidia.com/gpu.compute.major"
MINOR: Final = "nvidia.com/gpu.compute.minor"
PRODUCT: Final = "nvidia.com/gpu.product"
AMD_PRODUCT: Final = "amd.com/gpu.product-name"
AMD_BETA_PRODUCT: Final = "beta.amd.com/gpu.product-name"
GKE_ACCELERATOR: Final = "cloud.google.com/gke-accelerator"
"""Google's nodes carry it from the first moment, with or without GPU feature discovery."""


@dataclass(frozen=True, slots=True)
class Generation:
    """GPUs that can do the same, and how nodes with them are told by number."""

    name: str
    half: Dtype
    """The 16-bit type that they are made for."""
    fp8: bool = False
    """Multiplies in fp8."""
    fp8_weights: bool = False
    """Can hold weights in fp8 and compute in 16 bits."""
    int8: bool = False
    """Has int8 kernels worth using."""
    awq: bool = False
    gptq: bool = False
    """Can use 4-bit checkpoints of that kind."""
    terms: tuple[Term, ...] = ()
    """Node labels that tell it; none for AMD, whose labels have no architecture."""
    note: str = ""
    """What a reader of the choice should know besides."""


def _major(operator: Literal["In", "Gt", "Lt"], value: int) -> Expression:
    return Expression(MAJOR, operator, (str(value),))


def _minor(operator: Literal["In", "Gt", "Lt"], value: int) -> Expression:
    return Expression(MINOR, operator, (str(value),))


OLD = Generation("compute capability below 7.0", "fp16", terms=((_major("Lt", 7),),))
VOLTA = Generation("compute capability 7.0", "fp16", gptq=True, terms=((_major("In", 7), _minor("Lt", 5)),))
TURING = Generation(
    "compute capability 7.5", "fp16", fp8_weights=True, int8=True, awq=True, gptq=True,
    terms=((_major("In", 7), _minor("Gt", 4)),),
)  # fmt: skip
AMPERE = Generation(
    "compute capability 8.0 to 8.8", "bf16", fp8_weights=True, int8=True, awq=True, gptq=True,
    terms=((_major("In", 8), _minor("Lt", 9)),),
)  # fmt: skip
ADA_AND_HOPPER = Generation(
    "compute capability 8.9 to 9.x", "bf16", fp8=True, fp8_weights=True, int8=True, awq=True, gptq=True,
    terms=((_major("In", 8), _minor("Gt", 8)), (_major("In", 9),)),
)  # fmt: skip
BLACKWELL = Generation(
    "compute capability 10.0 and newer", "bf16", fp8=True, fp8_weights=True, awq=True, gptq=True,
    terms=((_major("Gt", 9),),),
)  # fmt: skip
CDNA2 = Generation("gfx90a", "bf16", int8=True, awq=True, gptq=True)
CDNA3 = Generation(
    "gfx942", "bf16", fp8=True, int8=True, awq=True, gptq=True,
    note="its fp8 is e4m3 fnuz, whose largest value is 240: weights are scaled to it",
)  # fmt: skip
CDNA4 = Generation("gfx950", "bf16", fp8=True, int8=True, awq=True, gptq=True)
UNKNOWN = Generation(
    "unknown compute capability",
    "fp16",
    note="its compute capability is not known, so nothing but fp16 is taken for granted; see docs/gpus.md for how to tell it",
)

_AMD: Final = {"gfx90a": CDNA2, "gfx942": CDNA3, "gfx950": CDNA4}


def generation_of(compute: Compute | None) -> Generation:
    """What a compute capability can do, by its numbers; never by a family's or product's name."""
    match compute:
        case None:
            return UNKNOWN
        case str():
            return _AMD.get(compute, UNKNOWN)
        case (major, minor):
            starts = (
                ((10, 0), BLACKWELL),
                ((8, 9), ADA_AND_HOPPER),
                ((8, 0), AMPERE),
                ((7, 5), TURING),
                ((7, 0), VOLTA),
            )
            return next((generation for first, generation in starts if (major, minor) >= first), OLD)


def parse_compute(text: str) -> Compute:
    """`9.0` or `gfx942`. Raises ValueError with the text and an example."""
    major, dot, minor = text.partition(".")
    if dot and major.isdecimal() and minor.isdecimal():
        return int(major), int(minor)
    if text.startswith("gfx") and text[3:].isalnum():
        return text
    raise ValueError(f"{text!r} is no compute capability; write it like 9.0, or gfx942 for AMD")


SIZES: Final = (
    (5, 4.0, 5.5), (6, 5.5, 7.0), (8, 7.0, 9.0), (10, 9.0, 11.0), (12, 11.0, 14.0), (16, 14.0, 18.0), (20, 18.0, 22.0),
    (24, 22.0, 28.0), (32, 28.0, 36.0), (40, 36.0, 44.0), (48, 44.0, 56.0), (64, 56.0, 76.0), (80, 76.0, 88.0),
    (96, 88.0, 120.0), (141, 120.0, 160.0), (192, 160.0, 220.0), (288, 220.0, 400.0),
)  # fmt: skip
"""Sizes that GPUs are sold in, in GB, and the GiB from and below which a label means that size. Bounds lie where no product does:
drivers report a little less than what is sold, and not always the same."""


@dataclass(frozen=True, slots=True)
class Size:
    """GPUs sold with the same memory."""

    name: str
    low_mib: int
    """A GPU of this size has at least so much."""
    high_mib: int
    """And less than so much."""


def size_of(memory_bytes: int) -> Size:
    """The size that a memory belongs to."""
    gib = memory_bytes / 2**30
    for gb, low, high in SIZES:
        if low <= gib < high:
            return Size(f"{gb} GB", int(low * 1024), int(high * 1024))
    if gib < SIZES[0][1]:
        return Size("under 5 GB", 0, int(SIZES[0][1] * 1024))
    return Size("over 288 GB", int(SIZES[-1][2] * 1024), 2**31 - 1)


@dataclass(frozen=True, slots=True)
class GpuModel:
    """A GPU as it is sold."""

    name: str
    """Short name, for `accelerator.types`."""
    compute: Compute
    memory_mib: int
    """The least that drivers report, as labels say it."""
    bandwidth_gb_s: int
    """Of its memory; decides between GPUs that do equally well otherwise. 0: not known."""
    products: tuple[str, ...]
    """Values of the product label, as seen on nodes."""
    also: tuple[str, ...] = ()
    """Wider short names."""
    gke: tuple[str, ...] = ()
    """Values of Google's label."""
    vendor: Vendor = "Nvidia"

    @property
    def memory_bytes(self) -> int:
        """`memory_mib` in bytes."""
        return self.memory_mib * 2**20

    @property
    def names(self) -> tuple[str, ...]:
        """All words of `accelerator.types` that mean it."""
        return (self.name, *self.also, *(type_word(product) for product in self.products))


def type_word(product: str) -> str:
    """A product label's value as a word of `accelerator.types`."""
    return product.lower().replace("_", "-")


MODELS: Final = (
    GpuModel("v100-16", (7, 0), 16_130, 900, ("Tesla-V100-SXM2-16GB", "Tesla-V100-PCIE-16GB"), ("v100",), ("nvidia-tesla-v100",)),
    GpuModel("v100-32", (7, 0), 32_480, 900, ("Tesla-V100-SXM2-32GB", "Tesla-V100-PCIE-32GB"), ("v100",)),
    GpuModel("t4", (7, 5), 15_109, 320, ("Tesla-T4",), gke=("nvidia-tesla-t4",)),
    GpuModel("a10", (8, 6), 22_731, 600, ("NVIDIA-A10",)),
    GpuModel("a10g", (8, 6), 22_731, 600, ("NVIDIA-A10G",)),
    GpuModel("a40", (8, 6), 45_634, 696, ("NVIDIA-A40",)),
    GpuModel("rtx-a6000", (8, 6), 48_685, 768, ("NVIDIA-RTX-A6000",)),
    GpuModel("a100-40", (8, 0), 40_536, 1_555, ("NVIDIA-A100-SXM4-40GB", "NVIDIA-A100-PCIE-40GB"), ("a100",), ("nvidia-tesla-a100",)),
    GpuModel("a100-80", (8, 0), 81_037, 1_935, ("NVIDIA-A100-SXM4-80GB", "NVIDIA-A100-80GB-PCIe"), ("a100",), ("nvidia-a100-80gb",)),
    GpuModel("l4", (8, 9), 22_731, 300, ("NVIDIA-L4",), gke=("nvidia-l4",)),
    GpuModel("l40", (8, 9), 45_634, 864, ("NVIDIA-L40",)),
    GpuModel("l40s", (8, 9), 45_634, 864, ("NVIDIA-L40S",)),
    GpuModel("rtx-6000-ada", (8, 9), 48_685, 960, ("NVIDIA-RTX-6000-Ada-Generation",)),
    GpuModel("rtx-4090", (8, 9), 24_210, 1_008, ("NVIDIA-GeForce-RTX-4090",), ("rtx4090",)),
    GpuModel("h100", (9, 0), 81_037, 2_000, ("NVIDIA-H100-80GB-HBM3", "NVIDIA-H100-PCIe"), gke=("nvidia-h100-80gb", "nvidia-h100-mega-80gb")),
    GpuModel("h100-nvl", (9, 0), 95_000, 3_900, ("NVIDIA-H100-NVL",), ("h100",)),
    GpuModel("h200", (9, 0), 143_000, 4_800, ("NVIDIA-H200", "NVIDIA-H200-NVL"), gke=("nvidia-h200-141gb",)),
    GpuModel("gh200", (9, 0), 97_000, 4_000, ("NVIDIA-GH200-480GB",)),
    GpuModel("b200", (10, 0), 182_000, 8_000, ("NVIDIA-B200",), gke=("nvidia-b200",)),
    GpuModel("gb200", (10, 0), 188_000, 8_000, ("NVIDIA-GB200",), gke=("nvidia-gb200",)),
    GpuModel("b300", (10, 3), 274_000, 8_000, ("NVIDIA-B300-SXM6-AC",)),
    GpuModel("gb300", (10, 3), 277_000, 8_000, ("NVIDIA-GB300",)),
    GpuModel("rtx-5090", (12, 0), 32_100, 1_792, ("NVIDIA-GeForce-RTX-5090",), ("rtx5090",)),
    GpuModel("rtx-pro-6000", (12, 0), 97_000, 1_597,
             ("NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition", "NVIDIA-RTX-PRO-6000-Blackwell-Workstation-Edition"),
             gke=("nvidia-rtx-pro-6000",)),
    GpuModel("mi300x", "gfx942", 196_000, 5_300, ("AMD_Instinct_MI300X_OAM", "AMD_Instinct_MI300X"), vendor="Amd"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class GpuLabels:
    """What the file of `EMBERLINE_GPU_TABLE` adds to the table."""

    models: tuple[GpuModel, ...] = ()
    labels: tuple[tuple[str, str, str], ...] = ()
    """Label key, its value, and the short name of the GPU that it means."""


@dataclass(frozen=True, slots=True)
class GpuTable:
    """The GPUs that are known, and the label values that tell them."""

    models: Mapping[str, GpuModel]
    """By short name."""
    labels: Mapping[str, Mapping[str, GpuModel]] = field(default_factory=dict)
    """Label key -> value -> GPU. Keys of the user come first, then the vendors', then Google's."""

    def named(self, word: str) -> tuple[GpuModel, ...]:
        """The GPUs that a word of `accelerator.types` means; empty if it is not known."""
        return tuple(model for model in self.models.values() if word in model.names)

    def values(self, key: str, models: tuple[GpuModel, ...]) -> tuple[str, ...]:
        """Values of a label that mean one of these GPUs, sorted."""
        return tuple(sorted(value for value, model in self.labels.get(key, {}).items() if model in models))


@lru_cache(maxsize=8)
def make_table(own: GpuLabels = GpuLabels()) -> GpuTable:
    """The table with what the user's file adds. Raises ValueError if a label means a GPU that is not in it."""
    models = {model.name: model for model in (*MODELS, *own.models)}
    labels: dict[str, dict[str, GpuModel]] = {}
    for key, value, name in own.labels:
        if name not in models:
            close = difflib.get_close_matches(name, models)
            meant = f"; did you mean {close[0]}?" if close else f"; there are {', '.join(models)}"
            raise ValueError(f"labels.{key}.{value}: {name!r} is neither in `gpus` nor a GPU that is known{meant}")
        labels.setdefault(key, {})[value] = models[name]
    for model in models.values():
        keys = (PRODUCT,) if model.vendor == "Nvidia" else (AMD_PRODUCT, AMD_BETA_PRODUCT)
        for key in keys:
            labels.setdefault(key, {}).update(dict.fromkeys(model.products, model))
    for model in models.values():
        labels.setdefault(GKE_ACCELERATOR, {}).update(dict.fromkeys(model.gke, model))
    return GpuTable(models, labels)
