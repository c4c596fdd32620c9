"""The webhook's certificate, and its CA bundle in the webhook configuration.

Replicas share a generated CA through a Secret, valid for ten years. A certificate from elsewhere is read from a
directory instead (`certificate_files`).
"""

from __future__ import annotations

import base64
import datetime
import logging

import msgspec
from cryptography import x509

from phalanx.base.client import Client
from phalanx.base.errors import AlreadyExists, ApiProblem, ConfigProblem, Conflict, NotFound
from phalanx.base.resources import MUTATING_WEBHOOKS, SECRETS
from phalanx.local.api.tls import Identity, Pair, load_identity

log = logging.getLogger(__name__)

_RENEW = datetime.timedelta(days=30)


async def from_secret(
    client: Client, name: str, namespace: str, hosts: tuple[str, ...], now: datetime.datetime
) -> Identity:
    """Return the identity shared by all replicas. Raises NotFound if the namespace does not exist.

    The first replica creates it; it is renewed before it expires.
    """
    for _ in range(5):
        try:
            stored = msgspec.json.decode(await client.get(SECRETS, name, namespace))
        except NotFound:
            stored = None
        found = _identity_in(stored, now, hosts) if stored is not None else None
        if found is not None:
            return found
        made = load_identity(None, hosts, now)
        try:
            if stored is None:
                await client.create(SECRETS, _secret(name, namespace, made), namespace)
                return made
        except (AlreadyExists, Conflict):
            continue  # another replica was faster: use its Secret
        try:
            await client.update(SECRETS, name, {**stored, "data": _data(made)}, namespace)
            return made
        except (Conflict, NotFound):
            continue
    raise ConfigProblem("", f"Secret {namespace}/{name} keeps changing; delete it or give --tls-dir")


def _secret(name: str, namespace: str, identity: Identity) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "kubernetes.io/tls",
        "metadata": {"name": name, "namespace": namespace},
        "data": _data(identity),
    }


def _data(identity: Identity) -> dict[str, str]:
    parts = {"ca.crt": identity.ca, "tls.crt": identity.server.certificate, "tls.key": identity.server.key}
    return {key: base64.b64encode(value).decode() for key, value in parts.items()}


def _identity_in(secret: dict[str, dict[str, str]], now: datetime.datetime, hosts: tuple[str, ...]) -> Identity | None:
    try:
        data = secret.get("data") or {}
        authority, certificate, key = (base64.b64decode(data[part]) for part in ("ca.crt", "tls.crt", "tls.key"))
        loaded = x509.load_pem_x509_certificate(certificate)
        names = loaded.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        known = {
            str(name) for name in (*names.get_values_for_type(x509.DNSName), *names.get_values_for_type(x509.IPAddress))
        }
    except (KeyError, ValueError, x509.ExtensionNotFound):
        return None
    if loaded.not_valid_after_utc - now < _RENEW or not set(hosts) <= known:
        return None
    return Identity(authority, Pair(key, certificate))


async def publish(client: Client, configuration: str, authority: bytes, *, quiet: bool = False) -> bool:
    """Write the CA into a MutatingWebhookConfiguration; return False and log the problem (unless `quiet`) on
    failure."""
    bundle = base64.b64encode(authority).decode()
    try:
        known = msgspec.json.decode(await client.get(MUTATING_WEBHOOKS, configuration))
        patch: list[dict[str, str]] = []
        for number, hook in enumerate(known.get("webhooks") or ()):
            if (hook.get("clientConfig") or {}).get("caBundle") != bundle:
                patch.append({"op": "add", "path": f"/webhooks/{number}/clientConfig/caBundle", "value": bundle})
        if patch:
            await client.patch(MUTATING_WEBHOOKS, configuration, patch, patch_type="application/json-patch+json")
            log.info("the CA bundle of MutatingWebhookConfiguration %s was written", configuration)
        return True
    except ApiProblem as problem:
        log.log(
            logging.DEBUG if quiet else logging.WARNING,
            "cannot write the CA bundle of MutatingWebhookConfiguration %s (%s), trying again; it is %s",
            configuration,
            problem,
            bundle,
        )
        return False
