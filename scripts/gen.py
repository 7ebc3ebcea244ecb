"""Writes what is generated from the contract: `crds/*.yaml` and `docs/reference/*.md`. With `--check` it writes nothing and fails
if a file would change.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import yaml

from emberline_contract import conditions, metrics
from emberline_contract.crd import all_crds
from emberline_contract.engine_config import EngineConfig

ROOT = Path(__file__).resolve().parent.parent
ORIGIN = "Generated from contract/ by `make gen`; edits here are lost."


class Entry(NamedTuple):
    """A constant or enum member of a module."""

    owner: str
    """Its class, empty for a constant of the module."""
    section: str
    """The last comment on a line of its own before it."""
    name: str
    value: str
    doc: str


def documented(module: ModuleType) -> Iterator[Entry]:
    """The module's string constants and enum members in the order of the source, with the docstrings below them."""
    source = inspect.getsource(module)
    comments = {
        number: line.strip("# ") for number, line in enumerate(source.splitlines(), 1) if line.lstrip().startswith("# ")
    }

    def entries(body: list[ast.stmt], owner: str, first_line: int) -> Iterator[Entry]:
        for statement, following in zip(body, [*body[1:], None], strict=True):
            if isinstance(statement, ast.ClassDef):
                yield from entries(statement.body, statement.name, statement.lineno)
                continue
            match statement:
                case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=str(value))):
                    pass
                case ast.AnnAssign(target=ast.Name(id=name), value=ast.Constant(value=str(value))):
                    pass
                case _:
                    continue
            match following:
                case ast.Expr(value=ast.Constant(value=str(doc))):
                    pass
                case _:
                    doc = ""
            above = [line for line in comments if first_line < line < statement.lineno]
            yield Entry(owner, comments[max(above)] if above else "", name, value, " ".join(doc.split()))

    yield from entries(ast.parse(source).body, "", 0)


def crd_yaml(crd: dict[str, Any]) -> str:
    """A CRD's file."""
    return f"# {ORIGIN}\n" + yaml.safe_dump(crd, sort_keys=False, allow_unicode=True, width=120)


