"""The Service of one endpoint in one region: for looking at an engine by hand; clients use the gateway."""

from __future__ import annotations

from emberline_contract import names
from emberline_operator.desired.child import Child
from emberline_operator.snapshot import Json


def make_service(child: Child) -> Json:
    """Port 80 to the engines' HTTP port."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": child.metadata(child.name),
        "spec": {
            "type": "ClusterIP",
            "selector": child.selector,
            "ports": [
                {"name": names.PORT_NAME_HTTP, "port": 80, "protocol": "TCP", "targetPort": names.PORT_NAME_HTTP}
            ],
        },
    }
