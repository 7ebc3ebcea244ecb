"""The reading of audit logs that the tests of rights rely on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support.audit import lacked_rights, used_rights

USER = "system:serviceaccount:emberline-system:emberline-operator"
FORBIDDEN = (
    f'secrets "x" is forbidden: User "{USER}" cannot get resource "secrets" in API group "" in the namespace "a"'
)
NO_CREATE = f'deployments.apps "x" is forbidden: User "{USER}" cannot create resource "deployments" in API group "apps"'
TERMINATING = 'events "x" is forbidden: unable to create new content in namespace a because it is being terminated'


def event(
    verb: str, resource: str, code: int, *, user: str = USER, group: str = "", message: str = "", **more: Any
) -> str:
    subresource = more.pop("subresource", "")
    ref = {
        "resource": resource,
        **({"apiGroup": group} if group else {}),
        **({"subresource": subresource} if subresource else {}),
    }
    return json.dumps(
        {
            "stage": more.pop("stage", "ResponseComplete"),
            "verb": verb,
            "requestURI": "/x",
            "user": {"username": user},
            "objectRef": ref,
            "responseStatus": {"code": code, **({"message": message} if message else {})},
            **more,
        }
    )  # fmt: skip


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "audit.log"
    lines = [
        event("list", "pods", 200),
        event("watch", "pods", 200),
        event("patch", "deployments", 201, group="apps"),
        event("patch", "deployments", 200, group="apps", subresource="scale"),
        event("get", "services", 404),
        event("get", "nodes", 200, user="admin"),
        event("get", "leases", 200, group="coordination.k8s.io", stage="RequestReceived"),
        event("get", "secrets", 403, message=FORBIDDEN, annotations={"authorization.k8s.io/decision": "forbid"}),
        event("patch", "deployments", 403, group="apps", message=NO_CREATE, annotations={"authorization.k8s.io/decision": "allow"}),
        event("create", "events", 403, message=TERMINATING, annotations={"authorization.k8s.io/decision": "allow"}),
        event("get", "secrets", 403, user="stranger", annotations={"authorization.k8s.io/decision": "forbid"}),
    ]  # fmt: skip
    path.write_text("\n".join([*lines, event("delete", "pods", 200)[:-9]]))
    return path


def test_what_was_used(log: Path) -> None:
    assert used_rights(log, USER) == {
        ("", "pods", "list"),
        ("", "pods", "watch"),
        ("apps", "deployments", "patch"),
        ("apps", "deployments", "create"),
        ("apps", "deployments/scale", "patch"),
        ("", "services", "get"),
    }


def test_what_was_lacked(log: Path) -> None:
    assert lacked_rights(log, USER) == {FORBIDDEN, NO_CREATE}
    assert lacked_rights(log, "stranger") == {"/x"}
    assert lacked_rights(log, "admin") == set()
