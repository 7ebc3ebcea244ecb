"""What a field manager owns of a live object, read from its managedFields (FieldsV1).

An object is as the operator wants it when the part that its manager owns *equals* the desired object. That one test says
that the desired object is contained in the live one, and that nothing is owned which is no longer desired: such a field
would stay for ever, because server-side apply removes a field only when its owner leaves it out. A field that somebody else
has taken over is missing from the owned part, so drift shows too.

FieldsV1 in short: `f:name` is a field, `k:{...}` an item of a list whose items have keys (the key is in it, so no schema is
needed here), `v:...` an item of a set, `.` the item itself, `{}` a value that is owned as a whole.
"""

from __future__ import annotations

import functools
import json
import re
from decimal import Decimal
from typing import Any, Final

from emberline_contract import names
from emberline_operator.memory import Memory
from emberline_operator.snapshot import Json

_IDENTITY: Final = ("apiVersion", "kind")
_SUFFIXES: Final = {
    "n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3"), "": Decimal(1),
    "k": Decimal(10**3), "M": Decimal(10**6), "G": Decimal(10**9), "T": Decimal(10**12),
    "P": Decimal(10**15), "E": Decimal(10**18),
    "Ki": Decimal(2**10), "Mi": Decimal(2**20), "Gi": Decimal(2**30), "Ti": Decimal(2**40),
    "Pi": Decimal(2**50), "Ei": Decimal(2**60),
}  # fmt: skip
_QUANTITY: Final = re.compile(r"([+-]?\d+(?:\.\d+)?)([eE][+-]?\d+|[numkMGTPE]|[KMGTPE]i)?")
_QUANTITY_MAPS: Final = frozenset({"limits", "requests", "capacity"})
_QUANTITY_FIELDS: Final = frozenset({"sizeLimit", "storage", "averageValue", "tolerance"})


def owned_fields(live: Json, manager: str, subresource: str = "") -> Json:
    """FieldsV1 of what the manager owns by server-side apply; empty if it never applied the object."""
    for entry in live["metadata"].get("managedFields", ()):
        is_ours = entry.get("manager") == manager and entry.get("operation") == "Apply"
        if is_ours and entry.get("subresource", "") == subresource:
            fields: Json = entry.get("fieldsV1", {})
            return fields
    return {}


def owned_part(live: Any, fields: Json) -> Any:
    """The part of a live value that FieldsV1 names; lists keep the live order. Fields that are gone are left out."""
    owned = [name for name in fields if name != "."]
    if not owned:
        return live
    if isinstance(live, list):
        items = [name for name in owned if name[:2] in ("k:", "v:")]
        return [owned_part(item, fields[name]) for item in live for name in items if _names_item(name, item)]
    if isinstance(live, dict):
        return {
            name[2:]: owned_part(live[name[2:]], fields[name])
            for name in owned
            if name.startswith("f:") and name[2:] in live
        }
    return live


def needs_write(live: Json, desired: Json, manager: str, subresource: str = "") -> bool:
    """Whether an apply of `desired` by `manager` would change the object or what the manager owns of it."""
    wanted = {key: value for key, value in desired.items() if key not in _IDENTITY}
    wanted["metadata"] = {
        key: value for key, value in desired["metadata"].items() if key not in ("name", "namespace", "uid")
    }
    if not wanted["metadata"]:
        del wanted["metadata"]
    fields = owned_fields(live, manager, subresource)
    return not _is_owned(wanted, live, fields, "")


def is_outdated(live: Json, desired: Json, memory: Memory) -> bool:
    """Whether the operator must write a child, as `needs_write`; a pair that was compared before is not compared again."""
    question = (desired["kind"], desired["metadata"]["name"])
    return memory.recall(question, (live, desired), lambda: needs_write(live, desired, names.OPERATOR_MANAGER))


def _names_item(name: str, item: Any) -> bool:
    said = _parsed(name[2:])
    if name.startswith("v:"):
        return bool(said == item)
    return isinstance(item, dict) and all(item.get(key) == value for key, value in said.items())


@functools.lru_cache(maxsize=4096)
def _parsed(text: str) -> Any:
    """The same few keys come with every object of a kind."""
    return json.loads(text)


def _is_owned(wanted: Any, live: Any, fields: Json, name: str) -> bool:
    """Whether exactly `wanted` is there and owned. `name` is the field's own name, which tells quantities apart."""
    children = [child for child in fields if child != "."]
    if not children:
        # Owned as a whole: a scalar, or an atomic map or list.
        return same_value(wanted, live, name)
    if isinstance(wanted, dict) and isinstance(live, dict):
        if {f"f:{key}" for key in wanted} != set(children):
            return False
        inside = (lambda key: name) if name in _QUANTITY_MAPS else (lambda key: key)
        return all(key in live and _is_owned(wanted[key], live[key], fields[f"f:{key}"], inside(key)) for key in wanted)
    if isinstance(wanted, list) and isinstance(live, list):
        if len(wanted) != len(children):
            return False
        return all(_is_owned_item(item, live, fields, children) for item in wanted)
    return False


def _is_owned_item(item: Any, live: list[Any], fields: Json, children: list[str]) -> bool:
    for child in children:
        if _names_item(child, item):
            return any(_names_item(child, other) and _is_owned(item, other, fields[child], "") for other in live)
    return False


def same_value(wanted: Any, live: Any, name: str = "") -> bool:
    """Whether two values are equal, quantities by what they mean; `name` is the field that holds them."""
    if isinstance(wanted, dict) and isinstance(live, dict):
        inside = (lambda key: name) if name in _QUANTITY_MAPS else (lambda key: key)
        return wanted.keys() == live.keys() and all(same_value(wanted[k], live[k], inside(k)) for k in wanted)
    if isinstance(wanted, list) and isinstance(live, list):
        return len(wanted) == len(live) and all(same_value(a, b) for a, b in zip(wanted, live, strict=True))
    if name in _QUANTITY_MAPS or name in _QUANTITY_FIELDS:
        return bool(_quantity(wanted) == _quantity(live))
    return type(wanted) is type(live) and bool(wanted == live)


def _quantity(value: Any) -> Any:
    match = _QUANTITY.fullmatch(str(value))
    if match is None:
        return value
    number, suffix = Decimal(match[1]), match[2] or ""
    if suffix[:1] in ("e", "E") and len(suffix) > 1 and suffix != "Ei":
        return number.scaleb(int(suffix[1:]))
    return number * _SUFFIXES[suffix]
