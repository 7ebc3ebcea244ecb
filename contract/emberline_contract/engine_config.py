"""EngineConfig: everything one engine process is told, as one JSON file in a ConfigMap.

The user-facing part (`EngineOptions`) is embedded in the InferenceEndpoint; the operator decides the rest. The engine's
command-line flags derive from the fields here. Does not import the resource models.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from emberline_contract.model import ContractModel
from emberline_contract.names import MODELS_PATH
from emberline_contract.quantities import quantity_bytes

Dtype = Literal["bf16", "fp16", "fp32"]
Quantization = Literal["fp8", "int8", "int4"]
KvCacheDtype = Literal["auto", "bf16", "fp8"]
KvType = Literal["bf16", "fp16", "fp32", "fp8"]
Device = Literal["cpu", "cuda"]
ExecutorName = Literal["auto", "torch", "oracle"]
Bytes = Annotated[str, Field(pattern=r"^[0-9]+(\.[0-9]+)?(k|M|G|T|Ki|Mi|Gi|Ti)?$", max_length=20)]
"""A Kubernetes quantity of bytes, such as `2Gi`."""


class EngineOptions(ContractModel):
    """The part of the engine's configuration that a user sets under `spec.engine`."""

    max_model_len: int | None = Field(default=None, ge=16, le=1_048_576)
    """Longest prompt plus answer, in tokens; unset: what the model allows and the KV cache holds."""
    max_batch_tokens: int = Field(default=256, ge=16, le=65_536)
    """Tokens that one step may compute over all requests; a prompt's chunk is at most this long."""
    max_sequences: int = Field(default=32, ge=1, le=1024)
    """Requests that run at once; more wait in the engine's queue."""
    max_queued_requests: int = Field(default=256, ge=0, le=100_000)
    """Requests that wait in the engine's queue; more are answered 503 with Retry-After."""
    kv_cache: Bytes | None = None
    """Memory for the KV cache; unset: a fraction of the container's memory that the weights leave."""
    prefix_caching: bool = True
    """Keep the KV of prompts and reuse it for later prompts that begin alike."""


class EngineConfig(EngineOptions):
    """One engine process's configuration."""

    model_path: str = Field(default=MODELS_PATH, min_length=1, max_length=4096)
    """Folder with config.json, tokenizer.json and *.safetensors."""
    served_names: tuple[str, ...] = Field(min_length=1)
    """Names that clients may put in `model`; the first is the one in answers."""
    executor: ExecutorName = "auto"
    """What computes: `auto` takes the first that can serve the model on this device."""
    device: Device = "cpu"
    """Where it computes."""
    dtype: Dtype = "bf16"
    """Type that is computed in, and of the weights where `quantization` does not say otherwise."""
    quantization: Quantization | None = None
    """Type that the linear layers' weights are turned into while they are loaded; unset: none. A checkpoint that is quantised
    already says so itself."""
    kv_cache_dtype: KvCacheDtype = "auto"
    """Type of the KV cache; `auto` is that of `dtype`."""
    drain_timeout_s: float = Field(default=600.0, ge=0, le=3600)
    """After SIGTERM, seconds until running streams are ended with an error event."""

    @property
    def kv_type(self) -> KvType:
        """The KV cache's type, with `auto` put into words."""
        return self.dtype if self.kv_cache_dtype == "auto" else self.kv_cache_dtype

    @property
    def kv_cache_bytes(self) -> int | None:
        """`kv_cache` in bytes, None if unset."""
        return None if self.kv_cache is None else quantity_bytes(self.kv_cache)

    @model_validator(mode="after")
    def _names_are_not_empty(self) -> EngineConfig:
        if any(not name for name in self.served_names):
            raise ValueError("servedNames: a name is empty; give each at least one character")
        return self

    def to_json(self) -> str:
        """The file's content: what differs from the defaults, keys sorted, so that equal configurations have equal bytes.

        A default is left out so that an engine of an older release, which refuses fields that it does not know, takes the
        file of a newer operator as long as nothing new is asked of it. Defaults never change.
        """
        import json

        return json.dumps(self.model_dump(mode="json", by_alias=True, exclude_defaults=True), sort_keys=True, indent=2)
