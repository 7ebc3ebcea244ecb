"""Names, pods and phases as the watches give them."""

from __future__ import annotations

import pytest

from emberline_contract.health import WaitPhase
from emberline_gateway.directory import Directory, UnknownModelError
from emberline_gateway.objects import Target, UnreadableError, read_endpoint, read_pod
from support.gateway import Raw, make_endpoint, make_pod

TINY = Target("default", "tiny", "default")


def directory_of(*endpoints: Raw, pods: tuple[Raw, ...] = ()) -> Directory:
    directory = Directory()
    directory.endpoint_sink.replace(endpoints)
    directory.pod_sink.replace(pods)
    return directory


@pytest.mark.parametrize(
    ("model", "path", "expected"),
    [
        ("default/tiny", None, "default/tiny"),
        ("tiny", None, "default/tiny"),
        ("team/shared", None, "team/shared"),
        ("default/shared", None, "default/shared"),
        (None, ("team", "shared"), "team/shared"),
        ("shared", ("team", "shared"), "team/shared"),
        ("team/shared", ("team", "shared"), "team/shared"),
    ],
)
def test_resolves(model: str | None, path: tuple[str, str] | None, expected: str) -> None:
    directory = directory_of(make_endpoint("tiny"), make_endpoint("shared"), make_endpoint("shared", "team"))
    assert directory.resolve(model, path).qualified == expected


@pytest.mark.parametrize(
    ("model", "path", "says"),
    [
        ("nope", None, "'nope' does not exist"),
        ("default/nope", None, "'default/nope' does not exist"),
        ("other/tiny", None, "'other/tiny' does not exist"),
        ("tiny/", None, "does not exist"),
        ("", None, "does not exist"),
        ("shared", None, "write <namespace>/shared"),
        (None, None, "names no model"),
        ("tiny", ("default", "nope"), "no InferenceEndpoint 'nope'"),
        ("shared", ("default", "tiny"), "serves the models 'default/tiny', 'tiny', not 'shared'"),
        ("", ("default", "tiny"), "not ''"),
    ],
)
def test_refuses(model: str | None, path: tuple[str, str] | None, says: str) -> None:
    directory = directory_of(make_endpoint("tiny"), make_endpoint("shared"), make_endpoint("shared", "team"))
    with pytest.raises(UnknownModelError, match=says):
        directory.resolve(model, path)


def test_a_name_is_offered_while_it_is_unique() -> None:
    directory = directory_of(make_endpoint("tiny"))
    endpoint = directory.resolve("tiny", None)
    assert directory.model_names(endpoint) == ("default/tiny", "tiny")
    directory.endpoint_sink.put(make_endpoint("tiny", "team"))
    assert directory.model_names(endpoint) == ("default/tiny",)
    directory.endpoint_sink.drop(make_endpoint("tiny", "team"))
    assert directory.model_names(endpoint) == ("default/tiny", "tiny")


@pytest.mark.parametrize(
    ("pod", "is_ready", "is_leaving", "phase", "detail"),
    [
        (make_pod("pending", message="0/3 nodes: no GPU"), False, False, WaitPhase.SCHEDULING, "0/3 nodes: no GPU"),
        (make_pod("starting", message="pulling"), False, False, WaitPhase.STARTING, "ContainerCreating pulling"),
        (make_pod("loading"), False, False, WaitPhase.LOADING, ""),
        (make_pod("ready"), True, False, WaitPhase.LOADING, ""),
        (make_pod("leaving"), True, True, WaitPhase.LOADING, ""),
    ],
)
def test_reads_a_pod(pod: Raw, *, is_ready: bool, is_leaving: bool, phase: WaitPhase, detail: str) -> None:
    read = read_pod(pod)
    assert (read.is_ready, read.is_leaving, read.phase, read.detail) == (is_ready, is_leaving, phase, detail)
    assert read.target == TINY


def test_a_crashed_container_says_why() -> None:
    raw = make_pod("starting")
    waiting = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}}
    raw["status"]["containerStatuses"][0]["state"] = waiting
    assert read_pod(raw).detail == "CrashLoopBackOff back-off 10s"


def test_ended_pods_and_ipv6_and_ports() -> None:
    raw = make_pod("ready", url="http://127.0.0.1:8123")
    assert read_pod(raw).url == "http://127.0.0.1:8123"
    raw["status"] |= {"phase": "Failed", "podIP": "fd00::1"}
    raw["spec"] = {}
    assert (read_pod(raw).is_leaving, read_pod(raw).url) == (True, "http://[fd00::1]:8000")


