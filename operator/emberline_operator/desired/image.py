"""Names of engine images, and the registry that an installation takes them from."""

from __future__ import annotations


def from_registry(image: str, registry: str) -> str:
    """The image in another registry, which takes the place of the one in its name; unchanged without a registry."""
    return f"{registry}/{path_of(image)}" if registry else image


def path_of(image: str) -> str:
    """The image's name without its registry. As container runtimes read it: a first part with a dot, a colon or `localhost`."""
    first, slash, rest = image.partition("/")
    has_registry = bool(slash) and ("." in first or ":" in first or first == "localhost")
    return rest if has_registry else image


def is_same_image(one: str, other: str) -> bool:
    """Whether two names mean one image, whatever registries they come from."""
    return one == other or path_of(one).endswith(f"/{path_of(other)}") or path_of(one) == path_of(other)
