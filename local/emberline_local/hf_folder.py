"""What a GGUF file of the Llama family becomes in a Hugging Face model folder: file contents and tensor names. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from emberline_local.errors import ModelSourceError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from emberline_local.gguf import Floats, GgufFile, Value

_CONTROL_TOKEN = 3
_BLOCK_TENSORS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_TOP_TENSORS = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def _number(metadata: Mapping[str, Value], key: str) -> int | float:
    value = metadata.get(key)
    if not isinstance(value, int | float):
        raise ModelSourceError(f"the GGUF file has {value!r} as {key}; a number is needed")
    return value


def _text(metadata: Mapping[str, Value], key: str) -> str:
    value = metadata.get(key)
    if not isinstance(value, str):
        raise ModelSourceError(f"the GGUF file has {value!r} as {key}; a text is needed")
    return value


def _list(metadata: Mapping[str, Value], key: str) -> list[Value]:
    value = metadata.get(key)
    if not isinstance(value, list):
        raise ModelSourceError(f"the GGUF file has no list {key}")
    return value


def _demand(metadata: Mapping[str, Value], key: str, expected: str) -> None:
    if metadata.get(key) != expected:
        raise ModelSourceError(f"the GGUF file has {metadata.get(key)!r} as {key}; only {expected!r} is known")


def model_config(gguf: GgufFile) -> dict[str, Any]:
    """`config.json`."""
    metadata = gguf.metadata
    _demand(metadata, "general.architecture", "llama")
    hidden, heads = (
        int(_number(metadata, "llama.embedding_length")),
        int(_number(metadata, "llama.attention.head_count")),
    )
    rotary = int(_number(metadata, "llama.rope.dimension_count"))
    if rotary * heads != hidden:
        raise ModelSourceError(f"rotary width {rotary} is not the head width {hidden}/{heads}")
    return {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": _number(metadata, "tokenizer.ggml.bos_token_id"),
        "eos_token_id": _number(metadata, "tokenizer.ggml.eos_token_id"),
        "head_dim": rotary,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "initializer_range": 0.02,
        "intermediate_size": _number(metadata, "llama.feed_forward_length"),
        "max_position_embeddings": _number(metadata, "llama.context_length"),
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": heads,
        "num_hidden_layers": _number(metadata, "llama.block_count"),
        "num_key_value_heads": _number(metadata, "llama.attention.head_count_kv"),
        "pad_token_id": _number(metadata, "tokenizer.ggml.padding_token_id"),
        # The file keeps it as fp32; seven digits give back the number that was meant.
        "rms_norm_eps": float(f"{_number(metadata, 'llama.attention.layer_norm_rms_epsilon'):.7g}"),
        "rope_scaling": None,
        "rope_theta": float(_number(metadata, "llama.rope.freq_base")),
        "tie_word_embeddings": "output.weight" not in gguf.tensors,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": _number(metadata, "llama.vocab_size"),
    }


def generation_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """`generation_config.json`: which ids begin and end a text."""
    return {
        "_from_model_config": True,
        **{key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")},
    }


def tokenizer_json(metadata: Mapping[str, Value]) -> dict[str, Any]:
    """`tokenizer.json` of a byte-level BPE vocabulary that was learned with every digit on its own (SmolLM)."""
    _demand(metadata, "tokenizer.ggml.model", "gpt2")
    _demand(metadata, "tokenizer.ggml.pre", "smollm")
    tokens = [str(token) for token in _list(metadata, "tokenizer.ggml.tokens")]
    kinds = _list(metadata, "tokenizer.ggml.token_type")
    merges = [str(merge).split(" ") for merge in _list(metadata, "tokenizer.ggml.merges")]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": index, "content": token, "special": True, "normalized": False}
            | dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
            for index, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
            if kind == _CONTROL_TOKEN
        ],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level],
        },
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: index for index, token in enumerate(tokens)},
            "merges": merges,
        },
    }


def tokenizer_config(metadata: Mapping[str, Value]) -> dict[str, Any]:
    """`tokenizer_config.json`, with the chat template."""
    tokens = _list(metadata, "tokenizer.ggml.tokens")

    def special(name: str) -> Value:
        return tokens[int(_number(metadata, f"tokenizer.ggml.{name}_token_id"))]

    return {
        "add_bos_token": metadata.get("tokenizer.ggml.add_bos_token", False),
        "add_prefix_space": metadata.get("tokenizer.ggml.add_space_prefix", False),
        "bos_token": special("bos"),
        "chat_template": _text(metadata, "tokenizer.chat_template"),
        "clean_up_tokenization_spaces": False,
        "eos_token": special("eos"),
        "model_max_length": _number(metadata, "llama.context_length"),
        "pad_token": special("padding"),
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": special("unknown"),
    }


class Weights:
    """The tensors under their Hugging Face names and in their layout."""

    def __init__(self, gguf: GgufFile, config: Mapping[str, Any]) -> None:
        self._gguf = gguf
        self._heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
        self._sources = {_hf_name(name): name for name in gguf.tensors}

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name -> shape, in the order of the GGUF file."""
        return {name: self._gguf.tensors[source].shape for name, source in self._sources.items()}

    def tensor(self, name: str) -> Floats:
        """Values as fp32."""
        source = self._sources[name]
        values = self._gguf.tensor(source)
        num_heads = self._heads.get(source.split(".")[-2])
        return values if num_heads is None else _half_split_rope(values, num_heads)


def _hf_name(name: str) -> str:
    match name.split("."):
        case ["blk", number, part, "weight"] if part in _BLOCK_TENSORS:
            return f"model.layers.{number}.{_BLOCK_TENSORS[part]}.weight"
        case [part, "weight"] if part in _TOP_TENSORS:
            return f"{_TOP_TENSORS[part]}.weight"
        case _:
            raise ModelSourceError(f"the GGUF file has a tensor {name} that a Llama model lacks")


def _half_split_rope(values: Floats, num_heads: int) -> Floats:
    """Undo llama.cpp's order of rows.

    llama.cpp rotates neighbouring rows of a head with each other (0 with 1, 2 with 3, ...), Hugging Face's Llama a row of
    the first half with its partner in the second; the conversion to GGUF had interleaved the halves.
    """
    rows, columns = values.shape
    pairs = values.reshape(num_heads, rows // num_heads // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns)
