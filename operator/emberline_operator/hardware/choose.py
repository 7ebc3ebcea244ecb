"""The choice of one GPU class and one format for an endpoint in a region, with its reason."""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from emberline_contract.conditions import Reason
from emberline_contract.resources import InferenceEndpointSpec
from emberline_operator.choice import Choice, Format, NoChoice, Skipped
from emberline_operator.hardware.classes import GpuClass, classes_of
from emberline_operator.hardware.gpu_table import UNKNOWN, GpuTable
from emberline_operator.hardware.inventory import Hardware, matches
from emberline_operator.hardware.memory_fit import Need, need_of, weight_bytes
from emberline_operator.hardware.model_size import ModelFacts, model_facts
from emberline_operator.hardware.precision import (
    Option,
    Refusal,
    card_options,
    engine_refusal,
    kv_cache_dtype,
    kv_number_bytes,
)
from emberline_operator.hardware.sizes import gib_text, memory_quantity_bytes, parameters_text
from emberline_operator.hardware.taints import keeping_out

SIZE_UNKNOWN: Final = (
    "the model's size is not known, so it was not checked whether it fits: set model.parameters, such as 8B, or put the"
    " size into the folder's name"
)
NOT_NAMED: Final = "accelerator.types does not name it"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A class that can serve the model."""

    gpu_class: GpuClass
    option: Option
    need: Need | None
    num_engines: int
    """Engines that nodes which are ready, and pools, can hold."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """A class that cannot."""

    name: str
    reason: Reason
    why: str


def choose(spec: InferenceEndpointSpec, hardware: Sequence[Hardware], table: GpuTable) -> Choice | NoChoice:
    """The choice among a region's hardware. Stays the same whatever the order of `hardware`."""
    model = model_facts(spec.model)
    if spec.accelerator.kind == "Cpu":
        return _choose_cpu(spec, model)
    if spec.accelerator.count > 1:
        return NoChoice(
            Reason.NEEDS_SEVERAL_GPUS,
            f"accelerator.count is {spec.accelerator.count}, and this engine computes on 1 GPU: it does not split a model yet;"
            " set accelerator.count to 1",
        )
    usable, rejected = _usable(spec, hardware, table)
    candidates: list[Candidate] = []
    for gpu_class in classes_of(usable, spec.accelerator.types):
        match judge(gpu_class, spec, model):
            case Candidate() as candidate:
                candidates.append(candidate)
            case Rejected() as no:
                rejected.append(no)
    if not candidates:
        return _no_choice(spec, hardware, rejected)
    candidates.sort(key=lambda c: _rank(c, spec))
    best, *others = candidates
    skipped = [Skipped(r.name, r.why) for r in rejected]
    skipped += [Skipped(c.gpu_class.name, _why_later(c, best, spec)) for c in others]
    return _choice(best, spec, model, table, tuple(sorted(skipped, key=lambda s: (s.name, s.reason))))


def is_possible(choice: Choice, hardware: Sequence[Hardware]) -> bool:
    """Whether some node that is ready, or some pool, could still hold the choice."""
    if not choice.resource_name:
        return True
    return any(
        h.is_available
        and h.gpu.resource_name == choice.resource_name
        and (not choice.terms or any(matches(h.labels, term) for term in choice.terms))
        for h in hardware
    )


def judge(gpu_class: GpuClass, spec: InferenceEndpointSpec, model: ModelFacts) -> Candidate | Rejected:
    """Whether a class can serve the model, and in which format."""
    options = card_options(model, spec.precision, gpu_class.generation)
    if isinstance(options, Refusal):
        return Rejected(gpu_class.name, Reason.PRECISION_UNSUPPORTED, options.why)
    refusals = [engine_refusal(model, option) for option in options]
    loadable = [option for option, refusal in zip(options, refusals, strict=True) if refusal is None]
    if not loadable:
        return Rejected(gpu_class.name, Reason.PRECISION_UNSUPPORTED, next(r.why for r in refusals if r is not None))
    return fit(gpu_class, spec, model, loadable)


