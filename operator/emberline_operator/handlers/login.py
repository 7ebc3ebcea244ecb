"""kopf's own connection, to the same API server and as the same user as `cluster.api`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kopf

from emberline_operator.cluster.api import load_credentials


def register(registry: kopf.OperatorRegistry, kubeconfig: Path | None) -> None:
    """Log in; kopf does it again when the API server answers 401, and so gets the renewed token."""

    @kopf.on.login(registry=registry, id="login")
    async def login(**_: Any) -> kopf.ConnectionInfo:
        credentials = await load_credentials(kubeconfig)
        return kopf.ConnectionInfo(
            server=credentials.server,
            ca_path=credentials.ca_path,
            certificate_path=credentials.certificate_path,
            private_key_path=credentials.key_path,
            token=credentials.token,
        )
