"""Entry point of `emberline-local`. What passes kubectl on imports next to nothing; the other commands are in `commands`."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import NoReturn

from emberline_local.errors import LocalError

ENV_NAME = "EMBERLINE_LOCAL_NAME"
DEFAULT_NAME = "dev"


def main() -> None:
    """Runs the command that the words ask for; what goes wrong in a known way is one message and code 1."""
    try:
        if sys.argv[1:2] == ["kubectl"]:
            become_kubectl(sys.argv[2:], os.environ)
        from emberline_local.commands import app

        app()
    except LocalError as error:
        sys.stdout.flush()
        print(f"emberline-local: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


def become_kubectl(words: list[str], environ: Mapping[str, str]) -> NoReturn:
    """Replaces this process by kubectl; every word is kubectl's but for a leading `--name NAME`."""
    from emberline_local.folders import cluster_dir
    from emberline_local.record import ClusterFolder

    name = environ.get(ENV_NAME, DEFAULT_NAME)
    if words[:1] == ["--name"] and len(words) > 1:
        name, words = words[1], words[2:]
    folder = ClusterFolder(cluster_dir(environ, name))
    program = folder.running().program
    # Its discovery cache goes with the cluster; in the user's home it would stay, a folder for each port.
    own = {"KUBECONFIG": str(folder.kubeconfig), "KUBECACHEDIR": str(folder.path / "kubectl-cache")}
    os.execve(program, [program, "kubectl", *words], {**environ, **own})  # noqa: S606


if __name__ == "__main__":
    main()
