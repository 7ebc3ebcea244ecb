"""Models that are known by name: how many parameters, and what decides their KV cache. From their published configurations."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

Stored = Literal["None", "FP8", "INT8", "AWQ", "GPTQ", "FP4"]
"""How a checkpoint's files store the weights; `None`: in 16 bits or more. FP4: NVFP4 and MXFP4."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """What memory depends on."""

    millions: float
    """Parameters."""
    layers: int
    kv_heads: int
    head_dim: int
    hidden: int
    vocab: int
    is_tied: bool
    """Input and output embeddings are one matrix."""
    context: int
    """Longest prompt plus answer, in tokens."""
    latent_kv: int | None = None
    """Numbers per token and layer where keys and values are stored as one compressed row (multi-head latent attention)."""
    stored: Stored = "None"
    """How the publisher's own files store it."""

    @property
    def parameters(self) -> int:
        """Number of parameters."""
        return round(self.millions * 1e6)

    @property
    def kv_numbers_per_token(self) -> int:
        """Numbers that one token adds to the KV cache, over all layers."""
        return self.layers * (self.latent_kv or 2 * self.kv_heads * self.head_dim)

    @property
    def embedding_parameters(self) -> int:
        """Parameters of embeddings and output layer, which stay in 16 bits whatever the format."""
        return self.vocab * self.hidden * (1 if self.is_tied else 2)


def _arch(
    millions: float, layers: int, kv: tuple[int, int], hidden: int, vocab: int, context: int, *, tied: bool = False
) -> Architecture:
    return Architecture(millions, layers, kv[0], kv[1], hidden, vocab, tied, context)


_DEEPSEEK_V3 = replace(_arch(671_026, 61, (128, 128), 7168, 129_280, 163_840), latent_kv=576, stored="FP8")
_LLAMA_8B = _arch(8_030, 32, (8, 128), 4096, 128_256, 131_072)
_LLAMA_70B = _arch(70_554, 80, (8, 128), 8192, 128_256, 131_072)
_QWEN25_1_5B = _arch(1_544, 28, (2, 128), 1536, 151_936, 32_768, tied=True)
_QWEN25_7B = _arch(7_616, 28, (4, 128), 3584, 152_064, 32_768)
_QWEN25_14B = _arch(14_770, 48, (8, 128), 5120, 152_064, 32_768)
_QWEN25_32B = _arch(32_764, 64, (8, 128), 5120, 152_064, 32_768)

