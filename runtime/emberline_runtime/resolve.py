"""From a configuration file and flags to one EngineConfig. Pure but for `read_file`; every refusal is one line that names the field."""

from __future__ import annotations

import argparse
import json
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Union, get_args, get_origin

from pydantic import TypeAdapter, ValidationError
from pydantic.alias_generators import to_camel
from pydantic.fields import FieldInfo

from emberline_contract.engine_config import EngineConfig
from emberline_contract.names import ENGINE_PORT
from emberline_runtime.errors import StartRefused


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says besides EngineConfig's fields."""

    config: EngineConfig
    log_requests: bool


def make_parser() -> argparse.ArgumentParser:
    """Flags: one for each field of EngineConfig, named, typed and described by it, and a few of the process's own."""
    parser = argparse.ArgumentParser(
        prog="python -m emberline_runtime",
        description="Serve one model over the OpenAI API. Flags override the configuration file.",
        allow_abbrev=False,
    )
    parser.add_argument("--config", metavar="FILE", help="EngineConfig as a JSON file; flags override its fields")
    parser.add_argument("--host", help="address to listen on (default: $POD_IP, else 127.0.0.1)")
    parser.add_argument("--port", help=f"port to listen on (default: {ENGINE_PORT})")
    parser.add_argument("--log-requests", action="store_true", help="log one line for each request; never its text")
    fields = parser.add_argument_group("fields of the engine's configuration")
    for name, field in EngineConfig.model_fields.items():
        _add_flag(fields, name, field)
    return parser


def resolve(arguments: Sequence[str], read_file: Callable[[Path], str]) -> Options:
    """The configuration in force. StartRefused with one line if it cannot be one; exits on `--help`."""
    parsed = vars(make_parser().parse_args(arguments))
    content = _read(Path(parsed["config"]), read_file) if parsed["config"] else {}
    for name, field in EngineConfig.model_fields.items():
        if parsed[name] is not None:
            content.pop(name, None)
            content[to_camel(name)] = _flag_value(name, field, parsed[name])
    if not content.get("servedNames") and not content.get("served_names"):
        raise StartRefused(
            "servedNames: no name for the model is given; set it in the file or with --served-names NAME"
        )
    try:
        config = EngineConfig.model_validate(content)
    except ValidationError as error:
        raise StartRefused(_one_line(error, parsed["config"])) from error
    return Options(config, bool(parsed["log_requests"]))


def _add_flag(group: argparse._ArgumentGroup, name: str, field: FieldInfo) -> None:
    flag = "--" + name.replace("_", "-")
    help_text = (field.description or "").replace("%", "%%")
    if field.annotation is bool:
        group.add_argument(flag, default=None, action=argparse.BooleanOptionalAction, help=help_text)
    elif get_origin(field.annotation) is tuple:
        group.add_argument(flag, default=None, nargs="+", metavar="NAME", help=help_text)
    else:
        group.add_argument(flag, default=None, metavar=name.rsplit("_", 1)[-1].upper(), help=help_text)


def _flag_value(name: str, field: FieldInfo, text: object) -> object:
    """A flag's text as the field's type takes it; what is no number is left for the model to refuse by name."""
    kinds = (
        get_args(field.annotation) if get_origin(field.annotation) in (types.UnionType, Union) else (field.annotation,)
    )
    for kind in (int, float):
        if kind in kinds and isinstance(text, str):
            try:
                return TypeAdapter(kind).validate_python(text)
            except ValidationError:
                return text
    return text


def _read(path: Path, read_file: Callable[[Path], str]) -> dict[str, Any]:
    try:
        content = json.loads(read_file(path))
    except OSError as error:
        raise StartRefused(f"{path} cannot be read: {error.strerror}; --config takes the engine's JSON file") from error
    except ValueError as error:
        raise StartRefused(f"{path} is no JSON: {error}") from error
    if not isinstance(content, dict):
        raise StartRefused(f"{path} holds a {type(content).__name__}, not an object of EngineConfig's fields")
    return content


def _one_line(error: ValidationError, source: str | None) -> str:
    """All faults, each with the field's name."""
    where = f"{source}: " if source else ""
    return where + "; ".join(_fault(details) for details in error.errors(include_url=False, include_context=False))


def _fault(details: Any) -> str:
    name = ".".join(str(step) for step in details["loc"])
    if details["type"] == "extra_forbidden":
        known = ", ".join(to_camel(field) for field in EngineConfig.model_fields)
        return f"{name}: there is no such field; the fields are {known}"
    message = str(details["msg"]).removeprefix("Value error, ")
    return f"{name}: {message}" if name else message
