from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from emberline_local import logs, status
from emberline_local.errors import ClusterStateError
from emberline_local.events import Event, EventKind, read_event, write_event
from emberline_local.pod_logs import log_path
from emberline_local.progress import Steps
from emberline_local.record import ClusterFolder


def written(folder: ClusterFolder, text: str, *, namespace: str = "default", pod: str = "a", restart: int = 0) -> Path:
    path = log_path(folder.path, namespace=namespace, pod=pod, uid="u", container="c", restart=restart)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> ClusterFolder:
    return ClusterFolder(tmp_path)


def test_pods_are_found_by_every_way_of_naming_them(folder: ClusterFolder) -> None:
    a = written(folder, "a")
    operator = written(folder, "o", namespace="emberline-system", pod="emberline-operator-1-2")
    assert logs.find(folder, "a", None, None) == logs.find(folder, "default/a", None, None) == [a]
    assert logs.find(folder, "a", None, "c") == [a]
    assert logs.find(folder, "operator", None, None) == [operator]
    assert logs.find(folder, "emberline-operator-1-2", "emberline-system", None) == [operator]
    assert logs.find(folder, "etcd", None, None) == [folder.plane_dir / "etcd.log"]


def test_what_there_is_not_is_answered_with_what_there_is(folder: ClusterFolder) -> None:
    written(folder, "a", namespace="ns", pod="b")
    with pytest.raises(ClusterStateError, match=r"no log of ns/a; there are: operator, .*, ns/b$"):
        logs.find(folder, "ns/a", None, None)


def test_several_runs_are_told_apart(folder: ClusterFolder) -> None:
    files = [written(folder, f"run {i}\n", restart=i) for i in range(2)]
    output = io.BytesIO()
    logs.show(lambda: files, output, follow=False)
    assert output.getvalue() == b"run 0\n==> c/1.log <==\nrun 1\n"


def test_following_shows_what_is_added_and_new_files_until_ctrl_c(
    folder: ClusterFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [written(folder, "one\n")]
    output = io.BytesIO()
    looks = iter(
        [
            lambda: files[0].write_text("one\ntwo\n"),
            lambda: files.append(written(folder, "three\n", restart=1)),
            lambda: files[0].unlink(),  # its pod is gone for a while
        ]
    )

    def then(_: float) -> None:
        try:
            next(looks)()
        except StopIteration:
            raise KeyboardInterrupt from None

    monkeypatch.setattr(logs.time, "sleep", then)
    with pytest.raises(KeyboardInterrupt):
        logs.show(lambda: files, output, follow=True)
    assert output.getvalue() == b"one\ntwo\n==> c/1.log <==\nthree\n"


def shown(objects: list[dict[str, Any]]) -> str:
    console = Console(file=io.StringIO(), width=200)
    console.print(status.render("dev", objects, {"gateway": "http://127.0.0.1:1"}))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_status_of_an_empty_cluster_says_none() -> None:
    assert shown([]).count("none") == 3


def test_status_shows_why_a_pod_waits_and_an_endpoint_is_not_ready() -> None:
    pod = {
        "kind": "Pod",
        "metadata": {"namespace": "ns", "name": "p"},
        "spec": {"containers": [{"name": "c"}]},
        "status": {
            "phase": "Pending",
            "containerStatuses": [
                {"ready": False, "restartCount": 3, "state": {"waiting": {"reason": "CrashLoopBackOff"}}}
            ],
        },
    }
    leaving = {
        "kind": "Pod",
        "metadata": {"namespace": "ns", "name": "q", "deletionTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"containers": [{"name": "c"}], "nodeName": "n"},
        "status": {"phase": "Running", "podIP": "127.16.1.1"},
    }
    endpoint = {
        "kind": "InferenceEndpoint",
        "metadata": {"namespace": "ns", "name": "e"},
        "spec": {"model": {"source": "pvc://models/m"}},
        "status": {"replicas": 2, "conditions": [{"type": "Ready", "status": "False", "reason": "Starting"}]},
    }
    lines = [line.split() for line in shown([pod, leaving, endpoint]).splitlines()]
    assert ["ns/p", "-", "CrashLoopBackOff", "0/1", "3", "-"] in lines
    assert ["ns/q", "n", "Terminating", "0/1", "0", "127.16.1.1"] in lines
    assert ["ns/e", "pvc://models/m", "False", "Starting", "0/2", "-"] in lines


def test_steps_are_shown_with_their_times() -> None:
    console = Console(file=io.StringIO(), width=80)
    times = iter([10.0, 12.5, 13.0])
    with Steps(console, clock=lambda: next(times)) as steps:
        steps.show(Event(EventKind.STEP, "control plane"))
        steps.show(Event(EventKind.STEP, "nodes"))
        steps.show(Event(EventKind.DETAIL, "one is late"))
        steps.show(Event(EventKind.READY))
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().splitlines() == ["✓ control plane 2.5 s", "✓ nodes 0.5 s"]


def test_events_survive_the_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    event = Event(EventKind.READY, "line\nbreak", {"gateway": "http://127.0.0.1:1"})
    write_event(event)
    (line,) = capsys.readouterr().out.splitlines()
    assert read_event(line) == event
