"""The words of `--node`: `name=eu-1,region=eu,gpu=h100:8` becomes a NodeSpec. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from emberline_contract.quantities import duration_s
from emberline_local.errors import OptionError
from emberline_local.node_spec import NodeSpec, PretendedGpus

GPUS = {
    "a10": PretendedGpus(product="NVIDIA-A10", memory_mib=23028, compute=(8, 6)),
    "a100": PretendedGpus(product="NVIDIA-A100-SXM4-80GB", memory_mib=81920, compute=(8, 0)),
    "a100-40": PretendedGpus(product="NVIDIA-A100-SXM4-40GB", memory_mib=40960, compute=(8, 0)),
    "a100-mig": PretendedGpus(product="NVIDIA-A100-SXM4-80GB-MIG-1g.10gb", memory_mib=9728, compute=(8, 0)),
    "b200": PretendedGpus(product="NVIDIA-B200", memory_mib=183359, compute=(10, 0)),
    "gh200": PretendedGpus(product="NVIDIA-GH200-480GB", memory_mib=97871, compute=(9, 0)),
    "h100": PretendedGpus(product="NVIDIA-H100-80GB-HBM3", memory_mib=81559, compute=(9, 0)),
    "h200": PretendedGpus(product="NVIDIA-H200", memory_mib=143771, compute=(9, 0)),
    "l4": PretendedGpus(product="NVIDIA-L4", memory_mib=23034, compute=(8, 9)),
    "l4-shared": PretendedGpus(product="NVIDIA-L4-SHARED", memory_mib=23034, compute=(8, 9), replicas=4),
    "l40s": PretendedGpus(product="NVIDIA-L40S", memory_mib=46068, compute=(8, 9)),
    "mi300x": PretendedGpus(product="AMD_Instinct_MI300X_OAM", memory_mib=196592, compute=None),
    "rtx4090": PretendedGpus(product="NVIDIA-GeForce-RTX-4090", memory_mib=24564, compute=(8, 9)),
    "t4": PretendedGpus(product="Tesla-T4", memory_mib=15360, compute=(7, 5)),
    "v100": PretendedGpus(product="Tesla-V100-SXM2-16GB", memory_mib=16384, compute=(7, 0)),
}
"""GPUs that a node can pretend to have. `a100-mig` has MIG slices instead of whole GPUs, of `l4-shared` four pods share each."""

_Number = TypeVar("_Number", int, float)
_NODE_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
EXAMPLE = "name=eu-1,region=eu,gpu=h100:8"


def parse_node(text: str) -> NodeSpec:
    """One `--node`. Raises OptionError with what is wrong and an example."""
    words: dict[str, str] = {}
    for word in text.split(","):
        key, separator, value = word.strip().partition("=")
        if not separator or not key or not value:
            raise _wrong(text, f"{word.strip()!r} is no key=value")
        if key in words:
            raise _wrong(text, f"{key!r} is given twice")
        words[key] = value
    name = words.pop("name", "")
    if not _NODE_NAME.fullmatch(name):
        raise _wrong(text, "name= must be there, of a-z, 0-9 and '-'")
    gpus = _parse_gpus(text, words)
    labels = {key.removeprefix("label:"): words.pop(key) for key in list(words) if key.startswith("label:")}
    spec = NodeSpec(
        name=name,
        region=words.pop("region", None),
        zone=words.pop("zone", None),
        labels=labels,
        gpus=gpus,
        cpus=_number(text, words, "cpus", int, NodeSpec.cpus),
        memory=words.pop("memory", NodeSpec.memory),
        num_pods=_number(text, words, "pods", int, NodeSpec.num_pods),
    )
    if words:
        raise _wrong(
            text,
            f"{', '.join(words)} is not known; there are name, region, zone, gpu, load, step, cpus, memory, pods and label:KEY",
        )
    return spec


def _parse_gpus(text: str, words: dict[str, str]) -> PretendedGpus | None:
    wanted = words.pop("gpu", None)
    if wanted is None:
        return None
    kind, _, count = wanted.partition(":")
    if kind not in GPUS:
        raise _wrong(text, f"gpu {kind!r} is none of {', '.join(GPUS)}")
    if count and not (count.isdigit() and 1 <= int(count) <= 64):
        raise _wrong(text, f"{count!r} GPUs; a node has 1 to 64")
    default = GPUS[kind]
    return replace(
        default,
        count=int(count or 1),
        load_s=_number(text, words, "load", duration_s, default.load_s),
        step_s=_number(text, words, "step", duration_s, default.step_s),
    )


def _number(text: str, words: dict[str, str], key: str, read: Callable[[str], _Number], default: _Number) -> _Number:
    value = words.pop(key, None)
    if value is None:
        return default
    try:
        return read(value)
    except ValueError as error:
        raise _wrong(text, f"{key}={value}: {error}") from None


def _wrong(text: str, why: str) -> OptionError:
    return OptionError(f"--node {text}: {why}; write it like --node {EXAMPLE}")
