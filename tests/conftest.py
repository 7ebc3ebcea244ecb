"""Fixtures that several folders of tests use, and how property tests draw their examples."""

from hypothesis import settings

from support.examples import examples

pytest_plugins = [
    "support.models",
    "support.plane",
]

settings.register_profile("emberline", **examples(100))
settings.load_profile("emberline")
