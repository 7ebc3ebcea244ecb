"""Argo CD's health of an object by the shipped scripts, run with no more than what Argo CD gives them: Lua 5.1 and its base library."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import yaml
from lupa.lua51 import LuaRuntime, lua_type

from emberline_contract import names

CONFIG: Final[dict[str, Any]] = yaml.safe_load(
    (Path(__file__).parents[2] / "manifests" / "gitops" / "argocd" / "argocd-cm.yaml").read_text()
)
KEY: Final = f"resource.customizations.health.{names.GROUP}_"
_LIBRARY: Final = frozenset(
    {"ipairs", "pairs", "next", "type", "tostring", "tonumber", "select", "unpack", "table", "_G"}
)


def argo_health(kind: str, obj: dict[str, Any]) -> tuple[str, str]:
    """Status and message."""
    lua = LuaRuntime(unpack_returned_tuples=True, register_eval=False, register_builtins=False)
    for name in set(lua.globals().keys()) - _LIBRARY:
        lua.globals()[name] = None
    lua.globals()["obj"] = lua.table_from(obj, recursive=True)
    result = lua.execute(CONFIG["data"][KEY + kind])
    assert lua_type(result) == "table"
    return result["status"], result["message"]
