"""Tokenizers and detokenising: tokens become the library's own text, whatever is cut."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from emberline_runtime.errors import StartRefused
from emberline_runtime.text.detokenizer import ByteDetokenizer, Detokenizer, WindowDetokenizer
from emberline_runtime.text.tokenizer import (
    ByteTokenizer,
    FileTokenizer,
    load_tokenizer,
    trim_double_bos,
)

CORPUS = ["hello world, здравствуй мир, 你好世界 😀🏳️‍🌈 naïve café"] * 4
patient = settings(deadline=None, max_examples=50)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


def byte_level() -> Tokenizer:
    library = Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    library.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(
            vocab_size=320,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            special_tokens=["<bos>", "<eos>", "<end_of_turn>"],
            show_progress=False,
        ),
    )
    library.add_tokens([AddedToken("<plain added>", special=False)])
    return library


def byte_fallback() -> Tokenizer:
    vocab = {
        "<unk>": 0,
        **{f"<0x{byte:02X}>": byte + 1 for byte in range(256)},
        "▁": 257,
        "a": 258,
        "▁a": 259,
        "b": 260,
    }
    library = Tokenizer(models.BPE(vocab, [("▁", "a")], unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    library.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never", split=False)
    library.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return library


def word_piece() -> Tokenizer:
    vocab = {"[UNK]": 0, "hel": 1, "##lo": 2, "world": 3, "##s": 4, ",": 5}
    library = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.decoder = decoders.WordPiece()
    return library


def saved(folder: Path, library: Tokenizer, **files: object) -> FileTokenizer:
    library.save(str(folder / "tokenizer.json"))
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return FileTokenizer(folder)


@pytest.fixture(scope="module")
def bytes_bpe(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokenizer, FileTokenizer]:
    library = byte_level()
    return library, saved(tmp_path_factory.mktemp("byte_level"), library)


@pytest.fixture(scope="module")
def fallback(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokenizer, FileTokenizer]:
    library = byte_fallback()
    return library, saved(tmp_path_factory.mktemp("byte_fallback"), library)


def text_of(detokenizer: Detokenizer, tokens: list[int]) -> str:
    return "".join([*map(detokenizer.push, tokens), detokenizer.flush()])


@patient
@given(TEXTS)
def test_what_is_encoded_comes_back(bytes_bpe: tuple[Tokenizer, FileTokenizer], text: str) -> None:
    library, ours = bytes_bpe
    tokens = ours.encode(text, add_special_tokens=False)
    assert tokens == library.encode(text, add_special_tokens=False).ids
    assert tokens == ours.encode_long(text, add_special_tokens=False)
    expected = library.decode(tokens, skip_special_tokens=True)
    assert text_of(ours.detokenizer(), tokens) == expected


@patient
@given(st.lists(st.integers(0, 330), max_size=30))
def test_any_tokens_give_the_librarys_text(bytes_bpe: tuple[Tokenizer, FileTokenizer], tokens: list[int]) -> None:
    library, ours = bytes_bpe
    # The library decodes runs between added tokens that are not special one by one; so compare without these.
    tokens = [token for token in tokens if token != library.token_to_id("<plain added>")]
    assert text_of(ours.detokenizer(), tokens) == library.decode(tokens, skip_special_tokens=True)


def test_added_tokens_show_and_special_ones_do_not(bytes_bpe: tuple[Tokenizer, FileTokenizer]) -> None:
    library, ours = bytes_bpe
    tokens = [library.token_to_id(token) for token in ("<bos>", "<plain added>", "<end_of_turn>")]
    assert text_of(ours.detokenizer(), tokens) == "<plain added>"


@patient
@given(TEXTS)
def test_byte_fallback_comes_back(fallback: tuple[Tokenizer, FileTokenizer], text: str) -> None:
    _, ours = fallback
    text = text.replace("▁", "")
    assert text_of(ours.detokenizer(), ours.encode(text, add_special_tokens=False)) == text


def test_a_cut_character_is_held_until_it_is_whole() -> None:
    detokenizer = ByteDetokenizer(lambda token: bytes([token]))
    assert [detokenizer.push(byte) for byte in "a😀b".encode()] == ["a", "", "", "", "😀", "b"]
    assert detokenizer.flush() == ""


def test_a_lone_invalid_byte_does_not_stall_the_stream() -> None:
    detokenizer = ByteDetokenizer(lambda token: bytes([token]))
    assert [detokenizer.push(byte) for byte in b"\xffa\xf0\x9fb"] == ["\ufffd", "a", "", "", "\ufffdb"]


def test_an_incomplete_character_is_shown_only_at_the_end() -> None:
    detokenizer = ByteDetokenizer(lambda token: bytes([token]))
    assert [detokenizer.push(byte) for byte in "é😀".encode()[:-1]] == ["", "é", "", "", ""]
    assert detokenizer.flush() == "\ufffd"


@patient
@given(st.lists(st.integers(1, 5), max_size=12))
def test_words_through_a_window(tokens: list[int]) -> None:
    library = word_piece()
    ours = WindowDetokenizer(lambda ids: library.decode(list(ids)))
    text = text_of(ours, tokens)
    # Its clean-up of " ," depends on what came before, so the window may keep a space that the whole text loses.
    assert text.replace(" ", "") == library.decode(tokens).replace(" ", "")


def test_a_decoder_that_changes_its_mind_does_not_end_the_answer() -> None:
    # "Invalid prefix encountered" in the library's own stream: the text of all is no continuation of the text before.
    texts = {(1,): "one", (1, 2): "ONE two", (2,): "two", (2, 3): "two three", (3,): "three"}
    ours = WindowDetokenizer(lambda ids: texts[tuple(ids)])
    assert [ours.push(token) for token in (1, 2, 3)] == ["one", "two", " three"]


def test_replacement_characters_without_end_do_not_stall_a_window() -> None:
    ours = WindowDetokenizer(lambda ids: "\ufffd" * len(ids))
    assert text_of(ours, [0] * 10) == "\ufffd" * 10


def test_eos_is_the_union_of_all_files(tmp_path: Path) -> None:
    ours = saved(
        tmp_path,
        byte_level(),
        config={"eos_token_id": 7},
        generation_config={"eos_token_id": [7, 9]},
        tokenizer_config={"eos_token": {"content": "<eos>"}, "bos_token": "<bos>", "pad_token": None},
    )
    assert ours.eos_ids == {1, 7, 9}
    assert ours.bos_id == 0
    assert ours.special_tokens == {"eos_token": "<eos>", "bos_token": "<bos>"}


def test_truncation_and_padding_of_the_file_are_off(tmp_path: Path) -> None:
    library = byte_level()
    library.enable_truncation(2)
    library.enable_padding(length=50)
    assert len(saved(tmp_path, library).encode("hello world, hello world", add_special_tokens=True)) > 2
    assert len(saved(tmp_path, library).encode("a", add_special_tokens=True)) == 1


def test_special_tokens_are_added_only_when_asked_for(tmp_path: Path) -> None:
    library = byte_level()
    library.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 0)])
    ours = saved(tmp_path, library)
    assert ours.encode("", add_special_tokens=True) == [0]
    assert ours.encode("", add_special_tokens=False) == []


@pytest.mark.parametrize(
    ("tokens", "trimmed"), [([0, 0, 5], [0, 5]), ([0, 5, 0, 0], [0, 5, 0, 0]), ([5], [5]), ([], []), ([0, 0, 0], [0])]
)
def test_one_beginning_mark_stays(tokens: list[int], trimmed: list[int]) -> None:
    assert trim_double_bos(tokens, 0) == trimmed
    assert trim_double_bos(tokens, None) == tokens


def test_no_token_is_longer_than_the_longest(bytes_bpe: tuple[Tokenizer, FileTokenizer]) -> None:
    library, ours = bytes_bpe
    assert ours.longest_token_bytes >= max(len(library.decode([token]).encode()) for token in range(4, 320))


@patient
@given(st.text(max_size=20))
def test_bytes_come_back(text: str) -> None:
    ours = ByteTokenizer()
    tokens = ours.encode(text, add_special_tokens=True)
    assert tokens[0] == ByteTokenizer.BOS
    assert text_of(ours.detokenizer(), [*tokens, ByteTokenizer.EOS]) == text


def test_bytes_are_only_for_the_oracle(tmp_path: Path) -> None:
    assert isinstance(load_tokenizer(tmp_path, allow_bytes=True), ByteTokenizer)
    with pytest.raises(StartRefused, match=r"tokenizer\.json does not exist"):
        load_tokenizer(tmp_path, allow_bytes=False)


@pytest.mark.parametrize("content", ["[]", "{", '"text"'])
def test_a_broken_file_of_the_folder_is_named(tmp_path: Path, content: str) -> None:
    byte_level().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(content)
    with pytest.raises(StartRefused, match=r"tokenizer_config\.json"):
        FileTokenizer(tmp_path)
