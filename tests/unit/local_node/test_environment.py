from __future__ import annotations

import base64
from typing import Any

import pytest

from emberline_local.environment import ContainerConfigError, expand, field_value, make_environment
from emberline_local.sources import Sources

POD = {
    "metadata": {
        "name": "web-1",
        "namespace": "team",
        "uid": "u-1",
        "labels": {"app": "web", "a.b/c": "d"},
        "annotations": {"note": "hi"},
    },
    "spec": {"nodeName": "n1", "serviceAccountName": "robot"},
    "status": {"podIP": "127.16.1.0", "hostIP": "127.0.0.1"},
}

SOURCES = Sources(
    config_maps={"settings": {"kind": "ConfigMap", "data": {"a": "1", "b": "2"}}},
    secrets={"keys": {"kind": "Secret", "data": {"key": base64.b64encode(b"hidden").decode()}}},
)


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("$(A)", "1"),
        ("x$(A)y$(B)", "x1y2"),
        ("$(UNKNOWN)", "$(UNKNOWN)"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$A ${A} $( A)", "$A ${A} $( A)"),
        ("$(A", "$(A"),
        ("$()", "$()"),
        ("", ""),
    ],
)
def test_references_are_replaced_as_the_api_says(text: str, expanded: str) -> None:
    assert expand(text, {"A": "1", "B": "2"}) == expanded


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("metadata.name", "web-1"),
        ("metadata.namespace", "team"),
        ("metadata.uid", "u-1"),
        ("metadata.labels['a.b/c']", "d"),
        ("metadata.labels['absent']", ""),
        ("metadata.annotations['note']", "hi"),
        ("metadata.labels", 'a.b/c="d"\napp="web"'),
        ("spec.nodeName", "n1"),
        ("spec.serviceAccountName", "robot"),
        ("status.podIP", "127.16.1.0"),
        ("status.podIPs", "127.16.1.0"),
        ("status.hostIP", "127.0.0.1"),
    ],
)
def test_downward_api(path: str, value: str) -> None:
    assert field_value(POD, path) == value


def test_unknown_field_is_named() -> None:
    with pytest.raises(ContainerConfigError, match=r"'status\.phase'"):
        field_value(POD, "status.phase")


def made(*, base: dict[str, str] | None = None, **container: Any) -> dict[str, str]:
    return make_environment(POD, container, SOURCES, base or {})


def test_later_entries_win_and_see_earlier_ones() -> None:
    environment = made(
        base={"PATH": "/bin", "A": "base"},
        envFrom=[{"prefix": "M_", "configMapRef": {"name": "settings"}}, {"secretRef": {"name": "keys"}}],
        env=[
            {"name": "FIRST", "value": "$(M_a)-$(SECOND)"},
            {"name": "SECOND", "value": "$(FIRST)"},
            {"name": "PATH", "value": "/opt:$(PATH)"},
            {"name": "A"},
        ],
    )
    assert environment == {
        "PATH": "/opt:/bin",
        "A": "",
        "M_a": "1",
        "M_b": "2",
        "key": "hidden",
        "FIRST": "1-$(SECOND)",
        "SECOND": "1-$(SECOND)",
    }


def test_values_from_a_source_are_not_expanded() -> None:
    sources = Sources(config_maps={"m": {"kind": "ConfigMap", "data": {"k": "$(PATH)"}}})
    origin = {"configMapKeyRef": {"name": "m", "key": "k"}}
    environment = make_environment(POD, {"env": [{"name": "X", "valueFrom": origin}]}, sources, {"PATH": "/bin"})
    assert environment["X"] == "$(PATH)"


@pytest.mark.parametrize(
    ("container", "message"),
    [
        ({"envFrom": [{"configMapRef": {"name": "absent"}}]}, "ConfigMap 'absent' not found"),
        ({"envFrom": [{"secretRef": {"name": "absent"}}]}, "Secret 'absent' not found"),
        (
            {"env": [{"name": "X", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "zz"}}}]},
            "couldn't find key zz in ConfigMap settings",
        ),
        ({"env": [{"name": "X", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}}]}, "resourceFieldRef"),
    ],
)
def test_what_is_missing_is_named(container: dict[str, Any], message: str) -> None:
    with pytest.raises(ContainerConfigError, match=message):
        made(**container)


def test_optional_sources_may_be_missing() -> None:
    environment = made(
        envFrom=[{"configMapRef": {"name": "absent", "optional": True}}],
        env=[
            {"name": "X", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "zz", "optional": True}}},
            {"name": "Y", "valueFrom": {"secretKeyRef": {"name": "absent", "key": "zz", "optional": True}}},
        ],
    )
    assert environment == {}