def test_a_pod_without_labels_is_unreadable() -> None:
    raw = make_pod()
    raw["metadata"]["labels"] = {}
    with pytest.raises(UnreadableError, match=r"has no label 'emberline\.dev/endpoint'"):
        read_pod(raw)
    said: list[str] = []
    Directory(said.append).pod_sink.put(raw)
    assert len(said) == 1
    strange = make_pod()
    strange["status"]["conditions"] = [{}]
    Directory(said.append).pod_sink.put(strange)
    assert said[1].endswith("KeyError('type')")


def test_reads_an_endpoint_of_a_newer_version() -> None:
    raw = make_endpoint(regions=("eu",), max_queue=7, heartbeat="500ms", activation_timeout="1h")
    raw["spec"]["scaling"]["inventedLater"] = True
    read = read_endpoint(raw)
    assert read.targets == (Target("default", "tiny", "eu"),)
    assert (read.max_queue, read.heartbeat_s, read.activation_timeout_s) == (7, 0.5, 3600.0)
    assert read.created_s == 1767323045
    raw["spec"] = {"model": {}}
    assert (read_endpoint(raw).max_queue, read_endpoint(raw).activation_timeout_s) == (100, 600.0)
    raw["spec"] = {"serving": {"heartbeat": "soon"}}
    with pytest.raises(UnreadableError, match="'soon' is no duration"):
        read_endpoint(raw)


def test_a_refusal_counts_for_its_generation_only() -> None:
    raw = make_endpoint(refusal="wrong")
    assert read_endpoint(raw).refusal == "InvalidSpec: wrong"
    raw["metadata"]["generation"] = 2
    assert read_endpoint(raw).refusal == ""


@pytest.mark.parametrize(
    ("kind", "status", "reason", "refusal"),
    [
        ("Placed", "False", "UnknownRegion", "UnknownRegion: m"),
        ("Placed", "False", "DoesNotFit", "DoesNotFit: m"),
        ("Placed", "True", "PartlyPlaced", ""),
        ("Ready", "True", "Stopped", "Stopped: m"),
        ("ScalingActive", "True", "Stopped", ""),
        ("WeightsReady", "False", "ClaimNotFound", "ClaimNotFound: m"),
        ("WeightsReady", "False", "ClaimNotBound", ""),
        ("WeightsReady", "Unknown", "ClaimNotFound", ""),
        ("Ready", "False", "ContainerFailed", ""),
    ],
)
def test_what_only_a_user_can_mend_is_a_refusal(kind: str, status: str, reason: str, refusal: str) -> None:
    raw = make_endpoint()
    raw["status"] = {"conditions": [{"type": kind, "status": status, "reason": reason, "message": "m"}]}
    assert read_endpoint(raw).refusal == refusal


def test_pods_come_change_and_go() -> None:
    directory = directory_of(make_endpoint())
    told: list[Target] = []
    directory.on_change = told.append
    pod = make_pod("pending", uid="a")
    directory.pod_sink.put(pod)
    assert (len(directory.pods(TINY)), directory.ready_pods(TINY)) == (1, ())
    directory.pod_sink.put(make_pod("ready", uid="a"))
    assert [p.uid for p in directory.ready_pods(TINY)] == ["a"]
    directory.pod_sink.put(make_pod("ready", uid="a"))  # nothing new
    assert told == [TINY, TINY]
    directory.pod_sink.put(make_pod("leaving", uid="a"))
    assert (directory.pods(TINY), directory.ready_pods(TINY)) == ((), ())
    directory.pod_sink.drop(pod)
    directory.pod_sink.drop(pod)
    directory.pod_sink.put(make_pod("ready", uid="b"))
    directory.pod_sink.replace([])
    assert directory.ready_pods(TINY) == ()
    assert told == [TINY] * 6


def test_is_complete_when_both_lists_are_read() -> None:
    directory = Directory()
    assert not directory.is_complete
    directory.pod_sink.replace([])
    assert not directory.is_complete
    directory.endpoint_sink.replace([])
    assert directory.is_complete


def test_a_moved_endpoint_tells_both_regions() -> None:
    directory = directory_of(make_endpoint())
    told: set[Target] = set()
    directory.on_change = told.add
    directory.endpoint_sink.put(make_endpoint(regions=("eu",)))
    assert told == {TINY, Target("default", "tiny", "eu")}


