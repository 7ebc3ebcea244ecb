"""What requests may hold: honoured, neutral, or refused by name."""

import json
from typing import Any

import pytest

from emberline_runtime.errors import RequestRefused
from emberline_runtime.server.schema import parse_chat, parse_completion

CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
COMPLETION: dict[str, Any] = {"model": "m", "prompt": "hi"}

BOTH: list[tuple[dict[str, Any], str]] = [
    ({"model": None}, "model"),
    ({"model": ""}, "model"),
    ({"model": 3}, "model"),
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": 2.1}, "temperature"),
    ({"temperature": "1"}, "temperature"),
    ({"temperature": True}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_p": 1.01}, "top_p"),
    ({"top_k": -2}, "top_k"),
    ({"top_k": 1.5}, "top_k"),
    ({"seed": 2**64}, "seed"),
    ({"seed": -(2**63) - 1}, "seed"),
    ({"seed": 0.5}, "seed"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": 1.5}, "max_tokens"),
    ({"min_tokens": -1}, "min_tokens"),
    ({"stop": ["a"] * 5}, "stop"),
    ({"stop": ""}, "stop"),
    ({"stop": ["a", ""]}, "stop"),
    ({"stop": [1]}, "stop"),
    ({"stop": {"a{b}": 1}}, "stop"),
    ({"stop": "x" * 1025}, "stop"),
    ({"stop_token_ids": [-1]}, "stop_token_ids"),
    ({"stop_token_ids": [2**31]}, "stop_token_ids"),
    ({"stop_token_ids": ["1"]}, "stop_token_ids[0]"),
    ({"stop_token_ids": [1] * 129}, "stop_token_ids"),
    ({"ignore_eos": 1}, "ignore_eos"),
    ({"stream": "yes"}, "stream"),
    ({"stream_options": {}}, "stream_options"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "stream_options": {"continuous_usage_stats": True}}, "stream_options.continuous_usage_stats"),
    ({"user": 1}, "user"),
    ({"user": "x" * 1025}, "user"),
    ({"n": 2}, "n"),
    ({"n": True}, "n"),
    ({"n": 5_000_000}, "n"),
    ({"presence_penalty": 0.1}, "presence_penalty"),
    ({"frequency_penalty": 1}, "frequency_penalty"),
    ({"repetition_penalty": 1.1}, "repetition_penalty"),
    ({"min_p": 0.1}, "min_p"),
    ({"logit_bias": {"191222": 1}}, "logit_bias"),
    ({"logprobs": 3}, "logprobs"),
    ({"prompt_logprobs": -1}, "prompt_logprobs"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"use_beam_search": True}, "use_beam_search"),
    ({"cache_salt": "x"}, "cache_salt"),
    ({"echo": True}, "echo"),
    ({"surprise": 1}, "surprise"),
    ({"x" * 5000: 1}, "x" * 100),
]
CHAT_ONLY: list[tuple[dict[str, Any], str]] = [
    ({"messages": None}, "messages"),
    ({"messages": []}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": ["hi"]}, "messages[0]"),
    ({"messages": [{"content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": ["user"], "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": 1}]}, "messages[0].content"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        "messages[0].content[0]",
    ),
    ({"messages": [{"role": "user", "content": ["x"]}]}, "messages[0].content[0]"),
    ({"messages": [{"role": "user", "content": "x", "name": 1}]}, "messages[0].name"),
    ({"messages": [{"role": "assistant", "content": "x", "tool_calls": [{}]}]}, "messages[0].tool_calls"),
    ({"messages": [{"role": "user", "content": "x", "extra": 1}]}, "messages[0].extra"),
    ({"messages": [{"role": "user", "content": ""}] * 4097}, "messages"),
    ({"max_completion_tokens": 0}, "max_completion_tokens"),
    ({"max_tokens": 2, "max_completion_tokens": 3}, "max_tokens"),
    ({"logprobs": True}, "logprobs"),
    ({"top_logprobs": 10**9}, "top_logprobs"),
    ({"tools": [{"type": "function"}]}, "tools"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"reasoning_effort": "high"}, "reasoning_effort"),
    ({"modalities": ["text", "audio"]}, "modalities"),
    ({"continue_final_message": True}, "continue_final_message"),
    ({"chat_template": "x"}, "chat_template"),
    ({"prompt": "hi"}, "prompt"),
]
COMPLETION_ONLY: list[tuple[dict[str, Any], str]] = [
    ({"prompt": None}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": [[]]}, "prompt"),
    ({"prompt": [1, "a"]}, "prompt"),
    ({"prompt": [[1], "a"]}, "prompt"),
    ({"prompt": [-1]}, "prompt"),
    ({"prompt": [True]}, "prompt"),
    ({"prompt": [1.5]}, "prompt"),
    ({"prompt": ["a"] * 65}, "prompt"),
    ({"prompt": {"a": 1}}, "prompt"),
    ({"best_of": 2}, "best_of"),
    ({"suffix": "x"}, "suffix"),
    ({"max_completion_tokens": 3}, "max_completion_tokens"),
    ({"messages": []}, "messages"),
]


def shown(case: object) -> str:
    return json.dumps(case)[:60]


@pytest.mark.parametrize(("change", "param"), BOTH + CHAT_ONLY, ids=shown)
def test_a_chat_request_is_refused_by_name(change: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestRefused) as refused:
        parse_chat(json.dumps(CHAT | change).encode())
    assert (refused.value.status, refused.value.param) == (400, param)
    assert refused.value.message.startswith(param)


@pytest.mark.parametrize(("change", "param"), BOTH + COMPLETION_ONLY, ids=shown)
def test_a_completion_request_is_refused_by_name(change: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestRefused) as refused:
        parse_completion(json.dumps(COMPLETION | change).encode())
    assert (refused.value.status, refused.value.param) == (400, param)
    assert refused.value.message.startswith(param)


NEUTRAL: dict[str, Any] = {
    "n": 1,
    "presence_penalty": 0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "min_p": 0.0,
    "logit_bias": {},
    "response_format": {"type": "text"},
    "echo": False,
    "user": "somebody",
    "temperature": None,
    "stop": None,
    "stream_options": None,
}


def test_what_asks_for_nothing_is_taken() -> None:
    extra = {
        "logprobs": False,
        "top_logprobs": 0,
        "tools": [],
        "tool_choice": "none",
        "functions": None,
        "store": False,
    }
    chat = parse_chat(json.dumps(CHAT | NEUTRAL | extra).encode())
    assert chat == parse_chat(json.dumps(CHAT | {"user": "somebody"}).encode())
    completion = parse_completion(
        json.dumps(COMPLETION | NEUTRAL | {"logprobs": None, "suffix": "", "best_of": 1}).encode()
    )
    assert completion == parse_completion(json.dumps(COMPLETION | {"user": "somebody"}).encode())


def test_what_is_honoured() -> None:
    chat = parse_chat(
        json.dumps(
            CHAT
            | {"temperature": 0, "top_k": -1, "top_p": 1, "seed": -5, "stop": "x", "max_completion_tokens": 7}
            | {"stream": True, "stream_options": {"include_usage": True}, "stop_token_ids": [0, 3], "ignore_eos": True}
        ).encode()
    )
    assert (chat.temperature, chat.top_k, chat.top_p, chat.seed) == (0, -1, 1, -5)
    assert (chat.stop, chat.stop_token_ids, chat.ignore_eos) == (("x",), [0, 3], True)
    assert (chat.max_output_tokens, chat.include_usage) == (7, True)


@pytest.mark.parametrize(
    ("prompt", "parsed"),
    [("a", ("a",)), (["a", "b"], ("a", "b")), ([1, 2], ((1, 2),)), ([[1], [2, 3]], ((1,), (2, 3))), ("", ("",))],
)
def test_the_four_shapes_of_a_prompt(prompt: object, parsed: object) -> None:
    assert parse_completion(json.dumps(COMPLETION | {"prompt": prompt}).encode()).prompt == parsed


def test_messages_as_templates_get_them() -> None:
    messages = [
        {"role": "system", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "user", "content": "c", "name": "n"},
        {"role": "assistant", "content": None, "tool_calls": [], "refusal": None},
    ]
    assert parse_chat(json.dumps(CHAT | {"messages": messages}).encode()).messages == [
        {"role": "system", "content": "a\nb"},
        {"role": "user", "content": "c", "name": "n"},
        {"role": "assistant", "content": ""},
    ]


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b'"x"', b"\xff", b"[" * 100_000, b'{"a":' * 300 + b"1" + b"}" * 300, b'{"model": NaN}'],
    ids=lambda body: repr(body[:12]),
)
def test_what_is_no_json_object_is_refused(body: bytes) -> None:
    with pytest.raises(RequestRefused, match="the body is no JSON") as refused:
        parse_chat(body)
    assert refused.value.status == 400


def test_infinity_by_a_large_exponent_is_refused() -> None:
    body = json.dumps(CHAT)[:-1] + ', "temperature": 1e999}'
    with pytest.raises(RequestRefused, match="temperature"):
        parse_chat(body.encode())
