"""From a model folder's config.json to a ModelSpec: one small module a family, chosen by the HF architecture name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from emberline_runtime.models import llama
from emberline_runtime.models.config_fields import ConfigFields
from emberline_runtime.models.errors import ModelConfigError, UnknownArchitectureError
from emberline_runtime.models.parameters import ModelParameters
from emberline_runtime.models.spec import ModelSpec
from emberline_runtime.models.stored_weights import UNUSED_SCALES, WEIGHT_SCALE, read_stored_weights

CONFIG_FILE = "config.json"


class Family(Protocol):
    """What a family's module offers."""

    ARCHITECTURES: tuple[str, ...]

    def make_spec(self, architecture: str, config: ConfigFields) -> ModelSpec:
        """What config.json says, as a ModelSpec."""

    def make_parameters(self, spec: ModelSpec) -> ModelParameters:
        """The tensors that a checkpoint of this spec holds."""


_ALL: tuple[Family, ...] = (llama,)
_FAMILIES: Mapping[str, Family] = {name: family for family in _ALL for name in family.ARCHITECTURES}


def read_spec(folder: Path) -> ModelSpec:
    """The spec of the model in `folder`; raises ModelFolderError with what is wrong and what to do."""
    path = folder / CONFIG_FILE
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ModelConfigError(f"{path} is not there; model_path must name a folder with {CONFIG_FILE}") from error
    except (OSError, ValueError) as error:
        raise ModelConfigError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(config, dict):
        raise ModelConfigError(f"{path} holds a {type(config).__name__}, not an object")
    return make_spec(config)


def make_spec(config: Mapping[str, object]) -> ModelSpec:
    """The spec that a config.json's content describes."""
    architectures = config.get("architectures")
    if not isinstance(architectures, list) or len(architectures) != 1 or not isinstance(architectures[0], str):
        raise ModelConfigError(
            f"config.json: field 'architectures' is {architectures!r:.80}; it must be a list with one name"
        )
    architecture = architectures[0]
    family = _FAMILIES.get(architecture)
    if family is None:
        raise UnknownArchitectureError(
            f"architecture {architecture!r} is not known; known are {', '.join(sorted(_FAMILIES))}"
        )
    fields = ConfigFields(config)
    stored_weights = read_stored_weights(fields)
    return replace(family.make_spec(architecture, fields), stored_weights=stored_weights)


def make_parameters(spec: ModelSpec) -> ModelParameters:
    """The tensors that a checkpoint of this spec holds."""
    parameters = _FAMILIES[spec.architecture].make_parameters(spec)
    if spec.stored_weights is None:
        return parameters
    suffixes = (*parameters.ignored_suffixes, WEIGHT_SCALE, *UNUSED_SCALES)
    return replace(parameters, ignored_suffixes=suffixes)