def aliased(name: str, alias: str, namespace: str = "default", *, created: str = "2026-01-02T03:04:05Z") -> Raw:
    raw = make_endpoint(name, namespace)
    raw["spec"]["model"]["servedName"] = alias
    raw["metadata"]["creationTimestamp"] = created
    return raw


def test_an_alias_belongs_to_the_oldest() -> None:
    young, old = aliased("young", "llama"), aliased("old", "llama", created="2025-01-01T00:00:00Z")
    directory = directory_of(young)
    assert directory.resolve("llama", None).name == "young"
    assert directory.model_names(directory.resolve("young", None)) == ("default/young", "llama", "young")
    directory.endpoint_sink.put(old)
    assert directory.resolve("llama", None).name == "old"
    assert directory.model_names(directory.resolve("young", None)) == ("default/young", "young")
    assert directory.resolve("llama", ("default", "young")).name == "young"  # the path has said which one
    directory.endpoint_sink.put(aliased("old", "other", created="2025-01-01T00:00:00Z"))
    assert directory.resolve("llama", None).name == "young"
    directory.endpoint_sink.drop(young)
    with pytest.raises(UnknownModelError, match="'llama' does not exist"):
        directory.resolve("llama", None)
    directory.endpoint_sink.replace([young])
    assert directory.resolve("llama", None).name == "young"


def test_a_qualified_name_beats_an_alias_and_an_alias_beats_a_name() -> None:
    directory = directory_of(aliased("a", "team/tiny"), make_endpoint("tiny", "team"))
    assert directory.resolve("team/tiny", None).namespace == "team"
    directory.endpoint_sink.put(aliased("a", "tiny"))
    assert directory.resolve("tiny", None).name == "a"
    assert directory.model_names(directory.resolve("team/tiny", None)) == ("team/tiny",)
    directory.endpoint_sink.put(aliased("a", "org/model"))
    assert directory.resolve("org/model", None).name == "a"


EU, US = Target("default", "tiny", "eu"), Target("default", "tiny", "us")


def test_the_regions_of_a_request() -> None:
    raw = make_endpoint(regions=("eu", "us"))
    directory = directory_of(raw)

    def assigned() -> Target:
        return directory.assign(directory.resolve("tiny", None))

    assert assigned() == EU
    directory.pod_sink.put(make_pod("pending", uid="u", region="us"))
    assert assigned() == US
    directory.pod_sink.put(make_pod("loading", uid="e", region="eu"))
    assert assigned() == EU
    directory.pod_sink.put(make_pod("ready", uid="u", region="us"))
    assert assigned() == US
    directory.pod_sink.put(make_pod("ready", uid="e", region="eu"))
    assert assigned() == EU


def test_a_region_in_trouble_comes_last_and_one_that_was_left_serves_until_it_is_gone() -> None:
    raw = make_endpoint(regions=("eu", "us"))
    raw["status"] = {"regions": [{"name": "eu", "message": "no nodes"}, {"name": "us"}, {"name": "old"}]}
    assert [target.region for target in read_endpoint(raw).targets] == ["us", "eu", "old"]
    directory = directory_of(raw)
    directory.pod_sink.put(make_pod("ready", uid="o", region="old"))
    assert directory.assign(directory.resolve("tiny", None)).region == "old"


@pytest.mark.parametrize(
    ("own", "states", "expected"),
    [
        ("us", {}, US),
        ("us", {"eu": "ready", "us": "ready"}, US),
        ("us", {"eu": "loading", "us": "loading"}, US),
        ("us", {"eu": "ready", "us": "loading"}, EU),
        ("elsewhere", {"eu": "ready", "us": "ready"}, EU),
        ("", {"eu": "ready", "us": "ready"}, EU),
    ],
)
def test_of_equal_regions_the_own_one_comes_first(own: str, states: dict[str, str], expected: Target) -> None:
    directory = Directory(own_region=own)
    directory.endpoint_sink.replace([make_endpoint(regions=("eu", "us"))])
    directory.pod_sink.replace([make_pod(state, region=region) for region, state in states.items()])
    assert directory.assign(directory.resolve("tiny", None)) == expected


def test_external_scaling_leaves_the_wake_to_others() -> None:
    raw = make_endpoint()
    assert read_endpoint(raw).may_wake
    raw["spec"]["scaling"]["via"] = "External"
    assert not read_endpoint(raw).may_wake
