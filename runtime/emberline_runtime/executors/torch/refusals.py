"""What the torch executor lacks, said by field. Imports no torch: the registry asks before anything heavy is loaded."""

from __future__ import annotations

from importlib.util import find_spec

from emberline_contract.engine_config import EngineConfig
from emberline_runtime.models.spec import DenseMlp, LayerSpec, ModelSpec, NormSpec


def refusals(spec: ModelSpec | None, config: EngineConfig) -> list[str]:
    """Reasons why this executor cannot serve; empty if it can. Fields of all layers, each reason once."""
    reasons = [] if find_spec("torch") else ["torch is not installed; install emberline[runtime]"]
    if config.quantization == "int4":
        reasons.append("quantization 'int4': weights become fp8 or int8 while they are loaded; choose one of them")
    if spec is None:
        return [*reasons, "the model folder has no spec that could be read"]
    if spec.stored_weights is not None and config.quantization is not None:
        reasons.append(
            f"quantization {config.quantization!r}: the checkpoint's weights are {spec.stored_weights} already; leave it unset"
        )
    return reasons + _model_refusals(spec)


def _model_refusals(spec: ModelSpec) -> list[str]:
    reasons = _norm_refusals("norm", spec.norm)
    for name, value, plain in (
        ("embed_scale", spec.embed_scale, 1.0),
        ("logit_scale", spec.logit_scale, 1.0),
        ("final_softcap", spec.final_softcap, None),
    ):
        if value != plain:
            reasons.append(f"{name} {value}: only {plain} is computed")
    for layer in spec.layers:
        reasons.extend(_layer_refusals(layer))
    return list(dict.fromkeys(reasons))


def _norm_refusals(field: str, norm: NormSpec) -> list[str]:
    reasons = []
    if norm.kind != "rms":
        reasons.append(f"{field}.kind {norm.kind!r}: only 'rms' is computed")
    if norm.unit_offset:
        reasons.append(f"{field}.unit_offset: weights stored as w - 1 are not computed")
    return reasons


def _layer_refusals(layer: LayerSpec) -> list[str]:
    reasons = [
        f"layers.{name} {value}: not computed"
        for name, value in (
            ("window", layer.window),
            ("attn_softcap", layer.attn_softcap),
            ("qk_norm", layer.qk_norm),
            ("sinks", layer.sinks or None),
            ("post_norms", layer.post_norms or None),
        )
        if value is not None
    ]
    if not layer.pre_norms:
        reasons.append("layers.pre_norms False: not computed")
    if layer.rope is None:
        reasons.append("layers.rope None: only rotary positions are computed")
    elif layer.rope.kind not in ("default", "llama3"):
        reasons.append(f"layers.rope.kind {layer.rope.kind!r}: only 'default' and 'llama3' are computed")
    elif layer.rope.rotary_dim not in (None, layer.head_dim):
        reasons.append(f"layers.rope.rotary_dim {layer.rope.rotary_dim}: only the whole head ({layer.head_dim}) turns")
    if layer.head_dim % 2:
        reasons.append(f"layers.head_dim {layer.head_dim}: rotary positions need an even one")
    if not isinstance(layer.mlp, DenseMlp):
        return [*reasons, f"layers.mlp {type(layer.mlp).__name__}: only DenseMlp is computed"]
    if not layer.mlp.gated:
        reasons.append("layers.mlp.gated False: only gated MLPs are computed")
    if layer.mlp.activation != "silu":
        reasons.append(f"layers.mlp.activation {layer.mlp.activation!r}: only 'silu' is computed")
    return reasons
