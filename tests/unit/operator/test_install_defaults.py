"""Operator-wide defaults: what their variables may hold, and what is said of the rest."""

from __future__ import annotations

import pytest

from emberline_contract import names
from emberline_operator.errors import SettingsError
from emberline_operator.settings import Install

IMAGE = {names.ENV_RUNTIME_IMAGE: "engine:1"}


def test_nothing_is_set() -> None:
    assert Install.from_environ(IMAGE) == Install("engine:1")
    empty = {
        name: "" for field, name in vars(names).items() if field.startswith("ENV_") and name != names.ENV_RUNTIME_IMAGE
    }
    assert Install.from_environ({**empty, **IMAGE}) == Install("engine:1"), "an empty variable is one that is not set"


def test_everything_is_set() -> None:
    install = Install.from_environ(
        {
            names.ENV_RUNTIME_IMAGE: "engine:2",
            names.ENV_PUBLIC_URL: "https://llm.example/base/",
            names.ENV_IMAGE_REGISTRY: "registry.example:5000/mirror/of-hub/",
            names.ENV_HTTP_PROXY: "http://user:word@proxy.example:3128",
            names.ENV_HTTPS_PROXY: "http://proxy.example:3129/",
            names.ENV_NO_PROXY: "10.0.0.0/8,.svc,localhost",
            names.ENV_CA_BUNDLE_CONFIGMAP: "company-ca.v2",
            names.ENV_HF_ENDPOINT: "https://hub.example/mirror/",
        }
    )
    assert install == Install(
        runtime_image="engine:2",
        public_url="https://llm.example/base",
        image_registry="registry.example:5000/mirror/of-hub",
        http_proxy="http://user:word@proxy.example:3128",
        https_proxy="http://proxy.example:3129",
        no_proxy="10.0.0.0/8,.svc,localhost",
        ca_bundle_configmap="company-ca.v2",
        hf_endpoint="https://hub.example/mirror",
    )


URL = r"it must begin with http:// or https:// and a host"
REGISTRY = r"write it like registry.example:5000/mirror, without https://"
HOSTS = r"write hosts and networks with commas and no spaces between them"
CONFIGMAP = r"it must be the name of a ConfigMap: at most 253 lower-case letters, digits, '-' and '.'"


@pytest.mark.parametrize(
    ("name", "value", "remedy"),
    [
        *[
            (name, value, URL)
            for name in (
                names.ENV_PUBLIC_URL,
                names.ENV_HTTP_PROXY,
                names.ENV_HTTPS_PROXY,
                names.ENV_HF_ENDPOINT,
            )
            for value in (
                "proxy.example:3128",
                "ftp://proxy.example",
                "http://",
                "http:///path",
                "http://a b",
                "http://a?b",
            )
        ],
        (names.ENV_IMAGE_REGISTRY, "https://registry.example", REGISTRY),
        (names.ENV_IMAGE_REGISTRY, "Registry.example", REGISTRY),
        (names.ENV_IMAGE_REGISTRY, "registry.example//mirror", REGISTRY),
        (names.ENV_IMAGE_REGISTRY, "registry.example:port", REGISTRY),
        (names.ENV_IMAGE_REGISTRY, "registry.example/mirror:1", REGISTRY),
        (names.ENV_NO_PROXY, "a, b", HOSTS),
        (names.ENV_NO_PROXY, "a,,b", HOSTS),
        (names.ENV_NO_PROXY, ",", HOSTS),
        (names.ENV_CA_BUNDLE_CONFIGMAP, "Company_CA", CONFIGMAP),
        (names.ENV_CA_BUNDLE_CONFIGMAP, "team/ca", CONFIGMAP),
        (names.ENV_CA_BUNDLE_CONFIGMAP, "a..b", CONFIGMAP),
        (names.ENV_CA_BUNDLE_CONFIGMAP, "a" * 254, CONFIGMAP),
    ],
)
def test_what_cannot_be_used_is_named_with_its_remedy(name: str, value: str, remedy: str) -> None:
    with pytest.raises(SettingsError) as refused:
        Install.from_environ({**IMAGE, name: value})
    assert str(refused.value) == f"{name} is {value.rstrip('/')!r}; {remedy}"


@pytest.mark.parametrize("registry", ["registry.example", "localhost:5000", "10.1.2.3:5000/a_b/c.d", "mirror/hub"])
def test_registries(registry: str) -> None:
    assert Install.from_environ({**IMAGE, names.ENV_IMAGE_REGISTRY: registry}).image_registry == registry
