"""The real model's text, as transformers makes it: prompt tokens of chats, and answers from tokens."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emberline_runtime.text.chat_template import load_chat_template
from emberline_runtime.text.tokenizer import FileTokenizer

pytestmark = pytest.mark.model

CHATS = [
    [{"role": "user", "content": "What is the capital of France?"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi\n\n  there 😀"}],
    [
        {"role": "user", "content": "1 + 1"},
        {"role": "assistant", "content": "2"},
        {"role": "user", "content": "<b>and</b> 'more' & \"quotes\"? "},
    ],
]


@pytest.fixture(scope="module")
def ours(smollm2_folder: Path) -> FileTokenizer:
    return FileTokenizer(smollm2_folder)


def test_chats_have_transformers_tokens(smollm2_folder: Path, ours: FileTokenizer) -> None:
    from transformers import AutoTokenizer

    reference = AutoTokenizer.from_pretrained(smollm2_folder)
    template = load_chat_template(smollm2_folder, ours.special_tokens, lambda: datetime(2026, 1, 1, tzinfo=UTC))
    assert template is not None
    for messages in CHATS:
        text = template.render(messages)
        assert text == reference.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        tokens = ours.encode(text, add_special_tokens=False)
        assert tokens == reference(text, add_special_tokens=False)["input_ids"]
    assert reference.eos_token_id in ours.eos_ids


@settings(deadline=None, max_examples=50)
@given(st.text(max_size=40), st.lists(st.integers(0, 49151), max_size=30))
def test_tokens_are_the_librarys_text(ours: FileTokenizer, text: str, tokens: list[int]) -> None:
    # The model's vocabulary lacks some bytes, so not every text comes back; the library's decoding is the measure.
    tokens = ours.encode(text, add_special_tokens=False) + tokens
    detokenizer = ours.detokenizer()
    expected = ours._library.decode(tokens, skip_special_tokens=True)
    assert "".join([*map(detokenizer.push, tokens), detokenizer.flush()]) == expected


def test_everyday_text_comes_back(ours: FileTokenizer) -> None:
    text = "Grüße, здравствуй, 你好 😀\n\n\tdef f(x):  return x"
    detokenizer = ours.detokenizer()
    tokens = ours.encode(text, add_special_tokens=False)
    assert "".join([*map(detokenizer.push, tokens), detokenizer.flush()]) == text
