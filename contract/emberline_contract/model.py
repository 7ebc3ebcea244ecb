"""The base of every model in the contract: camelCase outside, snake_case inside, unknown fields refused by name."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel


class ContractModel(BaseModel):
    """Frozen; field docstrings become descriptions in the CRD, the reference page and the engine's flags."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
    )
