from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from emberline_local import pod_logs
from emberline_local.addresses import AddressPool
from emberline_local.containers import plan_command
from emberline_local.images import LocalImage, UnknownImageError, find_image, local_images, this_environment
from emberline_local.node_spec import NodeSpec, PretendedGpus, make_node


def test_addresses_are_loopback_and_used_again_last() -> None:
    pool = AddressPool.claim()
    try:
        first, second = pool.take(), pool.take()
        assert first == f"127.{pool.cluster}.1.0"
        assert second == f"127.{pool.cluster}.1.1"
        pool.give_back(first)
        assert pool.take() == f"127.{pool.cluster}.1.2"
        many = {pool.take() for _ in range(600)}
        assert len(many) == 600
        assert f"127.{pool.cluster}.2.255" in many
    finally:
        pool.close()


def test_two_clusters_never_share_addresses_and_a_closed_one_frees_its_own() -> None:
    first = AddressPool.claim()
    second = AddressPool.claim()
    assert first.cluster != second.cluster
    first.close()
    again = AddressPool.claim()
    assert again.cluster == first.cluster
    again.close()
    second.close()


def test_pretended_gpus_look_like_gpu_feature_discovery() -> None:
    gpus = PretendedGpus(product="NVIDIA-L40S", count=4, memory_mib=46068, compute=(8, 9), load_s=2, step_s=0.03)
    spec = NodeSpec(name="n", region="eu", zone="a", labels={"pool": "x"}, gpus=gpus, environment={"E": "1"})
    node = make_node(spec, kind="process", address="127.0.0.1")
    labels = node["metadata"]["labels"]
    assert labels["nvidia.com/gpu.product"] == "NVIDIA-L40S"
    assert labels["nvidia.com/gpu.memory"] == "46068"
    assert (labels["nvidia.com/gpu.compute.major"], labels["nvidia.com/gpu.compute.minor"]) == ("8", "9")
    assert labels["topology.kubernetes.io/region"] == "eu"
    assert labels["topology.kubernetes.io/zone"] == "a"
    assert labels["pool"] == "x"
    assert node["status"]["allocatable"]["nvidia.com/gpu"] == "4"
    assert spec.environment_of({"name": "no GPU asked for"}) == {"E": "1"}
    assert spec.environment_of({"resources": {"limits": {"nvidia.com/gpu": "1"}}}) == {
        "EMBERLINE_EXECUTOR": "oracle",
        "EMBERLINE_ORACLE_LOAD_S": "2",
        "EMBERLINE_ORACLE_STEP_S": "0.03",
        "E": "1",
    }


def test_pretended_gpus_of_amd_look_like_its_labeller() -> None:
    gpus = PretendedGpus(product="AMD_Instinct_MI300X_OAM", count=8, memory_mib=196592, compute=None)
    spec = NodeSpec(name="n", gpus=gpus)
    node = make_node(spec, kind="process", address="127.0.0.1")
    assert node["metadata"]["labels"]["amd.com/gpu.product-name"] == "AMD_Instinct_MI300X_OAM"
    assert node["metadata"]["labels"]["amd.com/gpu.vram"] == "192G"
    assert not any(label.startswith("nvidia") for label in node["metadata"]["labels"])
    assert node["status"]["allocatable"]["amd.com/gpu"] == "8"
    assert spec.environment_of({"resources": {"limits": {"nvidia.com/gpu": "1"}}}) == {}
    assert spec.environment_of({"resources": {"limits": {"amd.com/gpu": "1"}}})["EMBERLINE_EXECUTOR"] == "oracle"


def test_slices_and_shared_gpus_say_so() -> None:
    slices = PretendedGpus(product="NVIDIA-A100-SXM4-80GB-MIG-2g.20gb", count=3, memory_mib=19968, compute=(8, 0))
    assert slices.labels["nvidia.com/gpu.slices.gi"] == "2"
    assert slices.capacity == {"nvidia.com/gpu": "3"}
    shared = PretendedGpus(product="NVIDIA-L4-SHARED", count=2, memory_mib=23034, compute=(8, 9), replicas=4)
    assert shared.labels["nvidia.com/gpu.replicas"] == "4"
    assert shared.labels["nvidia.com/gpu.count"] == "2"
    assert shared.capacity == {"nvidia.com/gpu": "8"}


def test_node_without_gpus_has_none() -> None:
    node = make_node(NodeSpec(name="n"), kind="process", address="127.0.0.1")
    assert "nvidia.com/gpu" not in node["status"]["capacity"]
    assert not any(label.startswith("nvidia") for label in node["metadata"]["labels"])


@pytest.mark.parametrize("name", ["emberline/operator:dev", "docker.io/emberline/operator:dev"])
def test_python_of_an_image_is_this_one(name: str) -> None:
    environment = find_image(local_images(), name).environment
    assert environment["PATH"].split(":")[0] == str(Path(sys.executable).parent)


def test_unknown_image_is_answered_with_the_known_ones() -> None:
    with pytest.raises(UnknownImageError, match=r"emberline/operator:dev, emberline/runtime:dev"):
        find_image(local_images(), "nginx")


@pytest.mark.parametrize(
    ("spec", "command"),
    [
        ({"command": ["a", "$(X)"]}, ("a", "1")),
        ({"command": ["a"], "args": ["$(X)", "$$(X)"]}, ("a", "1", "$(X)")),
        ({"args": ["b"]}, ("b",)),
        ({}, ("image-program",)),
    ],
)
def test_command_line(spec: dict[str, list[str]], command: tuple[str, ...]) -> None:
    image = LocalImage(this_environment().environment, ("image-program",))
    assert plan_command(spec, image, {"X": "1"}) == command


def test_logs_are_found_by_pod_and_read_from_their_end(tmp_path: Path) -> None:
    paths = [
        pod_logs.log_path(tmp_path, namespace="n", pod="p", uid="u", container="main", restart=restart)
        for restart in (0, 1)
    ]
    for age, path in enumerate(reversed(paths)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"one\ntwo\nthree of {path.stem}\n")
        os.utime(path, (1000 - age, 1000 - age))
    assert pod_logs.find_logs(tmp_path, namespace="n", pod="p") == paths
    assert pod_logs.find_logs(tmp_path, namespace="n", pod="other") == []
    assert pod_logs.tail(paths[0], num_bytes=15) == "three of 0\n"
    assert pod_logs.tail(paths[0], num_bytes=1000) == "one\ntwo\nthree of 0\n"
    assert pod_logs.tail(tmp_path / "absent", num_bytes=10) == ""


def test_first_program_of_a_container_imports_next_to_nothing() -> None:
    """Every container's start pays for it."""
    source = Path(pod_logs.__file__).with_name("pod_root.py")
    code = (
        f"import sys; exec(open({str(source)!r}).read(), {{'__name__': 'pod_root'}});"
        " print(sorted({'json', 're', 'enum', 'pathlib', 'subprocess', 'typing'}.intersection(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
