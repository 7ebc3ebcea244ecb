"""Which GPUs a region's nodes have and its declared pools promise, read from labels and allocatable resources."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from emberline_contract.region import GpuPool
from emberline_operator.choice import Expression
from emberline_operator.hardware.gpu_table import (
    AMD_BETA_PRODUCT,
    AMD_PRODUCT,
    MAJOR,
    MINOR,
    PRODUCT,
    Compute,
    GpuModel,
    GpuTable,
    Vendor,
    parse_compute,
    size_of,
    type_word,
)
from emberline_operator.hardware.sizes import memory_quantity_bytes
from emberline_operator.snapshot import NodeState, Taint

GKE_PARTITION: Final = "cloud.google.com/gke-gpu-partition-size"
GKE_SHARING: Final = "cloud.google.com/gke-gpu-sharing-strategy"
GKE_CLIENTS: Final = "cloud.google.com/gke-max-shared-clients-per-gpu"
SHARED_RESOURCE_SUFFIX: Final = ".shared"
"""A GPU that several pods use at once, where the device plugin renames it."""
MIG_RESOURCE_PREFIX: Final = "nvidia.com/mig-"
USUAL_RESOURCES: Final = re.compile(r"nvidia\.com/(gpu(\.shared)?|mig-.+)|amd\.com/gpu")
"""What device plugins publish by themselves; others are used only where `accelerator.resourceName` names them."""
SLICE_MEMORY_SHARE: Final = 0.9
"""What a driver reports of a slice's nominal memory at least; for nodes whose labels say the profile and no memory."""

FIRST_WITHOUT_MINOR: Final = 9
"""From this major compute capability on the minor one decides nothing, so a node may lack its label."""

_SUFFIXES: Final = re.compile(r"(?P<product>.+?)(-MIG-(?P<slice>[0-9a-zA-Z.+]+))?(?P<shared>-SHARED)?")
_PROFILE_GB: Final = re.compile(r"[0-9]+g\.([0-9]+)gb")


@dataclass(frozen=True, slots=True)
class Gpu:
    """One kind of GPU as its labels tell it."""

    vendor: Vendor
    model: GpuModel | None
    """None: a product that the table does not have, or no label that says the product."""
    product: str
    """Product label without its suffixes; empty if there is none."""
    compute: Compute | None
    memory_bytes: int | None
    """Of one GPU or slice; of a shared GPU the part that falls to each of those who share it."""
    resource_name: str
    slice_profile: str = ""
    """Such as `1g.10gb`; empty for a whole GPU."""
    sharers: int = 1
    """Pods that may use one GPU at the same time."""

    @property
    def name(self) -> str:
        """Its word of `accelerator.types`, also where the table does not have it."""
        whole = self.model.name if self.model else type_word(self.product) or self._name_by_number
        return whole + self.suffix

    @property
    def _name_by_number(self) -> str:
        if self.compute is None:
            return "unlabelled"
        compute = self.compute if isinstance(self.compute, str) else "cc{}.{}".format(*self.compute)
        return f"{compute} {size_of(self.memory_bytes).name}" if self.memory_bytes else compute

    @property
    def is_usual(self) -> bool:
        """Whether its resource is one that device plugins publish by themselves."""
        return USUAL_RESOURCES.fullmatch(self.resource_name) is not None

    @property
    def suffix(self) -> str:
        """What a word of `accelerator.types` must end with to mean slices or shared GPUs."""
        return (f"-mig-{self.slice_profile}" if self.slice_profile else "") + ("-shared" if self.sharers > 1 else "")

    @property
    def words(self) -> frozenset[str]:
        """All words of `accelerator.types` that mean it."""
        whole = (*(self.model.names if self.model else ()), *((type_word(self.product),) if self.product else ()))
        return frozenset(word + self.suffix for word in whole)


@dataclass(frozen=True, slots=True)
class Hardware:
    """GPUs of one kind on one node or in one declared pool."""

    gpu: Gpu
    where: str
    """Name of the node or pool."""
    num_gpus: int
    """Altogether; of a pool, when it is as large as it may become."""
    gpus_per_node: int
    labels: Mapping[str, str]
    """The node's, or those that a pool's nodes will carry."""
    is_pool: bool = False
    price_per_gpu: float | None = None
    taints: tuple[Taint, ...] = ()
    is_available: bool = True
    """False: the node is not ready, or cordoned."""
    has_compute_labels: bool = False
    """Its labels give the compute capability by number."""
    told_by: str = ""
    """Label key that tells the product; empty if none does."""


def hardware_of(nodes: Iterable[NodeState], pools: Sequence[GpuPool], table: GpuTable) -> tuple[Hardware, ...]:
    """GPUs of `nodes` and `pools`, in an order of their own. A node that carries a pool's labels counts as part of the pool."""
    selectors = [pool.node_selector for pool in pools]
    found = [_of_pool(pool, table) for pool in pools]
    for node in nodes:
        if any(selector.items() <= node.labels.items() for selector in selectors):
            continue
        found += [_of_node(node, resource, count, table) for resource, count in node.gpus.items() if count > 0]
    return tuple(sorted(found, key=lambda hardware: (not hardware.is_pool, hardware.where, hardware.gpu.resource_name)))


def matches(labels: Mapping[str, str], expressions: Iterable[Expression]) -> bool:
    """Whether a node with these labels satisfies a term, by the scheduler's rules."""
    return all(_holds(labels.get(e.key), e) for e in expressions)


