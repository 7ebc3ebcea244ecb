"""GPU classes: GPUs that do equally well, and the node affinity that picks them and nothing else.

A class is told by number (what its compute capability can do, and the size of its memory) or by the names that
`accelerator.types` asks for. Its terms follow from that and from the tables, never from the nodes that happen to be there; the
nodes only say by which kinds of labels such GPUs are told in this cluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from emberline_operator.choice import Expression, Term
from emberline_operator.hardware.gpu_table import (
    AMD_BETA_PRODUCT,
    AMD_PRODUCT,
    GKE_ACCELERATOR,
    MAJOR,
    MINOR,
    PRODUCT,
    Generation,
    GpuTable,
    Size,
    generation_of,
    size_of,
)
from emberline_operator.hardware.inventory import (
    GKE_CLIENTS,
    GKE_PARTITION,
    GKE_SHARING,
    MIG_RESOURCE_PREFIX,
    SHARED_RESOURCE_SUFFIX,
    Gpu,
    Hardware,
)

SHARING_STRATEGY: Final = "nvidia.com/gpu.sharing-strategy"
SLICES: Final = "nvidia.com/gpu.slices.gi"
"""GPU feature discovery writes it for MIG slices only."""
REPLICAS: Final = "nvidia.com/gpu.replicas"


@dataclass(frozen=True, slots=True)
class GpuClass:
    """GPUs that do equally well for an endpoint."""

    generation: Generation
    size: Size | None
    """None: memory unknown."""
    members: tuple[Hardware, ...]
    word: str = ""
    """The word of `accelerator.types` that it was asked for by; empty if none was."""

    @property
    def gpu(self) -> Gpu:
        """Any of its GPUs, for what is the same in all of them."""
        return self.members[0].gpu

    @property
    def is_pool(self) -> bool:
        """Whether it is made of declared pools."""
        return self.members[0].is_pool

    @property
    def price(self) -> float:
        """Of one GPU for an hour; nodes that are there and pools without a price cost nothing more."""
        return self.members[0].price_per_gpu or 0.0

    @property
    def bandwidth_gb_s(self) -> int:
        """Of the slowest of its GPUs; 0 if one is not known."""
        return min(m.gpu.model.bandwidth_gb_s if m.gpu.model else 0 for m in self.members)

    @property
    def name(self) -> str:
        """For people: the GPUs in it."""
        names = sorted({m.gpu.name for m in self.members})
        pools = sorted({m.where for m in self.members if m.is_pool})
        return "/".join(names) + (f" (pool {', '.join(pools)})" if pools else "")

    @property
    def num_gpus(self) -> int:
        """Altogether, whatever their state."""
        return sum(m.num_gpus for m in self.members)

    def terms(self, need_bytes: int, table: GpuTable) -> tuple[Term, ...]:
        """Alternatives that a node must satisfy one of, to be of this class and to have `need_bytes` of memory."""
        found: list[Term] = []
        for member in self.members:
            found += (_selector(member),) if self.is_pool else _terms_of(self, member, need_bytes, table)
        return tuple(sorted(dict.fromkeys(found), key=repr))


def classes_of(hardware: Iterable[Hardware], types: Sequence[str]) -> tuple[GpuClass, ...]:
    """The classes that the hardware falls into; with `types` only what they name, in that order."""
    if not types:
        return _group(hardware, "")
    found: list[GpuClass] = []
    left = list(hardware)
    for word in types:
        found += _group([h for h in left if word in h.gpu.words], word)
        left = [h for h in left if word not in h.gpu.words]
    return tuple(found)


def _group(hardware: Iterable[Hardware], word: str) -> tuple[GpuClass, ...]:
    groups: dict[tuple[object, ...], list[Hardware]] = {}
    for found in hardware:
        groups.setdefault(_key(found), []).append(found)
    return tuple(
        GpuClass(generation_of(members[0].gpu.compute), _size(members[0].gpu), tuple(members), word)
        for members in groups.values()
    )


def _key(hardware: Hardware) -> tuple[object, ...]:
    """What makes two GPUs one class. A pool is a class of its own unless another one is the same and costs the same."""
    gpu = hardware.gpu
    generation, size = generation_of(gpu.compute), _size(gpu)
    pool = (hardware.price_per_gpu, gpu.name) if hardware.is_pool else ()
    # What no number tells is told by its product.
    product = "" if generation.terms and size else gpu.name
    kind = (gpu.vendor, gpu.resource_name, gpu.slice_profile, gpu.sharers)
    return (*kind, generation.name, size, pool, product)


def _size(gpu: Gpu) -> Size | None:
    """A shared GPU's or a slice's size is that of its part."""
    return size_of(gpu.memory_bytes) if gpu.memory_bytes else None


def _selector(hardware: Hardware) -> Term:
    return tuple(Expression(key, "In", (value,)) for key, value in sorted(hardware.labels.items()))


def _terms_of(gpu_class: GpuClass, member: Hardware, need_bytes: int, table: GpuTable) -> tuple[Term, ...]:
    """How nodes labelled like this member are told."""
    by_number = gpu_class.generation.terms if member.has_compute_labels else ()
    memory = _memory(gpu_class, member, need_bytes)
    if by_number and memory and not gpu_class.word:
        return tuple((*term, *memory, *_kind(member)) for term in by_number)
    # A known product's memory is in the table; what tells no memory must not stand for nodes that tell too little of it.
    sized = memory or (() if member.gpu.model else (Expression(_memory_key(member), "DoesNotExist"),))
    if member.told_by:
        named = Expression(member.told_by, "In", _values(gpu_class, member, table))
        if by_number:
            return ((named, *sized, *_kind(member)),)
        return ((named, *sized, *_unnumbered_kind(member), _without_numbers(member)),)
    unnamed = tuple(
        Expression(key, "DoesNotExist") for key in (PRODUCT, AMD_PRODUCT, AMD_BETA_PRODUCT, GKE_ACCELERATOR)
    )
    if by_number:
        return tuple((*term, *unnamed, *sized) for term in by_number)
    return ((*unnamed, *sized, _without_numbers(member)),)


def _values(gpu_class: GpuClass, member: Hardware, table: GpuTable) -> tuple[str, ...]:
    """The table's values of the member's label for GPUs of this class; for a product that the table lacks, itself."""
    if member.gpu.model is None:
        return (member.labels[member.told_by],)
    generation, size = gpu_class.generation, gpu_class.size
    named = tuple(
        model
        for model in table.models.values()
        if generation_of(model.compute) is generation
        and model.vendor == member.gpu.vendor
        and (not gpu_class.word or gpu_class.word.removesuffix(member.gpu.suffix) in model.names)
        and (bool(member.gpu.suffix) or size is None or size_of(model.memory_bytes) == size)
    )
    values = table.values(member.told_by, named)
    suffix = _product_suffix(member) if member.told_by == PRODUCT else ""
    word = gpu_class.word.removesuffix(member.gpu.suffix)
    # A word that is one product's label means that product alone.
    exact = tuple(value for value in values if word == value.lower().replace("_", "-"))
    return tuple(value + suffix for value in exact or values) or (member.labels[member.told_by],)


def _product_suffix(member: Hardware) -> str:
    gpu = member.gpu
    if gpu.resource_name.startswith(MIG_RESOURCE_PREFIX) or gpu.resource_name.endswith(SHARED_RESOURCE_SUFFIX):
        return ""  # the label of nvidia.com/gpu itself speaks of the whole GPU
    return (f"-MIG-{gpu.slice_profile}" if gpu.slice_profile else "") + ("-SHARED" if gpu.sharers > 1 else "")


def _memory_key(member: Hardware) -> str:
    return f"{member.gpu.resource_name.removesuffix(SHARED_RESOURCE_SUFFIX)}.memory"


def _memory(gpu_class: GpuClass, member: Hardware, need_bytes: int) -> Term:
    """Bounds of the memory label: the class's size, and at least what is needed by each who shares the GPU."""
    size, sharers, key = gpu_class.size, member.gpu.sharers, _memory_key(member)
    if size is None or key not in member.labels:
        return ()
    low = max(size.low_mib, -(-need_bytes // 2**20)) * sharers
    return (Expression(key, "Gt", (str(low - 1),)), Expression(key, "Lt", (str(size.high_mib * sharers),)))


def _kind(member: Hardware) -> Term:
    """Whole GPUs, slices or shared ones; where the resource's own name tells it, nothing more is needed."""
    gpu = member.gpu
    if gpu.vendor == "Amd" or gpu.resource_name.startswith(MIG_RESOURCE_PREFIX):
        return ()
    slices = _said(member, SLICES, gpu.slice_profile.partition("g.")[0])
    if gpu.sharers > 1:
        return (slices, _said(member, REPLICAS, str(gpu.sharers)))
    return (slices, Expression(SHARING_STRATEGY, "NotIn", ("mps", "time-slicing")))


def _unnumbered_kind(member: Hardware) -> Term:
    """The same for nodes without GPU feature discovery, where Google's labels may say it."""
    gpu = member.gpu
    if gpu.vendor == "Amd" or member.told_by == PRODUCT:
        return ()
    part = _said(member, GKE_PARTITION, gpu.slice_profile)
    if gpu.sharers > 1:
        return (part, _said(member, GKE_CLIENTS, str(gpu.sharers)))
    return (part, Expression(GKE_SHARING, "DoesNotExist"))


def _without_numbers(member: Hardware) -> Expression:
    """Nodes that tell their compute capability are told by it, and not by what else they carry."""
    return Expression(MINOR if MAJOR in member.labels else MAJOR, "DoesNotExist")


def _said(member: Hardware, key: str, value: str) -> Expression:
    """The label's value, where nodes like this one carry it; that they do not is told as well."""
    return Expression(key, "In", (value,)) if key in member.labels else Expression(key, "DoesNotExist")
