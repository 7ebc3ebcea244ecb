"""Fixtures that several folders of tests use."""

pytest_plugins = [
    "support.models",
    "support.plane",
]
