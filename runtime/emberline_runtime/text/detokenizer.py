"""Tokens become text one at a time. The text so far never changes afterwards, and cutting a token sequence into chunks
anywhere gives the same text. Pure: knows tokens as bytes or through a decode function, no tokenizer library.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from typing import Protocol

MAX_INCOMPLETE_TOKENS = 3
"""A UTF-8 character has four bytes, a token at least one: more than three tokens without a character are no beginning."""


class Detokenizer(Protocol):
    """One answer's text."""

    def push(self, token: int) -> str:
        """Text that is certain now that `token` came; empty while a character is incomplete."""

    def flush(self) -> str:
        """No more tokens: U+FFFD for an incomplete character, or nothing."""


class ByteDetokenizer:
    """For tokenizers whose tokens stand for bytes (byte-level BPE, byte fallback).

    An incomplete character is held back; bytes that can no longer become one are U+FFFD at once, so a lone invalid byte
    does not stall the stream.
    """

    def __init__(self, token_bytes: Callable[[int], bytes]) -> None:
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """Text that is certain now that `token` came."""
        return self._decoder.decode(self._token_bytes(token))

    def flush(self) -> str:
        """U+FFFD for an incomplete character, or nothing."""
        return self._decoder.decode(b"", final=True)


class WindowDetokenizer:
    """For any other tokenizer: decodes a short window of tokens and shows what the newest added.

    Where a decoder rewrites what it said before (the library's own stream raises "Invalid prefix" there), the text that was
    shown stays and the window starts anew.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._window: list[int] = []
        self._num_shown = 0  # leading tokens of the window whose text is out
        self._shown = ""  # their text

    def push(self, token: int) -> str:
        """Text that is certain now that `token` came."""
        self._window.append(token)
        text = self._decode(self._window)
        incomplete = len(self._window) - self._num_shown <= MAX_INCOMPLETE_TOKENS
        if text.endswith("\ufffd") and incomplete:
            return ""
        return self._advance(text)

    def flush(self) -> str:
        """What was held back."""
        return self._advance(self._decode(self._window)) if len(self._window) > self._num_shown else ""

    def _advance(self, text: str) -> str:
        continues = text.startswith(self._shown)
        new = text[len(self._shown) :] if continues else self._decode(self._window[self._num_shown :])
        # The tokens just shown stay as context: decoders treat a first token in a special way.
        self._window = self._window[self._num_shown :]
        self._num_shown = len(self._window)
        self._shown = self._decode(self._window)
        return new
