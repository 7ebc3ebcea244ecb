"""The metrics API's certificate, and when it is made anew. Pure but for the keys' own randomness.

Each certificate has an authority of its own whose key is thrown away at once: nobody can make another one of it. The newest authority
stands first in `ca.crt`; earlier ones stay there until they expire, for gateways that still show the certificate before.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from emberline_contract import names
from emberline_operator.snapshot import Json

LIFETIME: Final = timedelta(days=90)
RENEWED_AT: Final = 2 / 3
"""Part of its life after which a certificate is made anew."""
CLOCK_SKEW: Final = timedelta(minutes=5)
HOST: Final = f"{names.METRICS_SERVICE}.{names.SYSTEM_NAMESPACE}.svc"
"""What the API server asks the certificate to say."""
_PEM: Final = serialization.Encoding.PEM


@dataclass(frozen=True, slots=True)
class Certificate:
    """What the Secret holds, as PEM."""

    certificate: bytes
    key: bytes
    authorities: bytes
    """Those that the API server shall trust, the newest first."""

    @property
    def ca_bundle(self) -> str:
        """The authorities as an APIService has them."""
        return base64.b64encode(self.authorities).decode()

    def secret(self) -> Json:
        """The Secret to apply."""
        data = {"tls.crt": self.certificate, "tls.key": self.key, "ca.crt": self.authorities}
        return {
            "apiVersion": "v1",
            "kind": "Secret",
            "type": "kubernetes.io/tls",
            "metadata": {
                "name": names.METRICS_TLS_SECRET,
                "namespace": names.SYSTEM_NAMESPACE,
                "labels": {names.LABEL_APP: names.GATEWAY_NAME, names.LABEL_MANAGED_BY: names.MANAGED_BY},
            },
            "data": {name: base64.b64encode(value).decode() for name, value in data.items()},
        }


def read_certificate(secret: Json, now: datetime) -> Certificate | None:
    """What a Secret holds; None if the gateways could not serve with it now, whatever is wrong."""
    try:
        held = {key: base64.b64decode(value, validate=True) for key, value in (secret.get("data") or {}).items()}
        found = Certificate(held["tls.crt"], held["tls.key"], held["ca.crt"])
        leaf = x509.load_pem_x509_certificate(found.certificate)
        key = serialization.load_pem_private_key(found.key, None)
        authorities = x509.load_pem_x509_certificates(found.authorities)
        hosts = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        is_ours = key.public_key() == leaf.public_key() and HOST in hosts.get_values_for_type(x509.DNSName)
        is_valid = leaf.not_valid_before_utc <= now < leaf.not_valid_after_utc
    except (KeyError, ValueError, TypeError, binascii.Error, x509.ExtensionNotFound):
        return None
    return found if is_ours and is_valid and any(_has_signed(it, leaf) for it in authorities) else None


def is_due(certificate: Certificate, now: datetime) -> bool:
    """Whether a certificate that is valid should be made anew."""
    leaf = x509.load_pem_x509_certificate(certificate.certificate)
    begin, end = leaf.not_valid_before_utc, leaf.not_valid_after_utc
    return now >= begin + (end - begin) * RENEWED_AT


def make_certificate(before: Certificate | None, now: datetime) -> Certificate:
    """A new certificate of a new authority; the authorities of the one before it go on being trusted."""
    authority_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    issuer = _name(f"{names.METRICS_SERVICE} {now:%Y-%m-%d %H:%M}")
    authority = (
        _builder(issuer, issuer, authority_key.public_key(), now)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key()), critical=False)
        .add_extension(_usage(signs=True), critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    leaf = (
        _builder(_name(HOST), issuer, key.public_key(), now)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host) for host in _hosts()]), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
        .add_extension(_usage(signs=False), critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    earlier = x509.load_pem_x509_certificates(before.authorities) if before else []
    trusted = [authority, *(it for it in earlier if it.not_valid_after_utc > now)]
    private = key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return Certificate(leaf.public_bytes(_PEM), private, b"".join(it.public_bytes(_PEM) for it in trusted))


def _has_signed(authority: x509.Certificate, leaf: x509.Certificate) -> bool:
    try:
        leaf.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _hosts() -> Sequence[str]:
    short = f"{names.METRICS_SERVICE}.{names.SYSTEM_NAMESPACE}"
    return (HOST, short, f"{HOST}.cluster.local")


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + LIFETIME)
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )
