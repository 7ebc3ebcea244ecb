"""docs/gpus.md says what the tables say."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from emberline_contract.region import InferenceRegionSpec
from emberline_contract.resources import AcceleratorSpec
from emberline_operator.hardware.gpu_table import MODELS, make_table
from emberline_operator.hardware.labels_file import parse_gpu_labels

TEXT = (Path(__file__).parents[4] / "docs" / "gpus.md").read_text()


def block(language: str, word: str) -> str:
    found: list[str] = [text for text in re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL) if word in text]
    assert len(found) == 1
    return found[0]


def test_the_sample_file_is_read() -> None:
    own = parse_gpu_labels(block("json", "gpus"))
    assert [model.name for model in make_table(own).named("nvidia-h800")] == ["h800"]
    assert ("example.com/gpu", "small", "l4") in own.labels


def test_the_list_of_short_names_is_the_table_s() -> None:
    (line,) = [line for line in TEXT.splitlines() if line.startswith("Types are short names")]
    assert re.findall(r"`([^`]+)`", line) == [model.name for model in MODELS]


def test_the_samples_fit_the_resources() -> None:
    region = InferenceRegionSpec.model_validate(yaml.safe_load(block("yaml", "gpuPools"))["spec"])
    assert region.gpu_pools[0].type == "h100"
    accelerator = AcceleratorSpec.model_validate(yaml.safe_load(block("yaml", "minMemory"))["accelerator"])
    assert all(make_table().named(word) for word in accelerator.types)
