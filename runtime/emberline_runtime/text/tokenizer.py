"""Tokenizers: text to tokens, and tokens to bytes. `tokenizers` for a model folder, bytes as they are for the oracle.

Imports neither torch, numpy nor transformers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from emberline_runtime.errors import StartRefused
from emberline_runtime.text.detokenizer import ByteDetokenizer, Detokenizer, WindowDetokenizer

if TYPE_CHECKING:
    import tokenizers

WORD_START = "\u2581"
"""How SentencePiece writes a space."""
TOKENIZER_FILE = "tokenizer.json"


class Tokenizer(Protocol):
    """What the server needs of a tokenizer."""

    eos_ids: frozenset[int]
    """Every id that ends an answer, by any of the model folder's files."""
    bos_id: int | None
    special_tokens: dict[str, str]
    """`bos_token` and the like -> text, as chat templates see them."""

    @property
    def longest_token_bytes(self) -> int:
        """No token stands for more text than this."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Tokens of a short text."""

    def encode_long(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Tokens of a long text; releases the GIL, meant for a worker thread."""

    def detokenizer(self) -> Detokenizer:
        """A new one for one answer."""


class ByteTokenizer:
    """Bytes as tokens, for the oracle executor where the model folder has no tokenizer.

    Ids 0-255 are bytes, 256 begins a text, 257 ends an answer; ids above show as printable ASCII, so that a person can look
    at what an oracle with a large vocabulary says.
    """

    BOS = 256
    EOS = 257

    def __init__(self) -> None:
        self.eos_ids = frozenset({self.EOS})
        self.bos_id: int | None = self.BOS
        self.special_tokens = {"bos_token": "", "eos_token": ""}

    @property
    def longest_token_bytes(self) -> int:
        """One."""
        return 1

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """The text's UTF-8 bytes, after the beginning mark if asked for."""
        return [self.BOS, *text.encode()] if add_special_tokens else list(text.encode())

    def encode_long(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """The same."""
        return self.encode(text, add_special_tokens=add_special_tokens)

    def detokenizer(self) -> Detokenizer:
        """A new one for one answer."""
        return ByteDetokenizer(self._token_bytes)

    def _token_bytes(self, token: int) -> bytes:
        if token < self.BOS:
            return bytes([token])
        return b"" if token <= self.EOS else bytes([0x20 + token % 0x5F])


class FileTokenizer:
    """A model folder's tokenizer.json, with what the other files say about special tokens."""

    def __init__(self, folder: Path) -> None:
        from tokenizers import Tokenizer as Library

        self._library: tokenizers.Tokenizer = Library.from_file(str(folder / TOKENIZER_FILE))
        # Truncation and padding belong to training; a server must never do either silently.
        self._library.no_truncation()
        self._library.no_padding()
        self._added = self._library.get_added_tokens_decoder()
        settings = read_json(folder / "tokenizer_config.json")
        self.special_tokens = {
            key: text for key, value in settings.items() if key.endswith("_token") and (text := _token_text(value))
        }
        self.bos_id = self._id_of("bos_token")
        self.eos_ids = self._union_of_eos(folder)
        self._detokenizer = self._choose_detokenizer()

    @cached_property
    def longest_token_bytes(self) -> int:
        """No token stands for more text; looked up when a long text first asks (it walks the whole vocabulary)."""
        return max((len(token.encode()) for token in self._library.get_vocab()), default=1)

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Tokens of a short text."""
        return self._library.encode(text, add_special_tokens=add_special_tokens).ids

    def encode_long(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Tokens of a long text: the library's batch call gives the GIL up, its single call does not."""
        return self._library.encode_batch([text], add_special_tokens=add_special_tokens)[0].ids

    def detokenizer(self) -> Detokenizer:
        """A new one for one answer; special tokens are not shown."""
        return self._detokenizer()

    def _id_of(self, key: str) -> int | None:
        text = self.special_tokens.get(key)
        return None if text is None else self._library.token_to_id(text)

    def _union_of_eos(self, folder: Path) -> frozenset[int]:
        found: set[int] = set()
        for name in ("config.json", "generation_config.json"):
            value = read_json(folder / name).get("eos_token_id")
            found.update(value if isinstance(value, list) else [] if value is None else [value])
        own = self._id_of("eos_token")
        return frozenset(found if own is None else found | {own})

    def _choose_detokenizer(self) -> Callable[[], Detokenizer]:
        decoder = self._library.decoder
        state = {} if decoder is None else json.loads(decoder.__getstate__())
        steps = {step["type"] for step in state.get("decoders", [state]) if "type" in step}
        if "ByteLevel" in steps:
            alphabet = _byte_level_alphabet()
            table = lru_cache(maxsize=None)(lambda token: self._byte_level(token, alphabet))
            return lambda: ByteDetokenizer(table)
        if "ByteFallback" in steps:
            table = lru_cache(maxsize=None)(self._byte_fallback)
            return lambda: ByteDetokenizer(table)
        return lambda: WindowDetokenizer(lambda ids: self._library.decode(list(ids), skip_special_tokens=True))

    def _added_bytes(self, token: int) -> bytes | None:
        added = self._added.get(token)
        if added is None:
            return None
        return b"" if added.special else added.content.encode()

    def _byte_level(self, token: int, alphabet: dict[str, int]) -> bytes:
        added = self._added_bytes(token)
        if added is not None:
            return added
        text = self._library.id_to_token(token) or ""
        try:
            return bytes(alphabet[character] for character in text)
        except KeyError:
            return text.encode()

    def _byte_fallback(self, token: int) -> bytes:
        added = self._added_bytes(token)
        if added is not None:
            return added
        text = self._library.id_to_token(token) or ""
        if len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
            return bytes([int(text[3:5], 16)])
        return text.replace(WORD_START, " ").encode()


def load_tokenizer(folder: Path, *, allow_bytes: bool) -> Tokenizer:
    """The folder's tokenizer; without one, bytes where they are allowed (the oracle), else StartRefused."""
    if (folder / TOKENIZER_FILE).is_file():
        return FileTokenizer(folder)
    if allow_bytes:
        return ByteTokenizer()
    raise StartRefused(
        f"{folder / TOKENIZER_FILE} does not exist; the model folder needs the fast tokenizer's file"
        " (transformers' `save_pretrained` writes it)"
    )


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a model folder; empty where there is no such file. StartRefused if it is no JSON object."""
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise StartRefused(f"{path} is no JSON: {error}; copy the model folder again") from error
    if not isinstance(content, dict):
        raise StartRefused(f"{path} holds a {type(content).__name__}, not an object; copy the model folder again")
    return content


def trim_double_bos(tokens: Sequence[int], bos_id: int | None) -> list[int]:
    """One beginning mark where both the template and somebody else wrote one."""
    start = 0
    while bos_id is not None and list(tokens[start : start + 2]) == [bos_id, bos_id]:
        start += 1
    return list(tokens[start:])


def _token_text(value: object) -> str | None:
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) and value else None


def _byte_level_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-ins for bytes: printable Latin-1 stands for itself, the rest for 256 and up in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + index): byte for index, byte in enumerate(others)}
