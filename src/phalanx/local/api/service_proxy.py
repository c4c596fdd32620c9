"""services/proxy: forward requests through the API server to the endpoint of a Service.

No traffic is routed to the addresses of Services in a local cluster. A Service is forwarded to where its annotation
says, as for webhooks; the scheduler of `phalanx up` runs in this process and is answered without a Service.
"""

from __future__ import annotations

import asyncio
import http.client
import re
import ssl
from collections.abc import MutableMapping
from typing import Any, NamedTuple
from urllib.parse import unquote

from phalanx.base.errors import NotFound, ServiceUnavailable
from phalanx.local.api.request import Answer
from phalanx.local.api.rights import Attributes
from phalanx.local.api.view import decode
from phalanx.local.api.webhook_calls import CallFailed, endpoint
from phalanx.local.store.contract import StoreProtocol

SCHEDULER = ("phalanx-system", "phalanx-scheduler")  # where deploy/ puts the Service of the scheduler
SECONDS = 60
MOST_BYTES = 64 << 20
_PATH = re.compile(r"/api/v1/namespaces/([^/]+)/services/([^/]+)/proxy(/.*)?")
_VERBS = {"GET": "get", "HEAD": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
# kube-apiserver removes the credentials that it has checked; the others belong to one connection only.
_NOT_FORWARDED = {b"authorization", b"host", b"connection", b"content-length", b"transfer-encoding", b"upgrade"}


class Proxied(NamedTuple):
    namespace: str
    text: str  # [SCHEME:]NAME[:PORT], as RBAC's resourceNames have it
    path: str

    @property
    def parts(self) -> tuple[str, str, str]:
        """Return scheme, name and port."""
        parts = self.text.split(":")
        if len(parts) == 1:
            return "http", parts[0], ""
        if len(parts) == 2:
            return "http", parts[0], parts[1]
        return parts[0] or "http", parts[1], parts[2]

    def is_scheduler_here(self, store: StoreProtocol) -> bool:
        """Return True if the scheduler of this process is meant: no Service has its name."""
        return (self.namespace, self.parts[1]) == SCHEDULER and store.get(("services", *SCHEDULER)) is None

    def attributes(self, method: str) -> Attributes:
        verb = _VERBS.get(method, method.lower())
        return Attributes(verb, "", "services", "proxy", self.namespace, self.text, "", "v1")


def service_of(path: str) -> Proxied | None:
    """Return None if the path is not one of services/proxy."""
    found = _PATH.fullmatch(path)
    if found is None:
        return None
    return Proxied(found[1], unquote(found[2]), found[3] or "/")


async def forward(proxied: Proxied, store: StoreProtocol, scope: MutableMapping[str, Any], body: bytes) -> Answer:
    """Forward a request to a Service and return its answer.

    Raises NotFound without such a Service, ServiceUnavailable if nothing answers behind it.
    """
    scheme, name, port = proxied.parts
    entry = store.get(("services", proxied.namespace, name))
    if entry is None:
        raise NotFound(f'services "{name}" not found', name=name, kind="services")
    ports = (decode(entry.value).get("spec") or {}).get("ports") or ()
    known = [each["port"] for each in ports if port in ("", each.get("name"), str(each["port"]))]
    if not known:
        raise ServiceUnavailable(f'no service port "{port}" found for service "{name}"')
    try:
        host, number = endpoint(store, proxied.namespace, name, known[0])
    except CallFailed as problem:
        raise ServiceUnavailable(str(problem)) from None
    query = scope["query_string"].decode("latin-1")
    target = proxied.path + (f"?{query}" if query else "")
    headers = {k.decode("latin-1"): v.decode("latin-1") for k, v in scope["headers"] if k not in _NOT_FORWARDED}
    try:
        return await asyncio.to_thread(_send, scheme, host, number, scope["method"], target, headers, body)
    except (OSError, http.client.HTTPException) as problem:
        raise ServiceUnavailable(f"error trying to reach service: {problem}") from None


def _send(scheme: str, host: str, port: int, method: str, target: str, headers: dict[str, str], body: bytes) -> Answer:
    connection: http.client.HTTPConnection
    if scheme == "https":
        # kube-apiserver does not verify the certificate behind services/proxy either.
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        connection = http.client.HTTPSConnection(host, port, timeout=SECONDS, context=context)
    else:
        connection = http.client.HTTPConnection(host, port, timeout=SECONDS)
    try:
        connection.request(method, target, body or None, headers)
        reply = connection.getresponse()
        answer = reply.read(MOST_BYTES + 1)
        if len(answer) > MOST_BYTES:
            raise OSError(f"the answer has more than {MOST_BYTES} bytes")
        return Answer(reply.status, answer, content_type=reply.getheader("Content-Type") or "text/plain")
    finally:
        connection.close()
