"""The immutable ConfigMap that holds one EngineConfig; a change makes another one, named by its content."""

from __future__ import annotations

import hashlib

from emberline_contract import names
from emberline_contract.engine_config import EngineConfig, EngineOptions
from emberline_contract.resources import InferenceEndpointSpec
from emberline_operator.choice import Choice
from emberline_operator.desired.child import Child
from emberline_operator.snapshot import Json


def engine_config(child: Child, spec: InferenceEndpointSpec, choice: Choice) -> EngineConfig:
    """What the endpoint's engines are told."""
    options = {field: getattr(spec.engine, field) for field in EngineOptions.model_fields}
    alias = () if spec.model.served_name is None else (spec.model.served_name,)
    served = (names.qualified_name(child.namespace, child.endpoint), child.endpoint, *alias)
    return EngineConfig(
        **options,
        served_names=tuple(dict.fromkeys(served)),
        device="cpu" if spec.accelerator.kind == "Cpu" else "cuda",
        dtype=choice.dtype,
        quantization=choice.quantization,
        kv_cache_dtype=choice.kv_cache,
        drain_timeout_s=spec.rollout.drain_timeout_s,
    )


def configmap_name(child: Child, content: str) -> str:
    """`<child>-<hash>`."""
    return f"{child.name}-{hashlib.sha256(content.encode()).hexdigest()[:10]}"


def make_configmap(child: Child, content: str) -> Json:
    """The ConfigMap of one EngineConfig, given its JSON."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": child.metadata(configmap_name(child, content)),
        "immutable": True,
        "data": {names.ENGINE_CONFIG_FILE: content},
    }
