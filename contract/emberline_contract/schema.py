"""Pieces of the resources' schemas: CEL rules, durations, and the strings that several fields share."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from emberline_contract.names import GROUP, MAX_REGION_NAME, NAME_PATTERN


def rules(*pairs: tuple[str, str]) -> dict[str, Any]:
    """CEL rules of a schema node: (expression, message) pairs. One with `oldSelf` holds on creation too, where that is empty."""
    made: list[dict[str, Any]] = [{"rule": rule, "message": message} for rule, message in pairs]
    for rule in made:
        if "oldSelf" in rule["rule"]:
            rule["optionalOldSelf"] = True
    return {"x-kubernetes-validations": made}


def duration_schema(field: str, least: str, most: str) -> dict[str, Any]:
    """Schema of a Go duration between two others; `field` names it in the message."""
    return {
        "format": "duration",
        "maxLength": 20,
        **rules(
            (
                f"duration(self) >= duration('{least}') && duration(self) <= duration('{most}')",
                f"{field} must be between {least} and {most}",
            )
        ),
    }


ShortString = Annotated[str, Field(min_length=1, max_length=253)]
LabelValue = Annotated[str, Field(max_length=63, pattern=r"^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$")]
LabelMap = Annotated[dict[ShortString, LabelValue], Field(max_length=16)]
RegionName = Annotated[str, Field(max_length=MAX_REGION_NAME, pattern=NAME_PATTERN)]
Jurisdiction = Annotated[str, Field(min_length=1, max_length=32, pattern=r"^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$")]
GpuType = Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")]
Quantity = Annotated[str, Field(max_length=32, pattern=r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$")]
ResourceName = Annotated[
    str, Field(max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$")
]
_NAME = "([A-Za-z0-9][-A-Za-z0-9_.]{0,61})?[A-Za-z0-9]"
QUALIFIED_NAME = f"([a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?{_NAME}"
"""A label's key as Kubernetes takes it."""


def key_rule(field: str, what: str = "label") -> tuple[str, str]:
    """The rule that the keys of a map are such as Kubernetes takes; the API server would refuse the pods otherwise."""
    # Of annotations the prefix may have capitals.
    pattern = (
        QUALIFIED_NAME if what == "label" else QUALIFIED_NAME.replace("a-z0-9", "A-Za-z0-9").replace("A-ZA-Z", "A-Z")
    )
    message = (
        f"{field}: a key must be that of a Kubernetes {what}, such as team or example.com/team: at most 63 letters, digits, '-', '_'"
        " and '.', after a DNS name and '/' if it has a prefix"
    )
    return f"self.all(k, size(k) <= 317 && k.matches('^{pattern}$'))", message


RESERVED_KEYS = f"!k.startsWith('{GROUP}/') && !k.startsWith('app.kubernetes.io/')"
