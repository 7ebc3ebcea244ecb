"""The file of GPUs and labels that an installation adds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from emberline_contract import names
from emberline_operator.choice import Choice, Expression
from emberline_operator.errors import SettingsError
from emberline_operator.hardware.gpu_table import GpuLabels, make_table
from emberline_operator.hardware.labels_file import parse_gpu_labels
from emberline_operator.settings import Install
from support.gpu_nodes import decide, labelled_node

IMAGE = {names.ENV_RUNTIME_IMAGE: "engine:1"}
FILE = {
    "gpus": [{"name": "h800", "computeCapability": "9.0", "memory": "80Gi", "products": ["NVIDIA-H800"]}],
    "labels": {"example.com/gpu": {"big": "h800", "small": "l4"}},
}


def test_an_own_label_tells_gpus_of_the_table_and_of_the_file() -> None:
    table = make_table(parse_gpu_labels(json.dumps(FILE)))
    big = labelled_node({"example.com/gpu": "big"}, "a")
    small = labelled_node({"example.com/gpu": "small"}, "b")
    choice = decide([big, small], table=table, accelerator={"types": ["h800"]})
    assert isinstance(choice, Choice), choice
    assert (choice.gpu_class, choice.format) == ("h800", "fp8")
    assert choice.terms[0][0] == Expression("example.com/gpu", "In", ("big",))
    unnamed = decide([big, small], table=table)
    assert isinstance(unnamed, Choice), unnamed
    assert unnamed.gpu_class == "l4"


def test_a_product_of_the_file_is_known_by_its_label() -> None:
    table = make_table(parse_gpu_labels(json.dumps(FILE)))
    choice = decide([labelled_node({"nvidia.com/gpu.product": "NVIDIA-H800"})], table=table)
    assert isinstance(choice, Choice), choice
    assert choice.gpu_class == "h800"


def test_the_operator_reads_it_at_its_start(tmp_path: Path) -> None:
    path = tmp_path / "gpus.json"
    path.write_text(json.dumps(FILE))
    install = Install.from_environ({**IMAGE, names.ENV_GPU_TABLE: str(path)})
    assert make_table(install.gpu_labels).named("h800")
    assert Install.from_environ(IMAGE).gpu_labels == GpuLabels()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is no JSON"),
        ("[]", "the file: Input should be"),
        ('{"gpu": []}', "gpu: Extra inputs are not permitted; see docs/gpus.md"),
        ('{"gpus": [{"name": "x"}]}', "gpus.0.computeCapability: Field required"),
        ('{"gpus": [{"name": "X Y", "computeCapability": "9.0", "memory": "80Gi"}]}', "gpus.0.name"),
        ('{"gpus": [{"name": "x", "computeCapability": "hopper", "memory": "80Gi"}]}', "gpus.0.computeCapability"),
        ('{"gpus": [{"name": "x", "computeCapability": "9.0", "memory": "80 GB"}]}', "gpus.0.memory"),
        ('{"labels": {"a/b": {"big": "h1000"}}}', "labels.a/b.big: 'h1000' is neither in `gpus` nor a GPU that is known"),
        ('{"labels": {"a/b": {"big": "h1000"}}}', "did you mean h100?"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_file_and_place(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "gpus.json"
    path.write_text(text)
    with pytest.raises(SettingsError) as refused:
        Install.from_environ({**IMAGE, names.ENV_GPU_TABLE: str(path)})
    assert f"{names.ENV_GPU_TABLE}: {path}: " in str(refused.value)
    assert words in str(refused.value)


def test_a_file_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be read: No such file"):
        Install.from_environ({**IMAGE, names.ENV_GPU_TABLE: str(tmp_path / "none.json")})