def table(columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """A Markdown table."""
    cells = [tuple(cell.replace("|", "\\|").replace("\n", " ") for cell in row) for row in rows]
    lines = [columns, tuple("---" for _ in columns), *cells]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def page(title: str, *parts: str) -> str:
    """A reference page."""
    return "\n".join([f"<!-- {ORIGIN} -->\n# {title}\n", *parts])


def code(value: object) -> str:
    """As code, nothing if there is nothing."""
    return f"`{value}`" if value != "" else ""


def bounds(schema: dict[str, Any]) -> str:
    """What a value must satisfy, in words."""
    words = []
    if "enum" in schema:
        words.append("one of " + ", ".join(code(choice) for choice in schema["enum"]))
    match schema.get("minimum"), schema.get("maximum"):
        case None, None:
            pass
        case least, None:
            words.append(f"at least {least}")
        case None, most:
            words.append(f"at most {most}")
        case least, most:
            words.append(f"{least} to {most}")
    for key, one, several in (("Length", "character", "characters"), ("Items", "entry", "entries")):
        if (most := schema.get(f"max{key}", schema.get("maxProperties") if key == "Items" else None)) is not None:
            words.append(f"at most {most} {one if most == 1 else several}")
    if "pattern" in schema:
        words.append(f"matches {code(schema['pattern'])}")
    words += [rule["message"] for rule in schema.get("x-kubernetes-validations", ())]
    return "; ".join(words)


def type_name(schema: dict[str, Any]) -> str:
    """A schema's type in a word."""
    match schema:
        case {"anyOf": [first, {"type": "null"}]}:
            return type_name(first)
        case {"type": "array", "items": items}:
            return f"list of {type_name(items)}"
        case {"type": "object", "additionalProperties": {"type": value}}:
            return f"map of {value}"
        case {"format": str(form)}:
            return str(form)
        case {"type": str(kind)}:
            return kind
        case _:
            return "string" if "enum" in schema else "any"


def default_text(schema: dict[str, Any], *, required: bool) -> str:
    """A field's default; of an object the defaults of its fields speak."""
    if required:
        return "required"
    value = schema.get("default")
    if value is None or schema.get("type") == "object":
        return ""
    return code(str(value).lower() if isinstance(value, bool) else value)


def fields(schema: dict[str, Any], path: str) -> Iterator[tuple[str, ...]]:
    """Rows of a schema's fields, each object followed by its own."""
    for name, child in schema.get("properties", {}).items():
        here = f"{path}.{name}"
        required = name in schema.get("required", ())
        yield (
            code(here),
            type_name(child),
            default_text(child, required=required),
            bounds(child),
            child.get("description", ""),
        )
        yield from fields(child, here)
        if "properties" in child.get("items", {}):
            yield from fields(child["items"], f"{here}[]")


def resources_page() -> str:
    """Fields of the custom resources."""
    parts = []
    for crd in all_crds().values():
        kind, version = crd["spec"]["names"]["kind"], crd["spec"]["versions"][0]
        schema = version["schema"]["openAPIV3Schema"]
        parts.append(f"## {kind}\n\n{schema['description']}\n")
        parts.append(
            f"`apiVersion: {crd['spec']['group']}/{version['name']}`, scope {crd['spec']['scope']}, "
            f"short name `{crd['spec']['names']['shortNames'][0]}`.\n"
        )
        parts += [f"- {rule['message']}" for rule in schema.get("x-kubernetes-validations", ())]
        for part in ("spec", "status"):
            if part in schema["properties"]:
                rows = list(fields(schema["properties"][part], part))
                parts.append(
                    f"\n### {kind}: {part}\n\n" + table(("field", "type", "default", "must be", "meaning"), rows)
                )
    return page("Resources", *parts)


def conditions_page() -> str:
    """Condition types and reasons."""
    entries = list(documented(conditions))
    types = [(code(entry.value), entry.doc) for entry in entries if entry.owner == "ConditionType"]
    reasons = [(entry.section, code(entry.value), entry.doc) for entry in entries if entry.owner == "Reason"]
    return page(
        "Conditions and reasons",
        "## Types\n\n" + table(("type", "True means"), types),
        "## Reasons\n\n" + table(("first used by", "reason", "meaning"), reasons),
    )


def engine_config_page() -> str:
    """Fields of the engine's configuration file and its flags."""
    schema = EngineConfig.model_json_schema(by_alias=True)
    rows = []
    for name, field in EngineConfig.model_fields.items():
        child = schema["properties"][field.alias or name]
        typed = {**child, **(child["anyOf"][0] if "anyOf" in child else {})}
        rows.append(
            (
                code(field.alias or name),
                type_name(child),
                default_text(child, required=field.is_required()),
                bounds(typed),
                child.get("description", ""),
            )
        )
    return page(
        "Engine configuration",
        "One JSON file. Each field is also a flag of `python -m emberline_runtime`, which wins over the file: `maxBatchTokens` is"
        " `--max-batch-tokens`. Unknown fields are refused by name.\n",
        table(("field", "type", "default", "must be", "meaning"), rows),
    )


def metrics_page() -> str:
    """Metric names by process."""
    rows: dict[str, list[tuple[str, ...]]] = {}
    for entry in documented(metrics):
        kind, _, rest = entry.doc.partition(" ")
        rows.setdefault(entry.section.rstrip("."), []).append((code(entry.value), kind.rstrip(":,;").lower(), rest))
    return page(
        "Metrics", *(f"## {section}\n\n" + table(("name", "kind", "meaning"), found) for section, found in rows.items())
    )


PAGES: dict[str, Callable[[], str]] = {
    "resources.md": resources_page,
    "conditions.md": conditions_page,
    "engine-config.md": engine_config_page,
    "metrics.md": metrics_page,
}


def generated() -> dict[str, str]:
    """Path below the root -> content of every generated file."""
    return {f"crds/{name}": crd_yaml(crd) for name, crd in all_crds().items()} | {
        f"docs/reference/{name}": make() for name, make in PAGES.items()
    }


def stale(root: Path) -> list[str]:
    """Paths below `root` whose content is not the generated one, and files there that nothing generates any more."""
    expected = generated()
    wrong = [
        path
        for path, content in expected.items()
        if not (root / path).is_file() or (root / path).read_text() != content
    ]
    there = {str(file.relative_to(root)) for folder in ("crds", "docs/reference") for file in (root / folder).glob("*")}
    return sorted({*wrong, *(there - expected.keys())})


def main() -> int:
    """Write or check."""
    parser = argparse.ArgumentParser(description="Write crds/ and docs/reference/ from the contract.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if something would change")
    arguments = parser.parse_args()
    wrong = stale(ROOT)
    if arguments.check:
        for path in wrong:
            print(f"{path} is not what contract/ says; run `make gen` and commit the result", file=sys.stderr)
        return 1 if wrong else 0
    expected = generated()
    for path in wrong:
        file = ROOT / path
        if path not in expected:
            file.unlink()
            print(f"removed {path}")
            continue
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(expected[path])
        print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