KNOWN: Final[dict[str, Architecture]] = {
    "smollm2-135m": _arch(135, 30, (3, 64), 576, 49_152, 8_192, tied=True),
    "smollm2-360m": _arch(362, 32, (5, 64), 960, 49_152, 8_192, tied=True),
    "smollm2-1.7b": _arch(1_711, 24, (32, 64), 2048, 49_152, 8_192, tied=True),
    "smollm3-3b": _arch(3_075, 36, (4, 128), 2048, 128_256, 65_536, tied=True),
    "tinyllama-1.1b": _arch(1_100, 22, (4, 64), 2048, 32_000, 2_048),
    "llama-2-7b": _arch(6_738, 32, (32, 128), 4096, 32_000, 4_096),
    "llama-2-13b": _arch(13_016, 40, (40, 128), 5120, 32_000, 4_096),
    "llama-2-70b": _arch(68_977, 80, (8, 128), 8192, 32_000, 4_096),
    "llama-3-8b": _arch(8_030, 32, (8, 128), 4096, 128_256, 8_192),
    "llama-3-70b": _arch(70_554, 80, (8, 128), 8192, 128_256, 8_192),
    "llama-3.1-8b": _LLAMA_8B,
    "llama-3.1-70b": _LLAMA_70B,
    "llama-3.3-70b": _LLAMA_70B,
    "llama-3.1-405b": _arch(405_853, 126, (8, 128), 16_384, 128_256, 131_072),
    "llama-3.2-1b": _arch(1_236, 16, (8, 64), 2048, 128_256, 131_072, tied=True),
    "llama-3.2-3b": _arch(3_213, 28, (8, 128), 3072, 128_256, 131_072, tied=True),
    "llama-4-scout-17b-16e": _arch(108_642, 48, (8, 128), 5120, 202_048, 131_072),
    "llama-4-maverick-17b-128e": _arch(401_650, 48, (8, 128), 5120, 202_048, 131_072),
    "qwen2.5-0.5b": _arch(494, 24, (2, 64), 896, 151_936, 32_768, tied=True),
    "qwen2.5-1.5b": _QWEN25_1_5B,
    "qwen2.5-3b": _arch(3_086, 36, (2, 128), 2048, 151_936, 32_768, tied=True),
    "qwen2.5-7b": _QWEN25_7B,
    "qwen2.5-14b": _QWEN25_14B,
    "qwen2.5-32b": _QWEN25_32B,
    "qwen2.5-72b": _arch(72_706, 80, (8, 128), 8192, 152_064, 32_768),
    "qwen3-0.6b": _arch(596, 28, (8, 128), 1024, 151_936, 40_960, tied=True),
    "qwen3-1.7b": _arch(1_721, 28, (8, 128), 2048, 151_936, 40_960, tied=True),
    "qwen3-4b": _arch(4_022, 36, (8, 128), 2560, 151_936, 40_960, tied=True),
    "qwen3-8b": _arch(8_191, 36, (8, 128), 4096, 151_936, 40_960),
    "qwen3-14b": _arch(14_768, 40, (8, 128), 5120, 151_936, 40_960),
    "qwen3-32b": _arch(32_762, 64, (8, 128), 5120, 151_936, 40_960),
    "qwen3-30b-a3b": _arch(30_532, 48, (4, 128), 2048, 151_936, 40_960),
    "qwen3-235b-a22b": _arch(235_094, 94, (4, 128), 4096, 151_936, 40_960),
    "mistral-7b": _arch(7_248, 32, (8, 128), 4096, 32_768, 32_768),
    "mistral-nemo": _arch(12_248, 40, (8, 128), 5120, 131_072, 131_072),
    "mistral-small-24b": _arch(23_572, 40, (8, 128), 5120, 131_072, 32_768),
    "mixtral-8x7b": _arch(46_703, 32, (8, 128), 4096, 32_000, 32_768),
    "mixtral-8x22b": _arch(140_631, 56, (8, 128), 6144, 32_768, 65_536),
    "gemma-2-2b": _arch(2_614, 26, (4, 256), 2304, 256_000, 8_192, tied=True),
    "gemma-2-9b": _arch(9_242, 42, (8, 256), 3584, 256_000, 8_192, tied=True),
    "gemma-2-27b": _arch(27_227, 46, (16, 128), 4608, 256_000, 8_192, tied=True),
    "phi-3-mini": _arch(3_821, 32, (32, 96), 3072, 32_064, 131_072),
    "phi-3.5-mini": _arch(3_821, 32, (32, 96), 3072, 32_064, 131_072),
    "phi-4": _arch(14_660, 40, (10, 128), 5120, 100_352, 16_384),
    "phi-4-mini": _arch(3_836, 32, (8, 128), 3072, 200_064, 131_072, tied=True),
    "deepseek-v3": _DEEPSEEK_V3,
    "deepseek-r1": _DEEPSEEK_V3,
    "r1-distill-qwen-1.5b": _QWEN25_1_5B,
    "r1-distill-qwen-7b": _QWEN25_7B,
    "r1-distill-qwen-14b": _QWEN25_14B,
    "r1-distill-qwen-32b": _QWEN25_32B,
    "r1-distill-llama-8b": _LLAMA_8B,
    "r1-distill-llama-70b": _LLAMA_70B,
}
"""By name in small letters, words parted by `-`. In a model's name these words must stand side by side."""
