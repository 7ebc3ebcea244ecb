"""A metrics API of the test's own in place of the gateways': two metrics of one endpoint, served as an aggregated API."""

from __future__ import annotations

import base64
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from emberline_contract import names
from emberline_local.certificates import make_authority, make_certificate
from emberline_operator.cluster.api import Api

Raw = dict[str, Any]
VERSION: Final = names.METRICS_VERSIONS[0]
API_SERVICE: Final = f"/apis/apiregistration.k8s.io/v1/apiservices/{VERSION}.{names.METRICS_GROUP}"
SERVICE: Final = f"/api/v1/namespaces/{names.SYSTEM_NAMESPACE}/services"
ROOT: Final = f"/apis/{names.METRICS_GROUP}/{VERSION}"
RESOURCE: Final = f"{names.ENDPOINT_PLURAL}.{names.GROUP}"


@dataclass
class MetricsAdapter:
    """Values by metric; a metric that is not there is answered 404, as an unknown demand is."""

    values: dict[str, float] = field(default_factory=dict)
    asked: set[tuple[str, str, str]] = field(default_factory=set)
    """Namespace and name of the endpoint, and the selector, of every question."""

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get(ROOT, self._discovery)
        app.router.add_get(f"{ROOT}/namespaces/{{namespace}}/{RESOURCE}/{{name}}/{{metric}}", self._metric)
        return app

    async def _discovery(self, _request: web.Request) -> web.Response:
        resources = [
            {"name": f"{RESOURCE}/{metric}", "singularName": "", "namespaced": True, "kind": "MetricValueList",
             "verbs": ["get"]}
            for metric in (names.METRIC_QUEUE_LOAD, names.METRIC_REQUESTS)
        ]  # fmt: skip
        return web.json_response(
            {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": f"{names.METRICS_GROUP}/{VERSION}",
             "resources": resources}
        )  # fmt: skip

    async def _metric(self, request: web.Request) -> web.Response:
        namespace, name, metric = (request.match_info[key] for key in ("namespace", "name", "metric"))
        self.asked.add((namespace, name, request.query.get("metricLabelSelector", "")))
        if metric not in self.values:
            status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404,
                      "message": f"{metric} is not known now"}  # fmt: skip
            return web.json_response(status, status=404)
        item = {
            "describedObject": {
                "kind": names.ENDPOINT_KIND, "apiVersion": names.API_VERSION, "namespace": namespace, "name": name
            },
            "metric": {"name": metric, "selector": None},
            "timestamp": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "windowSeconds": 0,
            "value": f"{round(self.values[metric] * 1000)}m",
        }  # fmt: skip
        return web.json_response(
            {
                "kind": "MetricValueList",
                "apiVersion": f"{names.METRICS_GROUP}/{VERSION}",
                "metadata": {},
                "items": [item],
            }
        )


@asynccontextmanager
async def metrics_adapter(admin: Api, folder: Path) -> AsyncIterator[MetricsAdapter]:
    """Serve it behind the gateway's Service, with the APIService that makes it the cluster's; both go at the end.

    The Service leads to this machine by name, since an address of the loopback is no endpoint for it.
    """
    adapter = MetricsAdapter()
    now = datetime.now(UTC)
    authority = make_authority("metrics", now)
    host = f"{names.GATEWAY_NAME}.{names.SYSTEM_NAMESPACE}.svc"
    pair = make_certificate(authority, host, now, hosts=[host])
    (folder / "metrics.key").write_bytes(pair.key_pem())
    (folder / "metrics.crt").write_bytes(pair.certificate_pem())
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "metrics.crt", folder / "metrics.key")
    runner = web.AppRunner(adapter.app(), access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "localhost", 0, ssl_context=context)
    await site.start()
    port = runner.addresses[0][1]
    metadata = {"name": names.GATEWAY_NAME}
    spec = {"type": "ExternalName", "externalName": "localhost", "ports": [{"port": port}]}
    await admin.request("POST", SERVICE, body={"metadata": metadata, "spec": spec})
    api_service = {
        "metadata": {"name": API_SERVICE.rsplit("/", 1)[1]},
        "spec": {
            "group": names.METRICS_GROUP,
            "version": VERSION,
            "groupPriorityMinimum": 100,
            "versionPriority": 200,
            "caBundle": base64.b64encode(authority.certificate_pem()).decode(),
            "service": {"namespace": names.SYSTEM_NAMESPACE, "name": names.GATEWAY_NAME, "port": port},
        },
    }
    try:
        await admin.request("POST", API_SERVICE.rsplit("/", 1)[0], body=api_service)
        yield adapter
    finally:
        await admin.request("DELETE", API_SERVICE)
        await admin.request("DELETE", f"{SERVICE}/{names.GATEWAY_NAME}")
        await runner.cleanup()
