"""The metrics API's APIServices and certificate: what is made, renewed, left alone and taken away."""

from __future__ import annotations

import asyncio
import base64
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from emberline_contract import names
from emberline_operator.metrics_api.certificate import HOST, LIFETIME, is_due, make_certificate, read_certificate
from emberline_operator.metrics_api.decide import API_SERVICES, Remove, Seen, Write, decide, wants_metrics
from support.operator_objects import live_of

Raw = dict[str, Any]
NOW = datetime(2026, 12, 1, tzinfo=UTC)
LATER = NOW + LIFETIME * 0.7
OWNER: Raw = {"metadata": {"name": names.OPERATOR_NAME, "uid": "role-uid"}}
THEIRS = {"namespace": "monitoring", "name": "prometheus-adapter", "port": 443}


def seen(**changes: Any) -> Seen:
    return Seen(**{"is_wanted": True, "group": (), "ours": (), "owner": OWNER, "port": 443, **changes})


def bodies(found: Seen, now: datetime = NOW) -> list[Raw]:
    steps = decide(found, now).steps
    assert all(isinstance(step, Write) for step in steps)
    return [step.body for step in steps if isinstance(step, Write)]


def installed(now: datetime = NOW) -> Seen:
    """All is made and nothing is left to do."""
    secret, *services = bodies(seen(), now)
    ours = tuple({**live_of(service), "metadata": {**live_of(service)["metadata"], "uid": "u"}} for service in services)
    return seen(group=ours, ours=ours, secret=secret)


def test_at_first_the_certificate_is_made_and_then_what_leads_to_it() -> None:
    secret, *services = bodies(seen())
    assert secret["metadata"]["name"] == names.METRICS_TLS_SECRET
    assert [service["metadata"]["name"] for service in services] == list(API_SERVICES)
    for service in services:
        spec = service["spec"]
        assert spec["service"] == {
            "namespace": names.SYSTEM_NAMESPACE,
            "name": names.METRICS_SERVICE,
            "port": 443,
        }
        assert spec["caBundle"] == secret["data"]["ca.crt"]
        assert "insecureSkipTLSVerify" not in spec
        (owner,) = service["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["uid"]) == ("ClusterRole", "role-uid"), (
            "what uninstalling takes away takes it along"
        )


def test_a_second_look_does_nothing() -> None:
    assert decide(installed(), NOW + timedelta(days=1)).steps == ()


def test_what_somebody_has_changed_is_put_back() -> None:
    found = installed()
    drifted = {**found.ours[0], "spec": {**found.ours[0]["spec"], "caBundle": "AAAA"}}
    (body,) = bodies(seen(group=found.group, ours=(drifted, found.ours[1]), secret=found.secret))
    assert body["metadata"]["name"] == drifted["metadata"]["name"]
    moved = seen(group=found.group, ours=found.ours, secret=found.secret, port=8443)
    assert [body["spec"]["service"]["port"] for body in bodies(moved)] == [8443, 8443]
    reborn = seen(
        group=found.group, ours=found.ours, secret=found.secret, owner={"metadata": {**OWNER["metadata"], "uid": "2"}}
    )
    assert len(bodies(reborn)) == 2, "another installation's ClusterRole would never take them along"


def test_a_renewed_certificate_is_trusted_before_it_is_shown_and_the_old_one_still_is() -> None:
    found = installed()
    before = read_certificate(found.secret or {}, NOW)
    assert before is not None
    *services, secret = bodies(found, LATER)
    assert len(services) == 2
    after = read_certificate(secret, LATER)
    assert after is not None
    assert services[0]["spec"]["caBundle"] == after.ca_bundle
    assert before.authorities in after.authorities
    assert after.certificate != before.certificate
    much_later = make_certificate(after, NOW + LIFETIME + timedelta(hours=1))
    assert before.authorities not in much_later.authorities, "what has expired is trusted no longer"


@pytest.mark.parametrize(
    "change",
    [
        {"tls.crt": "AAAA"},
        {"tls.key": "%%%"},
        {"ca.crt": ""},
        {"tls.key": base64.b64encode(make_certificate(None, NOW).key).decode()},
        {"ca.crt": base64.b64encode(make_certificate(None, NOW).authorities).decode()},
        None,
    ],
    ids=["certificate", "base64", "no authority", "another key", "another authority", "no data"],
)
def test_a_damaged_certificate_is_made_anew(change: Raw | None) -> None:
    found = installed()
    assert found.secret is not None
    data = {**found.secret["data"], **change} if change is not None else None
    broken = {**found.secret, "data": data}
    assert read_certificate(broken, NOW) is None
    made = bodies(seen(group=found.group, ours=found.ours, secret=broken))
    assert [body["kind"] for body in made] == ["Secret", "APIService", "APIService"]


