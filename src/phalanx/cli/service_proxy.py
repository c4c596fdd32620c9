"""Reach the scheduler of a cluster through the API server's service proxy, without port-forward.

kube-apiserver removes the Authorization header and does not verify the scheduler's certificate, so the kubeconfig's own
token is not sent that way unless the user asks for it. A token for the scheduler's audience is requested instead, for a
service account that the user may create tokens for.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping

import msgspec

from phalanx.base.errors import ApiProblem, Forbidden, NotFound, ServiceUnavailable
from phalanx.kube.client import HttpClient
from phalanx.kube.config import Connection
from phalanx.serve.queries.paths import AUDIENCE, BASE, HEADER

NAMESPACE, SERVICE, PORT = "phalanx-system", "phalanx-scheduler", "https"  # as in deploy/
ACCOUNT = "phalanx-asker"
TOKEN_SECONDS = 600  # the shortest that kube-apiserver issues
TRIES = 8  # a standby may be asked: the next request may reach the leader


class _Status(msgspec.Struct):
    token: str = ""


class _TokenRequest(msgspec.Struct):
    status: _Status = msgspec.field(default_factory=_Status)


class _Claims(msgspec.Struct):
    sub: str = ""


class NoService(Exception):
    """There is no scheduler behind the proxy; says what was found instead."""


class ServiceProxy:
    """Questions to the Service NAMESPACE/NAME."""

    def __init__(
        self, client: HttpClient, connection: Connection, service: str = "", *, own_token: bool = False
    ) -> None:
        namespace, _, name = (service or f"{NAMESPACE}/{SERVICE}").partition("/")
        self._client, self._connection = client, connection
        self._namespace, self._service, self._own_token = namespace, name, own_token
        self._token = ""

    async def ask(self, method: str, what: str, query: Mapping[str, str], body: bytes | None, namespace: str) -> bytes:
        """Ask the scheduler through the API server's proxy.

        `namespace`: the one that the question is about. Raises NoService, and the scheduler's own problems.
        """
        where = f"/api/v1/namespaces/{self._namespace}/services/https:{self._service}:{PORT}/proxy"
        if not self._token:
            self._token = await self._bearer(namespace or self._connection.namespace)
        for number in range(TRIES):
            try:
                return await self._client.request(
                    method, f"{where}{BASE}/{what}", query=query, body=body, headers={HEADER: self._token}
                )
            except ServiceUnavailable as problem:
                if not problem.retry_after or number == TRIES - 1:
                    raise NoService(f"Service {self._namespace}/{self._service}: {problem}") from None
            except NotFound as problem:
                if problem.kind == "services":
                    raise NoService(f"there is no Service {self._namespace}/{self._service}") from None
                raise
            except Forbidden as problem:
                if problem.kind == "services":
                    raise Forbidden(
                        f"{problem}; the Role phalanx-questions of deploy/ lets users reach the scheduler: bind it in "
                        f"{self._namespace}",
                        kind=problem.kind,
                    ) from None
                raise
        raise NoService("not reached")

    async def _bearer(self, namespace: str) -> str:
        own = await self._connection.bearer()
        if self._own_token:
            if not own:
                raise Forbidden("--own-token: this kubeconfig has no bearer token", kind="serviceaccounts")
            return own
        refused: dict[str, ApiProblem] = {}  # by namespace
        accounts = list(dict.fromkeys(self._accounts(own or "", namespace)))
        for home, name in accounts:
            try:
                return await self._requested(home, name)
            except (Forbidden, NotFound) as problem:
                refused[home] = problem
        if all(isinstance(problem, NotFound) for problem in refused.values()):
            tried = " and ".join(f"{home}/{name}" for home, name in accounts)
            raise NoService(f"no service account to ask with ({tried}); apply deploy/, which has one")
        forbidden = {home: problem for home, problem in refused.items() if isinstance(problem, Forbidden)}
        refusal = forbidden.get(namespace) or next(iter(forbidden.values()))
        raise Forbidden(
            f"{refusal}; the scheduler wants a token of a service account that you may create tokens for: {ACCOUNT} in "
            f"the namespace you ask about (deploy/tenant) or in {self._namespace}; or send your own with --own-token",
            kind="serviceaccounts",
        )

    def _accounts(self, own: str, namespace: str) -> Iterator[tuple[str, str]]:
        parts = _subject(own).split(":")
        if len(parts) == 4 and parts[:2] == ["system", "serviceaccount"]:
            yield parts[2], parts[3]
        yield namespace, ACCOUNT
        yield self._namespace, ACCOUNT

    async def _requested(self, namespace: str, name: str) -> str:
        spec = {"audiences": [AUDIENCE], "expirationSeconds": TOKEN_SECONDS}
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
        found = await self._client.request("POST", path, body=msgspec.json.encode(body))
        return msgspec.json.decode(found, type=_TokenRequest).status.token


def _subject(token: str) -> str:
    """Return whose token it says it is; "" if it is not a JSON web token. For a guess only: nothing is verified."""
    _, _, rest = token.partition(".")
    text, _, signature = rest.partition(".")
    if not signature:
        return ""
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)), type=_Claims).sub
    except (binascii.Error, ValueError, msgspec.DecodeError):
        return ""
