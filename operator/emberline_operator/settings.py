"""What the operator is told by its environment."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from emberline_contract import names
from emberline_operator.errors import SettingsError
from emberline_operator.hardware.gpu_table import GpuLabels
from emberline_operator.hardware.labels_file import parse_gpu_labels

DEFAULT_PUBLIC_URL = f"http://{names.GATEWAY_NAME}.{names.SYSTEM_NAMESPACE}.svc:{names.GATEWAY_PORT}"
_BASE_URL: Final = re.compile(r"https?://[^/\s?#]+(/[^\s?#]*)?")
_REGISTRY: Final = re.compile(r"[a-z0-9]([-.a-z0-9]*[a-z0-9])?(:[0-9]{1,5})?(/[a-z0-9]([-._a-z0-9]*[a-z0-9])?)*")
_OBJECT_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_MAX_OBJECT_NAME: Final = 253
_NAMESPACE: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_MAX_NAMESPACE: Final = 63


@dataclass(frozen=True, slots=True)
class Install:
    """The part of the settings that decisions depend on."""

    runtime_image: str
    """Engine image of endpoints that name none."""
    public_url: str = DEFAULT_PUBLIC_URL
    """Base of `status.url`, without a slash at its end."""
    image_registry: str = ""
    """Registry, with a path if need be, that engine images come from instead of the one in their names; empty: their own."""
    http_proxy: str = ""
    https_proxy: str = ""
    no_proxy: str = ""
    """Proxies of engine pods; empty: none."""
    ca_bundle_configmap: str = ""
    """ConfigMap of each endpoint's namespace whose `ca.crt` engine pods trust; empty: none."""
    hf_endpoint: str = ""
    """Base URL of the Hugging Face hub for engine pods, without a slash at its end; empty: the hub itself."""
    gpu_labels: GpuLabels = field(default_factory=GpuLabels)
    """GPUs and node labels that the built-in table does not know."""
    surge_patience_s: float = 30.0
    """How long a roll-out waits for a node for its new engine before it stops an old one to make room."""

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Install:
        """The operator-wide defaults. Raises SettingsError with the variable's name and the remedy."""
        image = environ.get(names.ENV_RUNTIME_IMAGE, "")
        if not image:
            raise SettingsError(
                f"{names.ENV_RUNTIME_IMAGE} is not set; give it the engine image of endpoints that name none"
            )
        return cls(
            runtime_image=image,
            public_url=_base_url(environ, names.ENV_PUBLIC_URL) or DEFAULT_PUBLIC_URL,
            image_registry=_registry(environ, names.ENV_IMAGE_REGISTRY),
            http_proxy=_base_url(environ, names.ENV_HTTP_PROXY),
            https_proxy=_base_url(environ, names.ENV_HTTPS_PROXY),
            no_proxy=_hosts(environ, names.ENV_NO_PROXY),
            ca_bundle_configmap=_object_name(environ, names.ENV_CA_BUNDLE_CONFIGMAP),
            hf_endpoint=_base_url(environ, names.ENV_HF_ENDPOINT),
            gpu_labels=_gpu_labels(environ),
        )


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """When the leader is taken for gone, and when it takes itself for gone, which must come first."""

    duration_s: float = 15.0
    """Others wait so long for a change of the record. Whole seconds: the Lease holds no less."""
    renew_deadline_s: float = 10.0
    """A leader that could not renew for so long writes nothing more and ends."""
    retry_s: float = 2.0
    """Between two renewals, and between two looks of the others."""
    request_timeout_s: float = 3.0
    drain_s: float = 10.0
    """On a graceful stop, passes in flight have so long to end before the Lease is released."""


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
    watch_grace_s: float = 120.0
    """How long a watch may take to tell what a list has shown; kopf begins a silent watch anew after 70 s."""
    pod_name: str = names.OPERATOR_NAME
    """This replica's name in the Lease, to which a random part is added."""
    lease: LeaseTimes = LeaseTimes()
    watch_namespaces: tuple[str, ...] = ()
    """Namespaces whose objects are read and written; none means all."""

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Settings:
        """Settings of a process. Raises SettingsError with the variable's name and the remedy."""
        return cls(
            install=Install.from_environ(environ),
            host=environ.get(names.ENV_POD_IP) or "127.0.0.1",
            pod_name=environ.get(names.ENV_POD_NAME) or names.OPERATOR_NAME,
            watch_namespaces=_namespaces(environ, names.ENV_WATCH_NAMESPACES),
        )


def _namespaces(environ: Mapping[str, str], name: str) -> tuple[str, ...]:
    given = environ.get(name, "")
    namespaces = [part.strip() for part in given.split(",")] if given.strip() else []
    for namespace in namespaces:
        if len(namespace) > _MAX_NAMESPACE or not _NAMESPACE.fullmatch(namespace):
            raise SettingsError(
                f"{name} has the namespace {namespace!r}; write names of at most {_MAX_NAMESPACE} lower-case letters, digits"
                " and '-' with commas between them, or leave it empty for all namespaces"
            )
    return tuple(dict.fromkeys(namespaces))


def _base_url(environ: Mapping[str, str], name: str) -> str:
    url = environ.get(name, "").rstrip("/")
    if url and not _BASE_URL.fullmatch(url):
        raise SettingsError(f"{name} is {url!r}; it must begin with http:// or https:// and a host")
    return url


def _registry(environ: Mapping[str, str], name: str) -> str:
    registry = environ.get(name, "").rstrip("/")
    if registry and not _REGISTRY.fullmatch(registry):
        raise SettingsError(f"{name} is {registry!r}; write it like registry.example:5000/mirror, without https://")
    return registry


def _hosts(environ: Mapping[str, str], name: str) -> str:
    hosts = environ.get(name, "")
    if any(not host or any(c.isspace() for c in host) for host in hosts.split(",")) and hosts:
        raise SettingsError(f"{name} is {hosts!r}; write hosts and networks with commas and no spaces between them")
    return hosts


def _object_name(environ: Mapping[str, str], name: str) -> str:
    configmap = environ.get(name, "")
    if configmap and (len(configmap) > _MAX_OBJECT_NAME or not _OBJECT_NAME.fullmatch(configmap)):
        raise SettingsError(
            f"{name} is {configmap!r}; it must be the name of a ConfigMap: at most {_MAX_OBJECT_NAME} lower-case letters, "
            "digits, '-' and '.'"
        )
    return configmap


def _gpu_labels(environ: Mapping[str, str]) -> GpuLabels:
    path = environ.get(names.ENV_GPU_TABLE, "")
    if not path:
        return GpuLabels()
    try:
        return parse_gpu_labels(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"{names.ENV_GPU_TABLE} names {path}, which cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise SettingsError(f"{names.ENV_GPU_TABLE}: {path}: {error}") from None
