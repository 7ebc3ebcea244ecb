"""Which program environment stands for which image name on a process node. Data and a look-up; nothing is pulled."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class LocalImage:
    """A stand-in for an image: an environment, a default command, and the host folders that both need."""

    environment: Mapping[str, str]
    command: tuple[str, ...] = ()
    """What runs if the container names neither command nor args."""
    host_paths: tuple[str, ...] = field(default=())
    """Folders that must stay visible when a volume is mounted over one that holds them (a checkout under /tmp)."""


def this_environment() -> LocalImage:
    """The Python environment of this process: `python` and every console script resolve to it."""
    # Not resolved: the interpreter of a virtual environment is a link out of it.
    programs = str(Path(sys.executable).parent)
    return LocalImage(
        environment=MappingProxyType(
            {
                "PATH": f"{programs}:{_SYSTEM_PATH}",
                "PYTHONUNBUFFERED": "1",
                "PYTHONSAFEPATH": "1",
            }
        ),
        host_paths=tuple(dict.fromkeys((sys.prefix, sys.base_prefix, str(Path(__file__).parents[2])))),
    )


def local_images() -> dict[str, LocalImage]:
    """The images of the local overlay. Add entries to give a process node more."""
    here = this_environment()
    return {"emberline/operator:dev": here, "emberline/runtime:dev": here}


class UnknownImageError(LookupError):
    """No stand-in has that name."""


def find_image(images: Mapping[str, LocalImage], name: str) -> LocalImage:
    """The stand-in of an image, `docker.io/` and `localhost/` prefixes aside. Raises UnknownImageError."""
    for prefix in ("", "docker.io/", "localhost/"):
        found = images.get(name.removeprefix(prefix)) if name.startswith(prefix) else None
        if found is not None:
            return found
    known = ", ".join(sorted(images))
    raise UnknownImageError(
        f"a process node pulls nothing and has no stand-in for image {name!r}; it knows {known};"
        " use one of these or a node that runs real containers"
    )
