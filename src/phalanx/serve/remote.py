"""A part of the control plane as a separate process, connected to an API server by HTTPS."""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from phalanx.base.client import Client
from phalanx.base.errors import ApiProblem, ConfigProblem, Forbidden, NotFound, Unauthorized
from phalanx.base.retry import delay, verdict
from phalanx.kube.client import HttpClient
from phalanx.kube.config import Connection, in_cluster, load
from phalanx.kube.lease import RIGHTS
from phalanx.serve.component import Component
from phalanx.serve.start_checks import check_version

T = TypeVar("T")
log = logging.getLogger(__name__)
REPORT_EVERY = 10.0  # seconds between log lines about an unreachable server


async def connected(connection: Connection, name: str, *, connections: int = 64) -> HttpClient:
    """Return an authenticated client. Raises ConfigProblem if the token is not readable."""
    try:
        await connection.bearer()
    except OSError as problem:
        raise ConfigProblem("", f"cannot read the token: {problem}") from None
    return await HttpClient(connection, user_agent=name, connections=connections).__aenter__()


async def wait_for_server(client: HttpClient) -> None:
    """Return when the API server answers and accepts our token; log problems meanwhile. Raises ConfigProblem if the
    server is too old."""
    rng = random.Random()
    announced = -REPORT_EVERY
    loop = asyncio.get_running_loop()
    for attempt in itertools.count():
        try:
            check_version(client.server, await client.request("GET", "/version"))  # allowed without authentication
            await client.request("GET", "/api")
            return
        except ApiProblem as problem:
            if verdict(problem) != "uncertain" and not isinstance(problem, Unauthorized | NotFound):
                return
            if loop.time() - announced >= REPORT_EVERY:
                announced = loop.time()
                log.warning("waiting for the API server at %s: %s", client.server, _cause(problem))
            await asyncio.sleep(delay(min(attempt, 5), problem, rng))


def _cause(problem: ApiProblem) -> str:
    """Return the probable mistake in the kubeconfig, else the problem itself."""
    if isinstance(problem, Unauthorized):
        return "it does not accept the token of the kubeconfig, which is another cluster's or has run out"
    if isinstance(problem, NotFound):
        return "what answers there is not a Kubernetes API server; correct the server in the kubeconfig"
    if "CERTIFICATE_VERIFY_FAILED" in str(problem):
        return (
            "its certificate is not from the authority in the kubeconfig, which is another cluster's or outdated;"
            " get the kubeconfig of this cluster again"
        )
    return str(problem)


async def answered(what: str, ask: Callable[[], Awaitable[T]]) -> T:
    """Repeat a request until it succeeds.

    No answer is final at startup: a new API server has no roles yet and forbids every request, and a missing API may be
    installed later. A missing right is logged once.
    """
    rng = random.Random()
    announced, known = -REPORT_EVERY, ""
    loop = asyncio.get_running_loop()
    for attempt in itertools.count():
        try:
            return await ask()
        except ApiProblem as problem:
            if isinstance(problem, Forbidden):
                report, hint = str(problem) != known, RIGHTS
            else:
                report, hint = loop.time() - announced >= REPORT_EVERY, ""
            if report:
                announced, known = loop.time(), str(problem)
                log.warning("%s: %s; asking again%s", what, problem, hint)
            await asyncio.sleep(delay(min(attempt, 5), problem, rng))
    raise AssertionError("unreachable: the loop returns")


class Remote:
    """A process with one component and its own client. Raises ConfigProblem at start."""

    def __init__(self, kubeconfig: str, context: str, make: Callable[[Client], Component], *, name: str) -> None:
        self._kubeconfig, self._context, self._make, self._name = kubeconfig, context, make, name
        self._client: HttpClient | None = None
        self._component: Component | None = None

    async def start(self) -> None:
        connection = load(self._kubeconfig, self._context) if self._kubeconfig else in_cluster()
        self._client = await connected(connection, self._name)
        await wait_for_server(self._client)
        self._component = self._make(self._client)
        await self._component.start()

    async def until_failure(self) -> None:
        if self._component is None or self._component.failed is None:
            await asyncio.Event().wait()
        else:
            await asyncio.shield(self._component.failed)

    async def stop(self) -> None:
        if self._component is not None:
            await self._component.stop()
        if self._client is not None:
            await self._client.__aexit__()
