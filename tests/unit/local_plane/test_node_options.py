from __future__ import annotations

import pytest

from emberline_local.errors import OptionError
from emberline_local.node_options import EXAMPLE, GPUS, parse_node
from emberline_local.node_spec import NodeSpec, make_node
from emberline_local.options import ClusterOptions, read_options, write_options


def test_the_example_of_the_help_says_what_it_seems_to() -> None:
    spec = parse_node(EXAMPLE)
    assert (spec.name, spec.region) == ("eu-1", "eu")
    node = make_node(spec, kind="process", address="127.0.0.1")
    assert node["metadata"]["labels"]["topology.kubernetes.io/region"] == "eu"
    assert node["metadata"]["labels"]["nvidia.com/gpu.product"] == "NVIDIA-H100-80GB-HBM3"
    assert node["status"]["allocatable"]["nvidia.com/gpu"] == "8"


def test_a_name_is_enough() -> None:
    assert parse_node("name=a") == NodeSpec(name="a")


def test_every_word_arrives() -> None:
    spec = parse_node("name=a,zone=z,gpu=l4,load=1500ms,step=2ms,cpus=3,memory=5Gi,pods=7,label:disk=ssd,label:x/y=1")
    assert spec.gpus is not None
    assert (spec.gpus.count, spec.gpus.load_s, spec.gpus.step_s) == (1, 1.5, 0.002)
    assert (spec.zone, spec.cpus, spec.memory, spec.num_pods) == ("z", 3, "5Gi", 7)
    assert spec.labels == {"disk": "ssd", "x/y": "1"}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("region=eu", "name= must be there"),
        ("name=Eu", "name= must be there"),
        ("name=a,name=b", "'name' is given twice"),
        ("name=a,region", "'region' is no key=value"),
        ("name=a,gpus=8", "gpus is not known"),
        ("name=a,gpu=h1000", "is none of a10, a100"),
        ("name=a,gpu=h100:0", "'0' GPUs; a node has 1 to 64"),
        ("name=a,gpu=h100,load=long", "load=long"),
        ("name=a,step=1s", "step is not known"),  # of a node without GPUs
        ("name=a,cpus=many", "cpus=many"),
    ],
)
def test_what_is_wrong_is_named_with_an_example(text: str, complaint: str) -> None:
    with pytest.raises(OptionError, match="write it like --node") as refused:
        parse_node(text)
    assert complaint in str(refused.value)


def test_options_survive_the_state_folder(tmp_path) -> None:  # type: ignore[no-untyped-def]
    options = ClusterOptions(
        program=tmp_path / "localplane",
        nodes=tuple(parse_node(f"name={kind},gpu={kind}:2,region=r,label:a=b") for kind in GPUS),
        status_only_nodes=(NodeSpec(name="s"),),
        audit_log=True,
        models_dir=tmp_path,
        gateway_port=0,
    )
    assert read_options(write_options(options)) == options
