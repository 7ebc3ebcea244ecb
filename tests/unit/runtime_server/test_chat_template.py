"""Chat templates: rendered as transformers renders them, and refused in the template's own words."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from emberline_runtime.errors import RequestRefused, StartRefused
from emberline_runtime.text.chat_template import ChatTemplate, load_chat_template

NOON = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
USER = [{"role": "user", "content": "hi <b> 'x'"}]


def template(source: str, **special_tokens: str) -> ChatTemplate:
    return ChatTemplate(source, special_tokens, lambda: NOON)


CASES = {
    "trims blocks as transformers does": (
        "{% for m in messages %}\n  {% if true %}\n[{{ m.content }}]\n  {% endif %}\n{% endfor %}\n",
        "[hi <b> 'x']\n",
    ),
    "special tokens": ("{{ bos_token }}{{ messages[0].role }}{{ eos_token }}", "<s>user</s>"),
    "generation prompt": ("{% if add_generation_prompt %}go{% endif %}", "go"),
    "tojson escapes no html": ("{{ messages | tojson }}", json.dumps(USER, ensure_ascii=False)),
    "tojson indents": ("{{ {'a': [1]} | tojson(indent=1) }}", '{\n "a": [\n  1\n ]\n}'),
    "loop controls": ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
    "generation marks": ("a{% generation %}{{ messages[0].role }}{% endgeneration %}b", "auserb"),
    "the date": ("{{ strftime_now('%d %b %Y') }}", "30 Nov 2026"),
    "tools and documents are none": ("{{ tools is none and documents is none }}", "True"),
}


@pytest.mark.parametrize("name", CASES)
def test_renders(name: str) -> None:
    source, expected = CASES[name]
    assert template(source, bos_token="<s>", eos_token="</s>").render(USER) == expected


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{{ raise_exception('System role not supported') }}", "System role not supported"),
        ("{{ messages[0].content + 1 }}", "TypeError"),
        ("{{ messages[7].content.x }}", "has no element 7"),
        ("{{ messages.__class__.__mro__[1].__subclasses__() }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
    ],
)
def test_what_a_template_refuses_is_a_bad_request(source: str, words: str) -> None:
    with pytest.raises(RequestRefused, match=words) as refused:
        template(source).render(USER)
    assert (refused.value.status, refused.value.param) == (400, "messages")


def test_a_broken_template_stops_the_start() -> None:
    with pytest.raises(StartRefused, match="line 2"):
        template("\n{% if %}").compile()


def test_where_a_template_is_looked_for(tmp_path: Path) -> None:
    def load() -> ChatTemplate | None:
        return load_chat_template(tmp_path, {}, lambda: NOON)

    config = tmp_path / "tokenizer_config.json"
    assert load() is None
    config.write_text(json.dumps({"chat_template": "one"}))
    assert (found := load()) is not None
    assert found.render(USER) == "one"
    config.write_text(
        json.dumps({"chat_template": [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "two"}]})
    )
    assert (found := load()) is not None
    assert found.render(USER) == "two"
    (tmp_path / "chat_template.jinja").write_text("three")
    assert (found := load()) is not None
    assert found.render(USER) == "three"
