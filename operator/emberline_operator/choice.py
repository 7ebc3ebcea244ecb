"""What was chosen for an endpoint in one region: the GPUs, the precision, and the node affinity that follows from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from emberline_contract.conditions import Reason
from emberline_contract.engine_config import Dtype, KvCacheDtype, Quantization

Format = Literal["bf16", "fp16", "fp32", "fp8", "int8", "int4"]


@dataclass(frozen=True, slots=True)
class Expression:
    """One requirement on a node's label, as in a NodeSelectorTerm."""

    key: str
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]
    values: tuple[str, ...] = ()


Term = tuple[Expression, ...]
"""Requirements that hold together. Of several terms one is enough."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """A GPU class that was not chosen, and why."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Choice:
    """Hardware and precision of one region's engines."""

    gpu_class: str
    """Empty for CPUs."""
    format: Format
    """Type of the weights, as status shows it."""
    dtype: Dtype
    """Type that is computed in."""
    quantization: Quantization | None
    """What the engine turns the weights into while it loads them; None if nothing, or if the checkpoint is stored so already."""
    kv_cache: KvCacheDtype
    resource_name: str
    """Resource that the pod requests; empty for CPUs."""
    terms: tuple[Term, ...]
    """Alternatives of stable expressions on node labels that pick the class; empty: no requirement."""
    weight_bytes: int | None
    """Memory that the weights take; None if the model's size is not known."""
    reason: str
    """One sentence with numbers: why this class and format."""
    skipped: tuple[Skipped, ...] = ()


@dataclass(frozen=True, slots=True)
class NoChoice:
    """Nothing in the region can serve the model as it is asked for."""

    reason: Reason
    message: str
    """What is there, both numbers, and the remedy."""
    skipped: tuple[Skipped, ...] = ()