def _holds(value: str | None, expression: Expression) -> bool:
    match expression.operator:
        case "In":
            return value in expression.values
        case "NotIn":
            return value not in expression.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt":
            bound = int(expression.values[0])
            number = _whole(value)
            return number is not None and (number > bound if expression.operator == "Gt" else number < bound)


def _of_pool(pool: GpuPool, table: GpuTable) -> Hardware:
    compute, memory_bytes = parse_compute(pool.compute_capability), memory_quantity_bytes(pool.memory)
    named = table.named(pool.type) if pool.type else tuple(table.models.values())
    same_size = [m for m in named if m.compute == compute and size_of(m.memory_bytes) == size_of(memory_bytes)]
    # Without a type only what is the one GPU of its numbers has a name.
    model = next(iter(same_size), None) if pool.type or len(same_size) == 1 else None
    gpu = Gpu(
        vendor="Amd" if isinstance(compute, str) else "Nvidia",
        model=model,
        product="" if model else pool.type or "",
        compute=compute,
        memory_bytes=memory_bytes,
        resource_name=pool.resource_name,
        slice_profile=_slice_of_resource(pool.resource_name),
    )
    return Hardware(
        gpu=gpu,
        where=pool.name,
        num_gpus=pool.gpus_per_node * pool.max_nodes,
        gpus_per_node=pool.gpus_per_node,
        labels=pool.node_selector,
        is_pool=True,
        price_per_gpu=None if pool.price_per_hour is None else float(pool.price_per_hour) / pool.gpus_per_node,
    )


def _of_node(node: NodeState, resource: str, count: int, table: GpuTable) -> Hardware:
    labels = node.labels
    product, slice_profile, is_shared = _product(labels, resource)
    told_by, model = _model(labels, product, table)
    numbers = _compute(labels)
    compute = numbers or (model.compute if model else None)
    sharers = _sharers(labels, resource, is_shared=is_shared)
    memory = _memory_bytes(labels, resource, slice_profile) or (
        model.memory_bytes if model and not slice_profile else None
    )
    gpu = Gpu(
        vendor="Amd" if resource.startswith("amd.com/") else "Nvidia",
        model=model,
        product=product,
        compute=compute,
        memory_bytes=memory // sharers if memory else None,
        resource_name=resource,
        slice_profile=slice_profile,
        sharers=sharers,
    )
    return Hardware(
        gpu=gpu,
        where=node.name,
        num_gpus=count,
        gpus_per_node=count,
        labels=labels,
        taints=node.taints,
        is_available=node.is_ready and not node.is_cordoned,
        has_compute_labels=numbers is not None,
        told_by=told_by or (_product_key(labels) if product else ""),
    )


def _product(labels: Mapping[str, str], resource: str) -> tuple[str, str, bool]:
    """Product without suffixes, MIG profile, whether it is shared."""
    text = labels.get(f"{resource}.product") or labels.get(_product_key(labels), "")
    match = _SUFFIXES.fullmatch(text)
    product, profile, shared = (
        (match["product"], match["slice"] or "", bool(match["shared"])) if match else ("", "", False)
    )
    return product, profile or _slice_of_resource(resource) or labels.get(GKE_PARTITION, ""), shared


def _product_key(labels: Mapping[str, str]) -> str:
    return next((key for key in (PRODUCT, AMD_PRODUCT, AMD_BETA_PRODUCT) if key in labels), "")


def _model(labels: Mapping[str, str], product: str, table: GpuTable) -> tuple[str, GpuModel | None]:
    """The label key that tells the GPU, and the GPU."""
    product_key = _product_key(labels)
    for key, values in table.labels.items():
        value = product if key == product_key else labels.get(key, "")
        if value in values:
            return key, values[value]
    return "", None


def _compute(labels: Mapping[str, str]) -> Compute | None:
    major, minor = _whole(labels.get(MAJOR)), _whole(labels.get(MINOR))
    if minor is None and major is not None and major >= FIRST_WITHOUT_MINOR:
        return major, 0
    return None if major is None or minor is None else (major, minor)


def _memory_bytes(labels: Mapping[str, str], resource: str, slice_profile: str) -> int | None:
    mib = _whole(labels.get(f"{resource.removesuffix(SHARED_RESOURCE_SUFFIX)}.memory"))
    if mib:
        return mib * 2**20
    profile = _PROFILE_GB.match(slice_profile)
    if profile:
        return int(int(profile[1]) * 2**30 * SLICE_MEMORY_SHARE)
    vram = labels.get("amd.com/gpu.vram") or labels.get("beta.amd.com/gpu.vram") or ""
    gib = _whole(vram.removesuffix("G"))
    return gib * 2**30 if gib and resource.startswith("amd.com/") else None


def _sharers(labels: Mapping[str, str], resource: str, *, is_shared: bool) -> int:
    is_shared = is_shared or resource.endswith(SHARED_RESOURCE_SUFFIX) or GKE_SHARING in labels
    said = _whole(labels.get(f"{resource.removesuffix(SHARED_RESOURCE_SUFFIX)}.replicas")) or _whole(
        labels.get(GKE_CLIENTS)
    )
    if said and said > 1:
        return said
    return 2 if is_shared else 1


def _slice_of_resource(resource: str) -> str:
    if not resource.startswith(MIG_RESOURCE_PREFIX):
        return ""
    return resource.removeprefix(MIG_RESOURCE_PREFIX).removesuffix(SHARED_RESOURCE_SUFFIX)


def _whole(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdecimal() else None