def fit(
    gpu_class: GpuClass, spec: InferenceEndpointSpec, model: ModelFacts, options: Sequence[Option]
) -> Candidate | Rejected:
    """The first of the options that fits."""
    needs = [
        need_of(model, o.format, spec.engine, kv_number_bytes=kv_number_bytes(spec.precision, o.dtype)) for o in options
    ]
    for option, need in zip(options, needs, strict=True):
        fitting = [m for m in gpu_class.members if need is None or _holds(m, need)]
        if fitting:
            return Candidate(gpu_class, option, need, sum(m.num_gpus for m in fitting if m.is_available))
    least = min((n for n in needs if n is not None), key=lambda n: n.total_bytes)
    formats: list[Format] = [o.format for o, n in zip(options, needs, strict=True) if n is least]
    return _too_large(gpu_class, least, formats[0])


def _holds(member: Hardware, need: Need) -> bool:
    """GPUs of unknown memory may hold anything; they come last."""
    return member.gpu.memory_bytes is None or member.gpu.memory_bytes >= need.total_bytes


def _too_large(gpu_class: GpuClass, need: Need, format_: Format) -> Rejected:
    memory = max(m.gpu.memory_bytes or 0 for m in gpu_class.members)
    # A pool may be declared with no memory at all.
    gpus = math.ceil(need.total_bytes / memory) if memory else math.inf
    per_node = max(m.gpus_per_node for m in gpu_class.members)
    numbers = f"{format_} needs {need.text} and one has {gib_text(memory)}"
    # Slices and shared GPUs cannot work together.
    if per_node >= gpus and not gpu_class.gpu.suffix:
        why = f"{numbers}; {gpus} GPUs of one node would do, but this engine does not split a model over GPUs yet"
        return Rejected(gpu_class.name, Reason.NEEDS_SEVERAL_GPUS, why)
    return Rejected(gpu_class.name, Reason.DOES_NOT_FIT, numbers)


def _usable(
    spec: InferenceEndpointSpec, hardware: Sequence[Hardware], table: GpuTable
) -> tuple[list[Hardware], list[Rejected]]:
    """What the spec lets the endpoint use, and what it does not with the reason."""
    usable: list[Hardware] = []
    why_not: dict[str, str] = {}
    for found in hardware:
        why = _why_not(spec, found)
        if why is None:
            usable.append(found)
        elif why:
            why_not.setdefault(found.gpu.name, why)
    words = {word for h in hardware for word in h.gpu.words}
    for word in spec.accelerator.types:
        if word not in words:
            why_not[word] = _unknown_word(word, words, table)
    return usable, [Rejected(name, Reason.NO_SUCH_GPU, why) for name, why in sorted(why_not.items())]


def _why_not(spec: InferenceEndpointSpec, found: Hardware) -> str | None:
    """Why the endpoint may not use it; empty: another vendor's, of which nothing need be said; None: it may."""
    accelerator, gpu = spec.accelerator, found.gpu
    if accelerator.resource_name is not None:
        if gpu.resource_name != accelerator.resource_name:
            return (
                f"it is published as {gpu.resource_name}, and accelerator.resourceName is {accelerator.resource_name}"
            )
    elif gpu.vendor != accelerator.kind or not (gpu.is_usual or found.is_pool):
        return ""
    if accelerator.types and not gpu.words & set(accelerator.types):
        return NOT_NAMED
    if gpu.sharers > 1 and accelerator.resource_name is None and not accelerator.types:
        return f"{gpu.sharers} pods share it; name it in accelerator.types to use it"
    if accelerator.min_memory is not None:
        wanted = memory_quantity_bytes(accelerator.min_memory)
        if gpu.memory_bytes is None or gpu.memory_bytes < wanted:
            has = "unknown memory" if gpu.memory_bytes is None else gib_text(gpu.memory_bytes)
            return f"it has {has}, and accelerator.minMemory is {accelerator.min_memory} ({gib_text(wanted)})"
    for key, value in sorted(spec.placement.node_selector.items()):
        if found.labels.get(key, value if found.is_pool else None) != value:
            return f"its nodes lack {key}={value} of placement.nodeSelector"
    taints = keeping_out(found.taints, spec)
    if taints:
        return f"its nodes are tainted {taints[0].key}={taints[0].value}:{taints[0].effect}; tolerate that in placement.tolerations"
    return None


