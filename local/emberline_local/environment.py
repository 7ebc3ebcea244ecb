"""A container's environment as a kubelet makes it: env, envFrom, valueFrom, the downward API and `$(NAME)`. Pure."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from typing import Any

from emberline_local.sources import Sources

_FIELD_KEY = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")
_REFERENCE = re.compile(r"\$\$|\$\(([^()$]+)\)")


class ContainerConfigError(Exception):
    """The pod asks for something that is not there; becomes the waiting reason `CreateContainerConfigError`."""


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Replace `$(NAME)` by its value; an unknown name stays as it is, and `$$` is a plain `$`."""

    def replacement(match: re.Match[str]) -> str:
        if match.group(0) == "$$":
            return "$"
        return variables.get(match.group(1), match.group(0))

    return _REFERENCE.sub(replacement, text)


def field_value(pod: Mapping[str, Any], path: str) -> str:
    """A field of the pod by the names of the downward API; `status.*` and `spec.*` are read as they are in `pod`."""
    metadata, spec, status = pod["metadata"], pod["spec"], pod.get("status", {})
    key = _FIELD_KEY.fullmatch(path)
    if key:
        return str(metadata.get(key.group(1), {}).get(key.group(2), ""))
    match path:
        case "metadata.name" | "metadata.namespace" | "metadata.uid":
            return str(metadata[path.split(".")[1]])
        case "metadata.labels" | "metadata.annotations":
            entries = metadata.get(path.split(".")[1], {})
            return "\n".join(f'{name}="{value}"' for name, value in sorted(entries.items()))
        case "spec.nodeName" | "spec.serviceAccountName":
            return str(spec.get(path.split(".")[1], ""))
        case "status.podIP" | "status.hostIP":
            return str(status.get(path.split(".")[1], ""))
        case "status.podIPs" | "status.hostIPs":
            return str(status.get(path.split(".")[1].removesuffix("s"), ""))
        case _:
            pass
    raise ContainerConfigError(
        f"fieldRef {path!r} is none that a process node knows; name, namespace, uid, labels, IPs work"
    )


def make_environment(
    pod: Mapping[str, Any], container: Mapping[str, Any], sources: Sources, base: Mapping[str, str]
) -> dict[str, str]:
    """Environment of one container on top of `base`. Raises ContainerConfigError with what is missing."""
    made = dict(base)
    own: dict[str, str] = {}
    for entry in container.get("envFrom", ()):
        prefix = entry.get("prefix", "")
        for kind, reference in (("ConfigMap", entry.get("configMapRef")), ("Secret", entry.get("secretRef"))):
            if reference is not None:
                content = _content(sources, kind, reference["name"], reference.get("optional", False))
                own.update({prefix + key: value.decode(errors="replace") for key, value in content.items()})
    for entry in container.get("env", ()):
        name = entry["name"]
        if "valueFrom" not in entry:
            own[name] = expand(entry.get("value", ""), {**made, **own})
            continue
        value = _value_from(pod, sources, name, entry["valueFrom"])
        if value is not None:
            own[name] = value
    return {**made, **own}


def _value_from(pod: Mapping[str, Any], sources: Sources, name: str, origin: Mapping[str, Any]) -> str | None:
    if "fieldRef" in origin:
        return field_value(pod, origin["fieldRef"]["fieldPath"])
    for kind, key in (("ConfigMap", "configMapKeyRef"), ("Secret", "secretKeyRef")):
        if key in origin:
            reference = origin[key]
            optional = reference.get("optional", False)
            content = _content(sources, kind, reference["name"], optional)
            if reference["key"] in content:
                return content[reference["key"]].decode(errors="replace")
            if optional:
                return None
            raise ContainerConfigError(f"couldn't find key {reference['key']} in {kind} {reference['name']} for {name}")
    raise ContainerConfigError(
        f"env {name}: a process node knows fieldRef, configMapKeyRef and secretKeyRef, not {list(origin)}"
    )


def _content(sources: Sources, kind: str, name: str, optional: bool) -> dict[str, bytes]:
    found = (sources.config_maps if kind == "ConfigMap" else sources.secrets).get(name)
    if found is None:
        if optional:
            return {}
        raise ContainerConfigError(f"{kind} {name!r} not found; create it in the pod's namespace")
    return object_content(found)


def object_content(found: Mapping[str, Any]) -> dict[str, bytes]:
    """Keys of a ConfigMap or Secret as bytes."""
    if found.get("kind") == "Secret":
        return {key: base64.b64decode(value) for key, value in (found.get("data") or {}).items()}
    text = {key: value.encode() for key, value in (found.get("data") or {}).items()}
    return text | {key: base64.b64decode(value) for key, value in (found.get("binaryData") or {}).items()}
