"""Chat templates: messages become one prompt text, rendered as transformers renders it.

jinja2 takes a tenth of a second to import, so it is imported with the first template that is compiled.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from emberline_runtime.errors import RequestRefused, StartRefused
from emberline_runtime.text.tokenizer import read_json

if TYPE_CHECKING:
    import jinja2

TEMPLATE_FILE = "chat_template.jinja"
PLAIN_TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
"""For the oracle executor's byte tokenizer, which belongs to no model."""

Message = Mapping[str, Any]


class ChatTemplate:
    """One model's template. Compiled at first use; call `compile` in an idle moment to spare the first request that."""

    def __init__(self, source: str, special_tokens: Mapping[str, str], now: Callable[[], datetime]) -> None:
        self._source = source
        self._special_tokens = dict(special_tokens)
        self._now = now
        self._compiled: jinja2.Template | None = None

    def compile(self) -> jinja2.Template:
        """The compiled template. Raises StartRefused where the template itself is broken."""
        if self._compiled is None:
            self._compiled = _compile(self._source, self._now)
        return self._compiled

    def render(self, messages: Sequence[Message]) -> str:
        """The prompt, ending where the assistant's answer begins. RequestRefused with the template's own words if it refuses."""
        import jinja2

        try:
            return self.compile().render(
                messages=list(messages), add_generation_prompt=True, tools=None, documents=None, **self._special_tokens
            )
        except jinja2.TemplateError as error:
            raise RequestRefused(
                f"the model's chat template refuses these messages: {error}", param="messages"
            ) from error
        except (TypeError, ValueError, ArithmeticError, LookupError, AttributeError) as error:
            # What a template's own expressions raise on messages of a shape that it did not expect.
            raise RequestRefused(
                f"the model's chat template cannot render these messages: {type(error).__name__}: {error}",
                param="messages",
            ) from error


def load_chat_template(
    folder: Path, special_tokens: Mapping[str, str], now: Callable[[], datetime]
) -> ChatTemplate | None:
    """The folder's template: chat_template.jinja, else `chat_template` in tokenizer_config.json; None if there is none."""
    try:
        return ChatTemplate((folder / TEMPLATE_FILE).read_text(encoding="utf-8"), special_tokens, now)
    except FileNotFoundError:
        pass
    entry = read_json(folder / "tokenizer_config.json").get("chat_template")
    if isinstance(entry, list):
        named = {item.get("name"): item.get("template") for item in entry if isinstance(item, dict)}
        entry = named.get("default")
    return ChatTemplate(entry, special_tokens, now) if isinstance(entry, str) else None


def _compile(source: str, now: Callable[[], datetime]) -> jinja2.Template:
    import jinja2
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_generation_extension(), loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda pattern: now().strftime(pattern)
    try:
        return environment.from_string(source)
    except jinja2.TemplateSyntaxError as error:
        raise StartRefused(
            f"the model's chat template does not compile: line {error.lineno}: {error.message}; repair it in the model folder"
        ) from error


def _generation_extension() -> type[Any]:
    """`{% generation %} ... {% endgeneration %}` marks assistant text for training; here it is its body and nothing else."""
    from jinja2 import nodes
    from jinja2.ext import Extension
    from jinja2.parser import Parser

    class Generation(Extension):
        tags = {"generation"}  # noqa: RUF012 - jinja2's own declaration

        @override
        def parse(self, parser: Parser) -> list[nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    return Generation


def _raise_exception(message: str) -> None:
    import jinja2

    raise jinja2.TemplateError(message)


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As transformers does: jinja2's own filter escapes HTML, which a prompt must not have."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
