"""Whatever the cluster looks like: where engines may start is known and allowed, and who must go does not count."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from emberline_operator.regions.residency import judge
from emberline_operator.snapshot import NodeState
from support.examples import examples
from support.region_world import EU, US, World, make_spec, node, region

NAMES = ("eu", "us", "de")
jurisdictions = st.sampled_from([(), ("EU",), ("EU", "DE"), ("US",)])
selectors = st.sampled_from([EU, US, {"pool": "x"}, {**EU, "pool": "x"}])
labels = st.sampled_from([EU, US, {}, {"pool": "x"}, {**EU, "pool": "x"}, {**US, "pool": "y"}])
regions = st.builds(
    lambda name, laws, selector: region(name, *laws, selector=selector),
    st.sampled_from(NAMES),
    jurisdictions,
    selectors,
)
nodes = st.builds(lambda name, found: node(name, found, gpu=None), st.sampled_from(["n-1", "n-2", "n-3"]), labels)
specs = st.builds(
    lambda named, laws: make_spec(*named, kind="Cpu", jurisdictions=laws if named else ()),
    st.lists(st.sampled_from(NAMES), unique=True, max_size=2),
    jurisdictions,
)
pods = st.tuples(
    st.sampled_from([*NAMES, "default"]),
    st.sampled_from(["n-1", "n-2", "n-3", "gone", ""]),
    st.sampled_from([0, 5, 2000]),
)
changes = st.one_of(
    regions, nodes, specs, pods,
    st.sampled_from(NAMES).map(lambda name: ("drop", name)),
    st.sampled_from([1.0, 300.0, 700.0]),
)  # fmt: skip


def change(world: World, what: Any, number: int) -> None:
    match what:
        case dict():
            world.know(what)
        case NodeState():
            world.put(what)
        case float():
            world.later(what)
        case ("drop", name):
            world.regions.pop(name, None)
        case (name, on, age_s):
            world.pod(f"p-{number}", on, region=name, age_s=age_s)
        case spec:
            world.spec = spec


@settings(**examples(60))
@given(st.lists(changes, min_size=1, max_size=20))
def test_engines_start_only_where_they_may_be_and_none_that_must_go_is_counted(steps: list[Any]) -> None:
    world = World(make_spec("eu", kind="Cpu", jurisdictions=("EU",)))
    world.know(region("eu", "EU", selector=EU))
    world.put(node("n-1", gpu=None))
    for number, what in enumerate(steps):
        change(world, what, number)
        placements = world.look()
        wanted = set(world.spec.placement.residency.jurisdictions)
        leaving = {eviction.pod for eviction in judge(world.spec, world.seen, placements.values(), world.now).evictions}
        for name, placement in placements.items():
            if placement.may_start:
                assert placement.most is None
                assert placement.decision is not None
                assert name in (world.spec.placement.regions or ("default",))
                if name != "default":
                    body = world.regions[name]["spec"]
                    assert not wanted or wanted & set(body["jurisdictions"])
                    assert dict(placement.decision.node_labels) == body["nodeSelector"]
            else:
                staying = [p for p in world.pods if p.region == name and p.node and p.name not in leaving]
                assert placement.most in (0, len(staying))
        if not world.spec.placement.regions:
            assert not leaving
        for pod in world.pods:
            # Nobody is evicted from a node that is not known, unless for its region; nobody outside is overlooked.
            body = world.regions.get(pod.region, {"spec": {"jurisdictions": ()}})["spec"]
            is_bound = bool(world.spec.placement.regions)
            if is_bound and wanted and body["jurisdictions"] and not wanted & set(body["jurisdictions"]):
                assert pod.name in leaving
