"""Calls a webhook: HTTPS in threads of its own, so that a slow one delays only the requests it was called for.

Every webhook has its own few threads and its own connections, kept open between calls. Not the event loop's own TLS
client: under uvloop clients of other servers were seen to end the process.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import http.client
import ipaddress
import posixpath
import queue
import socket
import ssl
from collections.abc import Hashable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar
from urllib.parse import urlsplit

import msgspec

from phalanx.local.api.view import decode
from phalanx.local.store.contract import StoreProtocol
from phalanx.model.annotation_values import natural
from phalanx.model.kinds import Json
from phalanx.model.names import MAX_PORT

K = TypeVar("K", bound=Hashable)

# Real address of a Service, since nothing routes: 127.0.0.1:9443, or by port 443=127.0.0.1:9443,…
ENDPOINT = "simulation.phalanx.dev/endpoint"
THREADS = 16  # of one webhook
MOST_BYTES = 16 << 20  # of an answer


class CallFailed(Exception):
    """The webhook gave no answer that could be used; the text says why."""


class WebhookTarget(msgspec.Struct, frozen=True):
    host: str  # to connect to
    port: int
    name: str  # in its certificate
    path: str
    authority: str  # PEM; "": the authorities that this machine trusts

    @property
    def url(self) -> str:
        return f"https://{self.name}:{self.port}{self.path}"


def response_of(body: bytes, asked: Json) -> Json:
    """Return the response of a webhook to a review. Raises CallFailed."""
    try:
        review = msgspec.json.decode(body)
    except msgspec.DecodeError as problem:
        raise CallFailed(f"its answer is not JSON: {problem}") from None
    response = review.get("response") if isinstance(review, dict) else None
    if not isinstance(response, dict):
        raise CallFailed("its answer has no response")
    version, kind, uid = asked["apiVersion"], asked["kind"], asked["request"]["uid"]
    if version.endswith("/v1beta1"):
        return response  # kube-apiserver reads nothing else in an answer of that version
    if (review.get("apiVersion"), review.get("kind")) != (version, kind):
        raise CallFailed(f"its answer is {review.get('apiVersion')} {review.get('kind')}, not {version} {kind}")
    if response.get("uid") != uid:
        raise CallFailed(f'expected response.uid="{uid}", got "{response.get("uid")}"')
    return response


def target_of(client: Json, store: StoreProtocol) -> WebhookTarget:
    """Find the address and the authority of a webhook from its clientConfig. Raises CallFailed."""
    try:
        authority = base64.b64decode(client.get("caBundle") or "").decode()
    except (binascii.Error, UnicodeDecodeError):
        raise CallFailed("clientConfig.caBundle is not PEM in base64") from None
    service: Json | None = client.get("service")
    if service is None:
        parts = urlsplit(str(client.get("url") or ""))
        name = parts.hostname or ""
        return WebhookTarget(name, parts.port or 443, name, _clean(parts.path), authority)
    name, namespace = str(service.get("name")), str(service.get("namespace"))
    host, port = endpoint(store, namespace, name, int(service.get("port") or 443))
    return WebhookTarget(host, port, f"{name}.{namespace}.svc", _clean(str(service.get("path") or "")), authority)


def _clean(path: str) -> str:
    """Return a path as kube-apiserver asks for it: one slash where several stand, none at the end."""
    return posixpath.normpath("/" + path.strip("/"))


def endpoint(store: StoreProtocol, namespace: str, name: str, port: int) -> tuple[str, int]:
    entry = store.get(("services", namespace, name))
    if entry is None:
        raise CallFailed(f'service "{name}" not found in namespace "{namespace}"')
    text = (decode(entry.value)["metadata"].get("annotations") or {}).get(ENDPOINT)
    if not text:
        raise CallFailed(
            f'no endpoints available for service "{name}": nothing routes in a local cluster; say where it is with '
            f"kubectl annotate service {name} --namespace {namespace} {ENDPOINT}=127.0.0.1:PORT"
        )
    for part in text.split(","):
        given, equals, address = part.strip().rpartition("=")
        if equals and given != str(port):
            continue
        host, _, number = address.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        try:
            loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
        except ValueError:
            loopback = False
        if not loopback or not (found := natural(number, MAX_PORT)):
            raise CallFailed(f'{ENDPOINT} of service "{name}" must be a loopback address and a port: 127.0.0.1:9443')
        return host, found
    raise CallFailed(f'{ENDPOINT} of service "{name}" says nothing about port {port}')


class _Connection(http.client.HTTPSConnection):
    """Connects to an address and expects the certificate of another name."""

    def __init__(self, target: WebhookTarget, context: ssl.SSLContext, timeout: float) -> None:
        super().__init__(target.host, target.port, context=context, timeout=timeout)
        self._context_, self._name = context, target.name

    def connect(self) -> None:
        plain = socket.create_connection((self.host, self.port), self.timeout)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            self.sock = self._context_.wrap_socket(plain, server_hostname=self._name)
        except BaseException:
            plain.close()
            raise


class WebhookCaller:
    """One webhook at one target."""

    def __init__(self, target: WebhookTarget) -> None:
        self.target = target
        self._threads = ThreadPoolExecutor(THREADS, "phalanx-webhook")
        self._idle: queue.SimpleQueue[_Connection] = queue.SimpleQueue()
        self._context: ssl.SSLContext | None = None

    async def call(self, body: bytes, timeout: int) -> bytes:
        """Send a body to the webhook and return the body of its answer. Raises CallFailed."""
        loop = asyncio.get_running_loop()
        work = loop.run_in_executor(self._threads, self._call, body, timeout)
        try:
            async with asyncio.timeout(timeout):
                return await work
        except TimeoutError:
            raise CallFailed(self._failed("context deadline exceeded", timeout)) from None
        except (OSError, http.client.HTTPException, ValueError) as problem:
            raise CallFailed(self._failed(str(problem) or type(problem).__name__, timeout)) from None

    def _failed(self, why: str, timeout: int) -> str:
        return f'failed to call webhook: Post "{self.target.url}?timeout={timeout}s": {why}'

    def _call(self, body: bytes, timeout: int) -> bytes:
        """Post to the webhook, on an idle connection if there is one."""
        try:
            kept: _Connection | None = self._idle.get_nowait()
        except queue.Empty:
            kept = None
        if kept is not None:
            try:
                return self._post(kept, body, timeout)
            except (OSError, http.client.HTTPException):
                pass  # the idle connection was closed; the call is safe to repeat
        return self._post(self._connect(timeout), body, timeout)

    def _connect(self, timeout: float) -> _Connection:
        if self._context is None:
            authority = self.target.authority
            context = ssl.create_default_context(cadata=authority) if authority else ssl.create_default_context()
            # As in Go, whatever the bundle holds is trusted: also a server's own certificate without its issuer.
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
            self._context = context
        return _Connection(self.target, self._context, timeout)

    def _post(self, connection: _Connection, body: bytes, timeout: int) -> bytes:
        """Send a review to the webhook; keep the connection for the next one. Raises OSError or ValueError."""
        try:
            if connection.sock is not None:
                connection.sock.settimeout(timeout)
            headers = {
                "Content-Type": "application/json",
                "Accept": "application/json",
                "User-Agent": "kube-apiserver-admission",
            }
            connection.request("POST", f"{self.target.path}?timeout={timeout}s", body, headers)
            reply = connection.getresponse()
            answer = reply.read(MOST_BYTES + 1)
            if reply.status >= 300 or len(answer) > MOST_BYTES:
                raise ValueError(f"the server answered {reply.status} with {len(answer)} bytes")
        except BaseException:
            connection.close()
            raise
        if reply.will_close:
            connection.close()
        else:
            self._idle.put(connection)
        return answer

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        while not self._idle.empty():
            self._idle.get_nowait().close()


class WebhookCallers(Generic[K]):
    """The callers of webhooks, each under its key."""

    def __init__(self) -> None:
        self._callers: dict[K, WebhookCaller] = {}

    def of(self, key: K, target: WebhookTarget) -> WebhookCaller:
        """Return the caller of a webhook; a new one if its target changed."""
        caller = self._callers.get(key)
        if caller is None or caller.target != target:
            self.forget(key)
            caller = self._callers[key] = WebhookCaller(target)
        return caller

    def forget(self, key: K) -> None:
        """Close the caller of a webhook that is gone."""
        if (caller := self._callers.pop(key, None)) is not None:
            caller.close()

    def close(self) -> None:
        for key in list(self._callers):
            self.forget(key)

    def __iter__(self) -> Iterator[K]:
        return iter(list(self._callers))