def _unknown_word(word: str, present: set[str], table: GpuTable) -> str:
    known = {name for model in table.models.values() for name in (model.name, *model.also)}
    whole = word.partition("-mig-")[0].removesuffix("-shared")
    if whole in known or table.named(whole):
        return "no node and no declared pool has it"
    close = next(
        (c for words in (present, known) if (c := difflib.get_close_matches(word, sorted(words), cutoff=0.5))), ()
    )
    return f"no GPU of that name is known{f'; did you mean {close[0]}?' if close else ''}"


def _rank(candidate: Candidate, spec: InferenceEndpointSpec) -> tuple[float | str, ...]:
    """What comes first is taken; `_LATER` says each place in words."""
    gpu_class, option = candidate.gpu_class, candidate.option
    types = spec.accelerator.types
    return (
        candidate.num_engines == 0,
        candidate.num_engines < spec.scaling.max_replicas,
        types.index(gpu_class.word) if gpu_class.word else 0,
        gpu_class.generation is UNKNOWN or gpu_class.size is None,
        bool(gpu_class.gpu.suffix),
        not gpu_class.generation.fp8,
        option.is_fallback,
        gpu_class.price,
        gpu_class.size.low_mib if gpu_class.size else 0,
        -gpu_class.bandwidth_gb_s,
        gpu_class.name,
    )


_LATER: Final = (
    "none of its nodes is ready",
    "its {gpus} fewer than the {replicas} engines of scaling.maxReplicas",
    "accelerator.types names it later",
    "what it can do is not known",
    "it is a part of a GPU",
    "it does not compute in fp8",
    "it would have to be {format}: {why}",
    "it costs more",
    "it has more memory than is needed",
    "its memory is slower",
    "its name comes later",
)


def _why_later(candidate: Candidate, best: Candidate, spec: InferenceEndpointSpec) -> str:
    ranks = zip(_rank(candidate, spec), _rank(best, spec), _LATER, strict=True)
    words = next(words for mine, its, words in ranks if mine != its)
    option = candidate.option
    why = words.format(
        gpus="1 GPU holds" if candidate.num_engines == 1 else f"{candidate.num_engines} GPUs hold",
        replicas=spec.scaling.max_replicas,
        format=option.format,
        why=option.why,
    )
    return f"{best.gpu_class.name} goes first: {why}"


def _choice(
    best: Candidate, spec: InferenceEndpointSpec, model: ModelFacts, table: GpuTable, skipped: tuple[Skipped, ...]
) -> Choice:
    gpu_class, option, need = best.gpu_class, best.option, best.need
    min_memory = spec.accelerator.min_memory
    least = max(need.total_bytes if need else 0, memory_quantity_bytes(min_memory) if min_memory else 0)
    return Choice(
        gpu_class=gpu_class.name,
        format=option.format,
        dtype=option.dtype,
        quantization=option.quantization,
        kv_cache=kv_cache_dtype(spec.precision),
        resource_name=gpu_class.gpu.resource_name,
        terms=gpu_class.terms(least, table),
        weight_bytes=need.weight_bytes if need else None,
        reason=_reason(best, model),
        skipped=skipped,
    )


