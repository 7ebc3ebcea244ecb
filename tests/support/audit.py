"""The API server's audit log, read for what an account used of its rights and what it lacked."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from emberline_contract import names

Raw = dict[str, Any]
Right = tuple[str, str, str]
"""API group, resource (with `/` and a subresource, if any) and verb, as an RBAC rule has them."""

OPERATOR_USER = f"system:serviceaccount:{names.SYSTEM_NAMESPACE}:{names.OPERATOR_NAME}"
_LACKS = re.compile(r'User "[^"]*" cannot ')
"""RBAC's own words; a policy, a quota or a namespace that is being deleted refuse with others."""


def requests_of(audit_file: Path, user: str, begin_bytes: int = 0) -> Iterator[Raw]:
    """Finished requests of a user, the oldest first; of what was written after so much of the log."""
    mark = json.dumps(user)
    with audit_file.open() as lines:
        lines.seek(begin_bytes)
        for line in lines:
            # Long logs: what cannot be the user's is not parsed. The last line may still be being written.
            if mark not in line or not line.endswith("\n"):
                continue
            event = json.loads(line)
            if event["stage"] in ("ResponseComplete", "Panic") and event["user"]["username"] == user:
                yield event


def used_rights(audit_file: Path, user: str, begin_bytes: int = 0) -> set[Right]:
    """What a user's requests needed and had. An apply that created its object needed `create` besides `patch`."""
    used = set()
    for event in requests_of(audit_file, user, begin_bytes):
        code = event.get("responseStatus", {}).get("code", 0)
        if "objectRef" not in event or code == 403:
            continue
        group, resource, verb = _right(event)
        used.add((group, resource, verb))
        if verb == "patch" and code == 201:
            used.add((group, resource, "create"))
    return used


def lacked_rights(audit_file: Path, user: str) -> set[str]:
    """What a user asked for and had no right to: the API server's words."""
    return {
        event["responseStatus"].get("message", event["requestURI"])
        for event in requests_of(audit_file, user)
        if event.get("responseStatus", {}).get("code") == 403 and _is_for_lack_of_rights(event)
    }


def _is_for_lack_of_rights(event: Raw) -> bool:
    is_forbidden = event.get("annotations", {}).get("authorization.k8s.io/decision") == "forbid"
    return is_forbidden or bool(_LACKS.search(event["responseStatus"].get("message", "")))


def _right(event: Raw) -> Right:
    ref = event["objectRef"]
    resource = "/".join(part for part in (ref["resource"], ref.get("subresource")) if part)
    return ref.get("apiGroup", ""), resource, event["verb"]
