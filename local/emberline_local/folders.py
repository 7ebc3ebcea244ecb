"""Where things lie on this machine: one state folder a cluster, one cache for what may be made again."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from emberline_local.errors import OptionError

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?")


def _base(environ: Mapping[str, str], variable: str, default: str) -> Path:
    """The folder that an XDG variable names; a relative value is ignored, as its specification asks."""
    value = environ.get(variable, "")
    if value.startswith("/"):
        return Path(value)
    return Path(environ.get("HOME") or str(Path.home())) / default


def state_root(environ: Mapping[str, str]) -> Path:
    """Folder that holds one folder for each cluster."""
    return _base(environ, "XDG_STATE_HOME", ".local/state") / "emberline"


def cache_dir(environ: Mapping[str, str]) -> Path:
    """Folder of built programs and converted models; `down` leaves it."""
    return _base(environ, "XDG_CACHE_HOME", ".cache") / "emberline"


def cluster_dir(environ: Mapping[str, str], name: str) -> Path:
    """State folder of one cluster. Raises OptionError for a name that is no DNS label."""
    if not _NAME.fullmatch(name):
        raise OptionError(f"{name!r} cannot name a cluster: use 1 to 40 of a-z, 0-9 and '-', for example 'dev'")
    return state_root(environ) / name