def _reason(best: Candidate, model: ModelFacts) -> str:
    gpu_class, option, need = best.gpu_class, best.option, best.need
    parts = [f"{option.format} on {gpu_class.name}: {option.why}"]
    if need is None:
        parts.append(SIZE_UNKNOWN)
    else:
        assert model.parameters is not None
        plain = weight_bytes(model, "bf16")
        instead = f" instead of {gib_text(plain)}" if plain and need.weight_bytes < plain else ""
        parts.append(
            f"{parameters_text(model.parameters)} parameters ({model.said_by}) take {gib_text(need.weight_bytes)}{instead}"
        )
        memory = [m.gpu.memory_bytes for m in gpu_class.members if m.gpu.memory_bytes is not None]
        fitting = [m for m in memory if m >= need.total_bytes]
        of = f"of {gib_text(min(fitting))}" if fitting else "and the GPU's memory is not known"
        parts.append(f"needs {need.text} {of}")
    if gpu_class.generation.note and (option.format == "fp8" or gpu_class.generation is UNKNOWN):
        parts.append(gpu_class.generation.note)
    return "; ".join(parts)


def _no_choice(spec: InferenceEndpointSpec, hardware: Sequence[Hardware], rejected: list[Rejected]) -> NoChoice:
    """The most telling of the reasons, and all of them in the message."""
    order = (Reason.NEEDS_SEVERAL_GPUS, Reason.DOES_NOT_FIT, Reason.PRECISION_UNSUPPORTED, Reason.NO_SUCH_GPU)
    reason = next((reason for reason in order if any(r.reason is reason for r in rejected)), Reason.NO_SUCH_GPU)
    skipped = tuple(Skipped(r.name, r.why) for r in sorted(rejected, key=lambda r: (r.name, r.why)))
    counts: dict[str, int] = {}
    for found in hardware:
        counts[found.gpu.name] = counts.get(found.gpu.name, 0) + found.num_gpus
    there = ", ".join(f"{name} ({count})" for name, count in sorted(counts.items())) or "none"
    wanted = f"no {spec.accelerator.resource_name or spec.accelerator.kind} GPU can serve this"
    words = "; ".join(f"{s.name}: {s.reason}" for s in skipped if s.reason != NOT_NAMED)
    parts = (wanted, f"There are: {there}", words, _REMEDIES.get(reason, ""))
    # Words that are a question have their mark already.
    sentences = (part if part.endswith("?") else f"{part}." for part in parts if part)
    return NoChoice(reason, " ".join(sentences).removesuffix("."), skipped)


# What refuses a precision names its remedy itself.
_REMEDIES: Final = {
    Reason.NEEDS_SEVERAL_GPUS: "Take a smaller model or a GPU with more memory, or set engine.maxModelLen lower",
    Reason.DOES_NOT_FIT: "Take a smaller model or a GPU with more memory, or set engine.maxModelLen lower",
    Reason.NO_SUCH_GPU: "Add such nodes, declare them as spec.gpuPools of the InferenceRegion, or change accelerator",
}


def _choose_cpu(spec: InferenceEndpointSpec, model: ModelFacts) -> Choice | NoChoice:
    option = _cpu_option(spec.precision.format)
    refusal = engine_refusal(model, option)
    if refusal is not None:
        return NoChoice(Reason.PRECISION_UNSUPPORTED, f"CPUs cannot serve this: {refusal.why}")
    return Choice(
        gpu_class="",
        format=option.format,
        dtype=option.dtype,
        quantization=option.quantization,
        kv_cache=kv_cache_dtype(spec.precision),
        resource_name="",
        terms=(),
        weight_bytes=weight_bytes(model, option.format),
        reason=f"{option.format} on CPUs: {option.why}",
    )


def _cpu_option(wanted: Literal["Auto"] | Format) -> Option:
    asked = "asked for by precision.format"
    match wanted:
        case "Auto":
            return Option("bf16", "bf16", None, "what precision.format Auto means there")
        case "bf16" | "fp16" | "fp32":
            return Option(wanted, wanted, None, asked)
        case "fp8" | "int8" | "int4":
            return Option(wanted, "bf16", wanted, asked)