def test_one_that_has_expired_or_is_from_the_future_is_made_anew() -> None:
    found = installed()
    for now in (NOW + LIFETIME + timedelta(seconds=1), NOW - timedelta(days=1)):
        assert read_certificate(found.secret or {}, now) is None
        assert {body["kind"] for body in bodies(found, now)} == {"Secret", "APIService"}


def test_a_secret_of_somebody_elses_is_left_alone_and_told() -> None:
    found = installed()
    assert found.secret is not None
    theirs = {**found.secret, "metadata": {"name": names.METRICS_TLS_SECRET}}
    told = decide(seen(secret=theirs), NOW)
    assert told.steps == ()
    assert names.METRICS_TLS_SECRET in told.problem


@pytest.mark.parametrize("taken", API_SERVICES)
def test_a_group_that_somebody_else_has_is_left_to_them(taken: str) -> None:
    theirs: Raw = {"metadata": {"name": taken, "uid": "t"}, "spec": {"service": THEIRS}}
    assert decide(seen(group=(theirs,)), NOW).steps == ()
    found = installed()
    (ours,) = (service for service in found.ours if service["metadata"]["name"] != taken)
    steps = decide(seen(group=(theirs, ours), ours=(ours,), secret=found.secret), NOW).steps
    assert [(step.name, step.uid) for step in steps if isinstance(step, Remove)] == [(ours["metadata"]["name"], "u")]
    assert len(steps) == 1, "clients use one version, and which is not ours to say"


def test_what_nobody_wants_goes() -> None:
    found = installed()
    steps = decide(Seen(is_wanted=False, group=found.group, ours=found.ours), NOW).steps
    assert [step.name for step in steps if isinstance(step, Remove)] == list(API_SERVICES)
    unlabelled = tuple({**it, "metadata": {**it["metadata"], "labels": {}}} for it in found.ours)
    assert decide(Seen(is_wanted=False, group=unlabelled, ours=unlabelled), NOW).steps == (), "somebody made it by hand"


def test_one_that_somebody_made_by_hand_is_left_as_it_is() -> None:
    found = installed()
    by_hand = {**found.ours[0], "metadata": {**found.ours[0]["metadata"], "labels": {}}}
    told = decide(seen(group=(by_hand,), ours=(by_hand,)), NOW)
    assert told.steps == ()
    assert by_hand["metadata"]["name"] in told.problem


def test_without_the_service_nothing_is_made() -> None:
    told = decide(seen(port=None), NOW)
    assert told.steps == ()
    assert names.METRICS_SERVICE in told.problem


@pytest.mark.parametrize(
    ("vias", "wanted"),
    [
        ([], False),
        (["Operator"], False),
        (["Operator", "Auto"], True),
        (["HPA"], True),
        (["External"], True),
        ([None], True),
    ],
)
def test_who_wants_metrics(vias: list[str | None], wanted: bool) -> None:
    endpoints = [{"metadata": {}, "spec": {"scaling": {"via": via}} if via else {}} for via in vias]
    assert wants_metrics(endpoints) is wanted
    going = [{**endpoint, "metadata": {"deletionTimestamp": "t"}} for endpoint in endpoints]
    assert not wants_metrics(going)


async def test_a_client_that_trusts_the_bundle_takes_the_certificate(tmp_path: Path) -> None:
    now = datetime.now(UTC)
    first = make_certificate(None, now)
    second = make_certificate(first, now)
    assert not is_due(second, now)
    for shown in (first, second):
        (tmp_path / "crt").write_bytes(shown.certificate)
        (tmp_path / "key").write_bytes(shown.key)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(tmp_path / "crt", tmp_path / "key")
        server = await asyncio.start_server(lambda _r, w: w.close(), "127.0.0.1", 0, ssl=context)
        trusting = ssl.create_default_context(cadata=second.authorities.decode())
        port = server.sockets[0].getsockname()[1]
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting, server_hostname=HOST)
        writer.close()
        with pytest.raises(ssl.SSLCertVerificationError):
            await asyncio.open_connection("127.0.0.1", port, ssl=trusting, server_hostname="other.example")
        server.close()
