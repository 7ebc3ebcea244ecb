"""What the API server can do, asked once: Kubernetes 1.31 and newer are served, and what an older one lacks is left out."""

from __future__ import annotations

import re
from typing import Final

from emberline_operator.cluster.api import Api
from emberline_operator.snapshot import Features, Json

VERSION_PATH: Final = "/version"
AUTOSCALING_PATH: Final = "/openapi/v3/apis/autoscaling/v2"
_RULES: Final = "io.k8s.api.autoscaling.v2.HPAScalingRules"
_TOLERANCE_FROM: Final = (1, 35)
"""Older ones that have the field in their schema drop it unless a feature gate is set."""


async def read_features(api: Api) -> Features:
    """Ask the API server. Raises ClusterError."""
    version = await api.request("GET", VERSION_PATH)
    return features_of(version, await api.request("GET", AUTOSCALING_PATH))


def features_of(version: Json, autoscaling: Json) -> Features:
    """The features, from the documents of `/version` and of the schema of autoscaling/v2."""
    rules = autoscaling.get("components", {}).get("schemas", {}).get(_RULES, {})
    has_tolerance = "tolerance" in rules.get("properties", {})
    return Features(hpa_tolerance=has_tolerance and _number(version) >= _TOLERANCE_FROM)


def _number(version: Json) -> tuple[int, int]:
    """Some distributions write the minor version as `35+`."""
    major, minor = (re.match(r"\d+", str(version.get(part, ""))) for part in ("major", "minor"))
    return (int(major[0]) if major else 0, int(minor[0]) if minor else 0)
