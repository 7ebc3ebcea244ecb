from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from emberline_local.children import start_ticks
from emberline_local.errors import ClusterStateError, OptionError
from emberline_local.folders import cache_dir, cluster_dir
from emberline_local.record import ClusterFolder, Phase, Record


@pytest.fixture
def folder(tmp_path: Path) -> ClusterFolder:
    made = ClusterFolder(tmp_path / "emberline" / "dev")
    made.path.mkdir(parents=True)
    return made


def of_this_process(phase: Phase, **changes: object) -> Record:
    ticks = start_ticks(os.getpid())
    assert ticks is not None
    return Record(**{"pid": os.getpid(), "start_ticks": ticks, "phase": phase, "program": "/p", **changes})  # type: ignore[arg-type]


def test_a_ready_record_is_given_back(folder: ClusterFolder) -> None:
    record = of_this_process(Phase.READY, urls={"a": "http://127.0.0.1:1"})
    folder.write_record(record)
    assert folder.running() == record


def test_without_a_record_nothing_is_up(folder: ClusterFolder) -> None:
    with pytest.raises(
        ClusterStateError, match="no cluster 'dev' is up; start it with `emberline-local up --name dev`"
    ):
        folder.running()


def test_a_reused_process_id_is_not_the_supervisor(folder: ClusterFolder) -> None:
    folder.write_record(of_this_process(Phase.READY, start_ticks=1))
    with pytest.raises(ClusterStateError, match="the supervisor of cluster 'dev' is gone"):
        folder.running()


def test_a_cluster_that_starts_is_not_up_yet(folder: ClusterFolder) -> None:
    folder.write_record(of_this_process(Phase.STARTING))
    with pytest.raises(ClusterStateError, match="is starting; try again"):
        folder.running()


def test_the_lock_is_taken_anew_when_its_folder_was_removed_meanwhile(folder: ClusterFolder) -> None:
    has_it = threading.Event()

    def waits() -> None:
        with folder.locked():
            has_it.set()
            assert folder.path.is_dir()

    with folder.locked():
        waiter = threading.Thread(target=waits)
        waiter.start()
        assert not has_it.wait(0.1)
        folder.remove()
    assert has_it.wait(5)
    waiter.join()
    assert folder.path.is_dir()


def test_removing_the_last_cluster_removes_the_folder_above(folder: ClusterFolder) -> None:
    other = ClusterFolder(folder.path.parent / "other")
    other.path.mkdir()
    folder.remove()
    assert other.path.is_dir()
    other.remove()
    other.remove()
    assert not other.path.parent.exists()


@pytest.mark.parametrize("name", ["", "A", "../x", "a/b", "-a", "a" * 41])
def test_a_name_that_would_lead_elsewhere_is_refused(name: str) -> None:
    with pytest.raises(OptionError, match="cannot name a cluster"):
        cluster_dir({"HOME": "/home/x"}, name)


def test_folders_follow_xdg_and_ignore_relative_values() -> None:
    assert cluster_dir({"HOME": "/h", "XDG_STATE_HOME": "/s"}, "dev") == Path("/s/emberline/dev")
    assert cluster_dir({"HOME": "/h", "XDG_STATE_HOME": "s"}, "dev") == Path("/h/.local/state/emberline/dev")
    assert cache_dir({"HOME": "/h"}) == Path("/h/.cache/emberline")
