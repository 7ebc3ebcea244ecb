"""The Llama family: RMS norm before attention and MLP, rotary positions, grouped queries, a gated MLP."""

from __future__ import annotations

from emberline_runtime.models.config_fields import ConfigFields
from emberline_runtime.models.errors import ModelConfigError
from emberline_runtime.models.parameters import LayerParameters, ModelParameters, Parameter
from emberline_runtime.models.spec import Activation, DenseMlp, LayerSpec, ModelSpec, NormSpec, RopeSpec

ARCHITECTURES: tuple[str, ...] = ("LlamaForCausalLM",)

_ACTIVATIONS: dict[Activation, tuple[str, ...]] = {
    "silu": ("silu", "swish"),
    "gelu": ("gelu",),
    "gelu_tanh": ("gelu_new", "gelu_pytorch_tanh"),
    "relu": ("relu",),
}
"""Our names and the names that HF configs have for them."""


def make_spec(architecture: str, config: ConfigFields) -> ModelSpec:
    """What config.json says, as a ModelSpec."""
    hidden = config.count("hidden_size")
    heads = config.count("num_attention_heads")
    kv_heads = config.count("num_key_value_heads", heads)
    if heads % kv_heads:
        raise ModelConfigError(
            f"config.json: num_attention_heads {heads} is no multiple of num_key_value_heads {kv_heads}; correct the file"
        )
    if not config.has("head_dim") and hidden % heads:
        raise ModelConfigError(
            f"config.json: hidden_size {hidden} is no multiple of num_attention_heads {heads} and head_dim is absent; "
            "add head_dim"
        )
    attention_bias = config.flag("attention_bias", default=False)
    layer = LayerSpec(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=config.count("head_dim", hidden // heads),
        rope=_rope(config),
        mlp=DenseMlp(
            intermediate=config.count("intermediate_size"),
            activation=_activation(config.text("hidden_act", "silu")),
            bias=config.flag("mlp_bias", default=False),
        ),
        qkv_bias=attention_bias,
        o_bias=attention_bias,
    )
    return ModelSpec(
        architecture=architecture,
        vocab=config.count("vocab_size"),
        hidden=hidden,
        tied=config.flag("tie_word_embeddings", default=False),
        norm=NormSpec(kind="rms", eps=config.positive("rms_norm_eps", 1e-6)),
        layers=(layer,) * config.count("num_hidden_layers"),
        max_positions=config.count("max_position_embeddings", 2048),
    )


def make_parameters(spec: ModelSpec) -> ModelParameters:
    """The tensors that a checkpoint of this spec holds."""
    return ModelParameters(
        embedding=Parameter("model.embed_tokens.weight", (spec.vocab, spec.hidden)),
        layers=tuple(_layer_parameters(i, layer, spec.hidden) for i, layer in enumerate(spec.layers)),
        final_norm=Parameter("model.norm.weight", (spec.hidden,)),
        head=Parameter("lm_head.weight", (spec.vocab, spec.hidden)),
        tied=spec.tied,
        ignored_suffixes=(".rotary_emb.inv_freq",),
    )


def _layer_parameters(index: int, layer: LayerSpec, hidden: int) -> LayerParameters:
    if not isinstance(layer.mlp, DenseMlp):
        raise TypeError(f"layer {index} has a {type(layer.mlp).__name__}; this family's layers are dense")
    prefix = f"model.layers.{index}"
    num_q, num_kv, inner = layer.heads * layer.head_dim, layer.kv_heads * layer.head_dim, layer.mlp.intermediate

    def matrix(part: str, num_out: int, num_in: int) -> Parameter:
        return Parameter(f"{prefix}.{part}.weight", (num_out, num_in))

    def bias(part: str, num_out: int, there: bool) -> Parameter | None:
        return Parameter(f"{prefix}.{part}.bias", (num_out,)) if there else None

    return LayerParameters(
        attn_norm=Parameter(f"{prefix}.input_layernorm.weight", (hidden,)),
        q=matrix("self_attn.q_proj", num_q, hidden),
        k=matrix("self_attn.k_proj", num_kv, hidden),
        v=matrix("self_attn.v_proj", num_kv, hidden),
        o=matrix("self_attn.o_proj", hidden, num_q),
        mlp_norm=Parameter(f"{prefix}.post_attention_layernorm.weight", (hidden,)),
        gate=matrix("mlp.gate_proj", inner, hidden),
        up=matrix("mlp.up_proj", inner, hidden),
        down=matrix("mlp.down_proj", hidden, inner),
        q_bias=bias("self_attn.q_proj", num_q, layer.qkv_bias),
        k_bias=bias("self_attn.k_proj", num_kv, layer.qkv_bias),
        v_bias=bias("self_attn.v_proj", num_kv, layer.qkv_bias),
        o_bias=bias("self_attn.o_proj", hidden, layer.o_bias),
        gate_bias=bias("mlp.gate_proj", inner, layer.mlp.bias),
        up_bias=bias("mlp.up_proj", inner, layer.mlp.bias),
        down_bias=bias("mlp.down_proj", hidden, layer.mlp.bias),
    )


def _activation(name: str) -> Activation:
    for ours, theirs in _ACTIVATIONS.items():
        if name in theirs:
            return ours
    raise ModelConfigError(
        f"config.json: field 'hidden_act' is {name!r}; known are silu, gelu, gelu_new, gelu_pytorch_tanh and relu"
    )


def _rope(config: ConfigFields) -> RopeSpec:
    """Newer files have one object `rope_parameters`, older ones `rope_theta` beside `rope_scaling`."""
    scaling = config.nested("rope_parameters" if config.has("rope_parameters") else "rope_scaling")
    theta = scaling.positive("rope_theta") if scaling.has("rope_theta") else config.positive("rope_theta", 10_000.0)
    kind = scaling.text("rope_type", scaling.text("type", "default"))
    match kind:
        case "default":
            return RopeSpec(theta=theta)
        case "linear" | "yarn":
            return RopeSpec(theta=theta, kind=kind, factor=scaling.positive("factor"))
        case "llama3":
            return RopeSpec(
                theta=theta,
                kind=kind,
                factor=scaling.positive("factor"),
                low_freq_factor=scaling.positive("low_freq_factor"),
                high_freq_factor=scaling.positive("high_freq_factor"),
                original_max_positions=scaling.count("original_max_position_embeddings"),
            )
        case _:
            raise ModelConfigError(
                f"config.json: the rope type is {kind!r}; known are default, linear, llama3 and yarn"
            )
