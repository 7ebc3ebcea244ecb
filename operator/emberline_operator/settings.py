"""What the operator is told by its environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from emberline_contract import names
from emberline_operator.errors import SettingsError

DEFAULT_PUBLIC_URL = f"http://{names.GATEWAY_NAME}.{names.SYSTEM_NAMESPACE}.svc:{names.GATEWAY_PORT}"


@dataclass(frozen=True, slots=True)
class Install:
    """The part of the settings that decisions depend on."""

    runtime_image: str
    """Engine image of endpoints that name none."""
    public_url: str = DEFAULT_PUBLIC_URL
    """Base of `status.url`, without a slash at its end."""


@dataclass(frozen=True, slots=True)
class Settings:
    """One operator process."""

    install: Install
    host: str = "127.0.0.1"
    """Address that `/healthz` and `/metrics` are served on."""
    health_port: int = names.OPERATOR_HEALTH_PORT
    kubeconfig: Path | None = None
    """File to connect with; None: the pod's ServiceAccount, else $KUBECONFIG."""
    admin_token_path: Path = field(default_factory=lambda: Path(names.ADMIN_TOKEN_PATH))
    gateway_admin_port: int = names.GATEWAY_ADMIN_PORT
    num_workers: int = 16
    """Endpoints that are looked at at once."""
    resync_s: float = 300.0
    """Time between two lists of everything, which heal what a watch has lost."""

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Settings:
        """Settings of a process. Raises SettingsError with the variable's name and the remedy."""
        image = environ.get(names.ENV_RUNTIME_IMAGE, "")
        if not image:
            raise SettingsError(
                f"{names.ENV_RUNTIME_IMAGE} is not set; give it the engine image of endpoints that name none"
            )
        url = (environ.get(names.ENV_PUBLIC_URL) or DEFAULT_PUBLIC_URL).rstrip("/")
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise SettingsError(f"{names.ENV_PUBLIC_URL} is {url!r}; it must begin with http:// or https:// and a host")
        return cls(
            install=Install(runtime_image=image, public_url=url),
            host=environ.get(names.ENV_POD_IP) or "127.0.0.1",
        )
