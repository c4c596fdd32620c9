"""A certificate authority of the local cluster and the server certificate it signs, kept in the data directory."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
import tempfile
from pathlib import Path

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from phalanx.local.api.files import write_private

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1", "kubernetes", "kubernetes.default", "kubernetes.default.svc")
_YEARS = datetime.timedelta(days=3650)
_YEAR = datetime.timedelta(days=365)
_RENEW = datetime.timedelta(days=30)


class Pair(msgspec.Struct, frozen=True):
    key: bytes  # PEM
    certificate: bytes  # PEM


class Identity(msgspec.Struct, frozen=True):
    """What the server shows, and what clients must trust."""

    ca: bytes  # PEM
    server: Pair

    def context(self, *, clients: bool = False) -> ssl.SSLContext:
        """Create the TLS context of the server; clients: accept client certificates, which are optional."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        if clients:
            context.load_verify_locations(cadata=self.ca.decode())
            context.verify_mode = ssl.CERT_OPTIONAL
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        self.load_into(context)
        return context

    def load_into(self, context: ssl.SSLContext) -> None:
        """Use this certificate for new connections."""
        # The ssl module reads certificates from files only; this one is private and deleted at once.
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "server.pem"
            write_private(path, self.server.key + self.server.certificate)
            context.load_cert_chain(path)


def load_identity(directory: Path | None, hosts: tuple[str, ...], now: datetime.datetime) -> Identity:
    """Read the authority and the server certificate of a directory; make what is missing, expired or misses a host."""
    names = tuple(dict.fromkeys((*LOOPBACK_NAMES, *hosts)))
    if directory is None:
        authority = _make_authority(now)
        return Identity(authority.certificate, _make_server(authority, names, now))
    stored = _read_pair(directory, "ca")
    if stored is None or _expires_soon(stored, now):
        stored = _make_authority(now)
        _write(directory, "ca", stored)
    server = _read_pair(directory, "server")
    if server is None or _expires_soon(server, now) or not _signed_for(server, stored, names):
        server = _make_server(stored, names, now)
        _write(directory, "server", server)
    return Identity(stored.certificate, server)


def make_client(directory: Path, user: str, groups: tuple[str, ...], now: datetime.datetime) -> tuple[Pair, str]:
    """Create a certificate for a user; return it with its serial number as TLS shows it.

    The authority in the directory signs it.
    """
    authority = _read_pair(directory, "ca")
    if authority is None:
        raise FileNotFoundError(f"{directory}/ca.key")
    ca_key = serialization.load_pem_private_key(authority.key, None)
    assert isinstance(ca_key, ec.EllipticCurvePrivateKey)
    issuer = x509.load_pem_x509_certificate(authority.certificate)
    names = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    key, serial = ec.generate_private_key(ec.SECP256R1()), x509.random_serial_number()
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([*names, x509.NameAttribute(NameOID.COMMON_NAME, user)]))
        .issuer_name(issuer.subject)
        .serial_number(serial)
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + _YEAR)
        .public_key(key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    text = f"{serial:X}"
    return _pem(key, certificate), text if len(text) % 2 == 0 else f"0{text}"


def _read_pair(directory: Path, name: str) -> Pair | None:
    key, certificate = directory / f"{name}.key", directory / f"{name}.crt"
    if not (key.exists() and certificate.exists()):
        return None
    pair = Pair(key.read_bytes(), certificate.read_bytes())
    try:
        loaded = serialization.load_pem_private_key(pair.key, None)
        same = loaded.public_key() == x509.load_pem_x509_certificate(pair.certificate).public_key()
    except ValueError:
        return None
    return pair if same else None


def _write(directory: Path, name: str, pair: Pair) -> None:
    write_private(directory / f"{name}.key", pair.key)
    write_private(directory / f"{name}.crt", pair.certificate)


def _expires_soon(pair: Pair, now: datetime.datetime) -> bool:
    return x509.load_pem_x509_certificate(pair.certificate).not_valid_after_utc - now < _RENEW


def _signed_for(server: Pair, authority: Pair, names: tuple[str, ...]) -> bool:
    certificate = x509.load_pem_x509_certificate(server.certificate)
    try:
        certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(authority.certificate))
        known = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except Exception:
        return False
    return set(_alternatives(names)) <= set(known)


def _alternatives(names: tuple[str, ...]) -> list[x509.GeneralName]:
    found: list[x509.GeneralName] = []
    for name in names:
        try:
            found.append(x509.IPAddress(ipaddress.ip_address(name)))
        except ValueError:
            found.append(x509.DNSName(name))
    return found


def _pem(key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> Pair:
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return Pair(private, certificate.public_bytes(serialization.Encoding.PEM))


def _builder(subject: str, issuer: x509.Name | None, now: datetime.datetime) -> x509.CertificateBuilder:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)])
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer or name)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + _YEARS)
    )


def _make_authority(now: datetime.datetime) -> Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
    certificate = (
        _builder(f"phalanx-ca-{now:%Y%m%d%H%M%S}", None, now)
        .public_key(key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return _pem(key, certificate)


def _make_server(authority: Pair, names: tuple[str, ...], now: datetime.datetime) -> Pair:
    ca_key = serialization.load_pem_private_key(authority.key, None)
    assert isinstance(ca_key, ec.EllipticCurvePrivateKey)
    issuer = x509.load_pem_x509_certificate(authority.certificate)
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = (
        _builder("phalanx-apiserver", issuer.subject, now)
        .public_key(key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(_alternatives(names)), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    return _pem(key, certificate)
