"""`emberline-local` as its user has it: real commands, real processes, and what they leave behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from emberline_local.children import marked_pids, sweep
from emberline_local.record import ClusterFolder, Record

pytestmark = pytest.mark.cluster

OVERLAY = Path(__file__).parents[1] / "support" / "small_overlay"
NAME = "test"


@dataclass(frozen=True, slots=True)
class Local:
    """The command line with a state folder of its own, as one user."""

    home: Path
    program: Path
    before: tuple[str, ...] = ()
    """What the command is run by, for another user."""
    python: str = sys.executable

    @property
    def folder(self) -> ClusterFolder:
        return ClusterFolder(self.home / "state" / "emberline" / NAME)

    @property
    def environ(self) -> dict[str, str]:
        return {
            **os.environ,
            **({"HOME": str(self.home)} if self.before else {}),
            "XDG_STATE_HOME": str(self.home / "state"),
            "EMBERLINE_LOCALPLANE": str(self.program),
            "EMBERLINE_LOCAL_NAME": NAME,
        }

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*self.before, self.python, "-P", "-m", "emberline_local.cli", *words],
            env=self.environ,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *words: str, code: int = 0) -> str:
        with self.start(*words) as process:
            output, _ = process.communicate(timeout=120)
        assert process.returncode == code, output
        return output

    def record(self) -> Record:
        record = self.folder.read_record()
        assert record is not None
        return record

    def assert_nothing_is_left(self) -> None:
        assert marked_pids(self.folder.path) == []
        assert not self.folder.path.parent.exists()


def wait_until(is_so: Callable[[], object], what: str, timeout_s: float = 60) -> None:
    until = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < until, f"not after {timeout_s} s: {what}"
        time.sleep(0.02)


@pytest.fixture
def local(localplane: Path, tmp_path: Path) -> Iterator[Local]:
    made = Local(tmp_path, localplane)
    yield made
    sweep(made.folder.path)  # after a failed test


@pytest.fixture(scope="module")
def up(localplane: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Local]:
    """A cluster with stand-ins for operator and gateway, which the tests of this module share."""
    local = Local(tmp_path_factory.mktemp("local"), localplane)
    try:
        local.run(*UP)
        yield local
    finally:
        sweep(local.folder.path)


UP = ("up", "--manifests", str(OVERLAY), "--gateway-port", "0", "--audit-log")
UP += ("--node", "name=eu-1,region=eu,gpu=h100:2", "--node", "name=cpu-1", "--status-only-nodes", "3")


def ask(url: str, word: str) -> str:
    """Says a word, ends this direction, and reads the answer to its end."""
    with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=10) as connection:
        connection.sendall(word.encode())
        connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(1000), b"")).decode()


def test_a_second_up_finds_it_and_another_wish_is_refused(up: Local) -> None:
    before = up.record()
    assert "is up" in up.run(*UP)
    assert up.record() == before
    refused = up.run(*UP[:-2], code=1)
    assert "other options (status_only_nodes)" in refused


def test_status_names_nodes_pods_and_urls(up: Local) -> None:
    shown = up.run("status")
    for wanted in (
        "eu-1",
        "2 NVIDIA-H100-80GB-HBM3",
        "emberline-system/emberline-gateway-",
        "Running",
        "http://127.0.0.1:",
    ):
        assert wanted in shown


def test_kubectl_gets_every_word_and_gives_its_exit_code(up: Local) -> None:
    labels = up.run(
        "kubectl", "get", "node", "eu-1", "-o", r"jsonpath={.metadata.labels.topology\.kubernetes\.io/region}"
    )
    assert labels == "eu"
    assert "NotFound" in up.run("kubectl", "get", "node", "never-made", code=1)


def test_connections_go_round_the_ready_pods_and_may_end_one_direction(up: Local) -> None:
    url = up.record().urls["emberline-gateway"]
    answers = [ask(url, f"word {i}") for i in range(4)]
    assert [answer.partition(" from ")[0] for answer in answers] == [f"word {i}" for i in range(4)]
    pods = [answer.partition(" from ")[2] for answer in answers]
    assert len(set(pods)) == 2
    assert pods[0] == pods[2] != pods[1] == pods[3]


def test_an_open_connection_stays_while_new_ones_leave_a_terminating_pod(up: Local) -> None:
    url = up.record().urls["emberline-gateway"]
    with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=10) as held:
        held.sendall(b"early")
        other = ask(url, "x").partition(" from ")[2]
        pods = up.run(
            "kubectl",
            "get",
            "pods",
            "-n",
            "emberline-system",
            "-l",
            "app.kubernetes.io/name=emberline-gateway",
            "-o",
            "name",
        ).split()
        mine = next(pod for pod in pods if not pod.endswith(other)).removeprefix("pod/")
        # Its program takes no notice of SIGTERM for the length of its preStop hook.
        up.run("kubectl", "delete", "pod", mine, "-n", "emberline-system", "--wait=false")
        wait_until(
            lambda: mine not in {ask(url, "y").partition(" from ")[2] for _ in range(2)}, "new connections avoid it"
        )
        held.sendall(b" and late")
        held.shutdown(socket.SHUT_WR)
        answer = b"".join(iter(lambda: held.recv(1000), b"")).decode()
    assert answer == f"early and late from {mine}"


def test_the_model_is_a_bound_claim(up: Local) -> None:
    phase = up.run("kubectl", "get", "pvc", "models", "-o", "jsonpath={.status.phase}")
    assert phase == "Bound"
    path = up.run("kubectl", "get", "pv", "default-models", "-o", "jsonpath={.spec.local.path}")
    assert (Path(path) / "smollm2" / "config.json").is_file()


def test_the_operator_knows_the_public_url(up: Local) -> None:
    url = up.record().urls["emberline-gateway"]
    assert f"public URL {url}" in up.run("logs", "operator")
    assert "there are: operator, gateway" in up.run("logs", "never-made", code=1)


def test_the_audit_log_tells_nodes_from_pods_and_people(up: Local) -> None:
    lines = (up.folder.plane_dir / "audit.log").read_text().splitlines()
    users = {json.loads(line)["user"]["username"] for line in lines}
    assert {"emberline-local:admin", "emberline-local:node", "system:kube-scheduler"} <= users


def test_down_leaves_nothing(up: Local) -> None:
    """Last in this module: the cluster that the others share goes."""
    pids = marked_pids(up.folder.path)
    assert len(pids) > 6  # plane, supervisor, three pods and a grandchild
    assert "is down" in up.run("down")
    up.assert_nothing_is_left()
    assert "not there" in up.run("down")
    assert "no cluster 'test' is up" in up.run("status", code=1)


def supervisor_pid(local: Local) -> int:
    """The supervisor of a cluster in mid-start: its control plane has begun and is not ready."""
    wait_until(lambda: (local.folder.plane_dir / "kube-apiserver.log").exists(), "the API server is started")
    assert local.record().phase == "starting"
    return local.record().pid


def test_ctrl_c_in_mid_start_leaves_nothing(local: Local) -> None:
    with local.start("up", "--no-operator") as launcher:
        supervisor_pid(local)
        launcher.send_signal(signal.SIGINT)
        launcher.communicate(timeout=60)
    assert launcher.returncode == 130
    local.assert_nothing_is_left()


def test_a_killed_launcher_in_mid_start_leaves_nothing(local: Local) -> None:
    with local.start("up", "--no-operator") as launcher:
        supervisor_pid(local)
        launcher.kill()
    wait_until(lambda: not local.folder.path.parent.exists(), "the supervisor has cleared up")
    wait_until(lambda: not marked_pids(local.folder.path), "the supervisor has ended")


def test_a_killed_supervisor_in_mid_start_is_told_and_swept(local: Local) -> None:
    with local.start("up", "--no-operator") as launcher:
        os.kill(supervisor_pid(local), signal.SIGKILL)
        output, _ = launcher.communicate(timeout=60)
    assert launcher.returncode == 1
    assert "ended with code -9 in mid-start" in output
    assert marked_pids(local.folder.path) == []
    local.run("down")
    local.assert_nothing_is_left()


def test_a_failed_start_says_why(local: Local) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        output = local.run("up", "--manifests", str(OVERLAY), "--gateway-port", str(port), code=1)
    assert f"port {port} of 127.0.0.1 cannot be had for the gateway (--gateway-port)" in output
    local.run("down")
    local.assert_nothing_is_left()


def test_an_ordinary_user_has_it_too_and_down_clears_up_after_a_crash(localplane: Path) -> None:
    # Not below pytest's own folder, which every session of pytest closes to other users anew.
    with tempfile.TemporaryDirectory(prefix="emberline-user-") as home:
        local = as_ordinary_user(localplane, Path(home))
        use_and_crash(local)


def use_and_crash(local: Local) -> None:
    try:
        local.run("up", "--no-operator")
        pod = yaml.safe_dump(POD)
        manifest = local.home / "pod.yaml"
        manifest.write_text(pod)
        local.run("kubectl", "apply", "-f", str(manifest))
        local.run("kubectl", "wait", "--for=condition=Ready", "pod/sleeper", "--timeout=60s")
        record = local.record()
        assert Path(f"/proc/{record.pid}").stat().st_uid != 0
        os.kill(record.pid, signal.SIGKILL)
        assert "the supervisor of cluster 'test' is gone" in local.run("status", code=1)
        local.run("down")
        local.assert_nothing_is_left()
    finally:
        sweep(local.folder.path)


POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "sleeper"},
    "spec": {
        "containers": [
            {
                "name": "sleeper",
                "image": "emberline/operator:dev",
                # A grandchild in a session of its own: the kernel does not kill it with the supervisor.
                "command": ["/bin/sh", "-c", "setsid sleep 1000 & exec sleep 1000"],
            }
        ]
    },
}


NOBODY = 65534


def as_ordinary_user(localplane: Path, home: Path) -> Local:
    """As this user, or as `nobody` where this is root; skips where nobody can run no Python of this version."""
    if os.geteuid() != 0:
        return Local(home, localplane)
    as_nobody = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--")
    os.chown(home, NOBODY, NOBODY)
    complaint = ""
    for python in (sys.executable, environment_over_ours(home)):
        # A second start within the first, which setpriv still gives root's capabilities for.
        tried = subprocess.run(
            [*as_nobody, "/bin/sh", "-c", f"exec {python} -P -c 'import emberline_local.supervisor'"],
            cwd="/",
            capture_output=True,
            text=True,
            check=False,
        )
        if tried.returncode == 0:
            return Local(home, localplane, as_nobody, python)
        complaint = tried.stderr.strip().rpartition("\n")[2]
    pytest.skip(f"an ordinary user can run no Python with this project: {complaint}")


def environment_over_ours(home: Path) -> str:
    """A Python of the system's that sees our packages, for a machine whose own lies in root's home."""
    system = f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}"
    environment = home / "env"
    if Path(system).exists():
        subprocess.run([system, "-m", "venv", "--without-pip", "--symlinks", str(environment)], check=True, timeout=60)
        (packages,) = environment.glob("lib/python*/site-packages")
        (packages / "ours.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    return str(environment / "bin" / "python")
