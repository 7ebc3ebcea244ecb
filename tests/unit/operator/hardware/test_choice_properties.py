"""What holds of every choice, whatever nodes there are."""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from emberline_contract.engine_config import EngineOptions
from emberline_local.node_options import GPUS
from emberline_operator.choice import Choice
from emberline_operator.hardware.choose import choose, is_possible
from emberline_operator.hardware.inventory import Hardware, hardware_of, matches
from emberline_operator.hardware.memory_fit import need_of
from emberline_operator.hardware.model_size import model_facts
from emberline_operator.snapshot import NodeState
from support.examples import examples
from support.gpu_nodes import TABLE, decide, gpu_node, labelled_node, spec_of

MODELS = (
    "smollm2-135m",
    "smollm2-1.7b",
    "llama-3.1-8b",
    "llama-3.1-8b-fp8",
    "yi-34b",
    "llama-3.1-70b",
    "tiny",
    "x-7b-awq",
)
BITS = {"int4": 4, "int8": 8, "fp8": 8, "bf16": 16, "fp16": 16, "fp32": 32}

DROPPED = tuple(
    f"nvidia.com/gpu.{key}"
    for key in ("product", "memory", "compute.major", "compute.minor", "replicas", "sharing-strategy")
)

kinds = st.sampled_from(sorted(GPUS))
models = st.sampled_from(MODELS).map("pvc://models/{}".format)


@st.composite
def nodes(draw: st.DrawFn, least: int = 1) -> list[NodeState]:
    """Nodes of some kinds, in different states, some without GPU feature discovery."""
    found = []
    for number, kind in enumerate(draw(st.lists(kinds, min_size=least, max_size=6))):
        node = gpu_node(
            kind, f"n{number}", count=draw(st.sampled_from([1, 2, 8])), is_ready=draw(st.integers(0, 5)) > 0
        )
        if node.gpus.get("nvidia.com/gpu") and "mig" not in kind and "shared" not in kind:
            # Labels that somebody has removed, or not written yet.
            gone = draw(st.sets(st.sampled_from(DROPPED), max_size=3))
            node = replace(node, labels={key: value for key, value in node.labels.items() if key not in gone})
        found.append(node)
    if draw(st.integers(0, 4)) == 0:
        found.append(labelled_node({"cloud.google.com/gke-accelerator": "nvidia-l4"}, "google"))
    if draw(st.integers(0, 4)) == 0:
        found.append(labelled_node({}, "bare"))
    return found


def holders(choice: Choice, hardware: tuple[Hardware, ...]) -> list[Hardware]:
    """What the scheduler could place a pod of the choice on."""
    return [
        h
        for h in hardware
        if h.gpu.resource_name == choice.resource_name and any(matches(h.labels, term) for term in choice.terms)
    ]


@settings(**examples(60))
@given(nodes(), models, st.integers(1, 4))
def test_a_choice_fits_wherever_its_terms_lead(found: list[NodeState], source: str, max_replicas: int) -> None:
    hardware = hardware_of(found, (), TABLE)
    spec = spec_of(source, max_replicas=max_replicas)
    choice = choose(spec, hardware, TABLE)
    if not isinstance(choice, Choice):
        return
    places = holders(choice, hardware)
    assert places, "a choice that no node can hold"
    need = need_of(model_facts(spec.model), choice.format, EngineOptions(), kv_number_bytes=2)
    for place in places:
        assert place.gpu.vendor == "Nvidia"
        assert place.gpu.sharers == 1
        assert place.gpu.memory_bytes is None or need is None or place.gpu.memory_bytes >= need.total_bytes
    assert is_possible(choice, hardware) == any(place.is_available for place in places)


@settings(**examples(60))
@given(nodes(2), models, st.randoms(use_true_random=False))
def test_the_order_of_the_nodes_does_not_matter(found: list[NodeState], source: str, random_: random.Random) -> None:
    shuffled = list(found)
    random_.shuffle(shuffled)
    assert decide(found, source) == decide(shuffled, source)


@settings(**examples(60))
@given(nodes(), nodes(), models)
def test_nodes_of_other_classes_never_change_the_terms(
    found: list[NodeState], others: list[NodeState], source: str
) -> None:
    before = decide(found, source)
    own = before.gpu_class.split("/") if isinstance(before, Choice) else ()
    foreign = [h for h in hardware_of(others, (), TABLE) if h.gpu.name not in own]
    others = [replace(node, name=f"other-{node.name}") for node in others if node.name in {h.where for h in foreign}]
    after = decide([*found, *others], source)
    if isinstance(before, Choice) and isinstance(after, Choice) and before.gpu_class == after.gpu_class:
        assert before.terms == after.terms
        assert (before.format, before.dtype, before.quantization) == (after.format, after.dtype, after.quantization)


@settings(**examples(60))
@given(kinds.filter(lambda kind: kind != "mi300x"), models, st.integers(4_000, 300_000), st.integers(0, 100_000))
def test_more_memory_never_gives_less(kind: str, source: str, mib: int, more_mib: int) -> None:
    def on(memory_mib: int) -> Choice | None:
        node = gpu_node(kind, labels={"nvidia.com/gpu.memory": str(memory_mib)})
        answer = decide([node], source, accelerator={"types": ["l4-shared"]} if kind == "l4-shared" else {})
        return answer if isinstance(answer, Choice) else None

    small, large = on(mib), on(mib + more_mib)
    if small is not None:
        assert large is not None
        assert BITS[large.format] >= BITS[small.format]


@settings(**examples(60))
@given(nodes(), models)
def test_every_gpu_that_could_be_asked_for_is_chosen_or_skipped_with_a_reason(
    found: list[NodeState], source: str
) -> None:
    answer = decide(found, source)
    named = {name for one in answer.skipped for name in one.name.split("/")}
    if isinstance(answer, Choice):
        named |= set(answer.gpu_class.split("/"))
    there = {h.gpu.name for h in hardware_of(found, (), TABLE) if h.gpu.vendor == "Nvidia"}
    assert there <= named
    assert all(one.reason for one in answer.skipped)
