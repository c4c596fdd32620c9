"""Metrics of the API server, in kube-apiserver's names where the meaning is the same."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from phalanx.local.api.context import Context
from phalanx.local.api.request import Answer, Request


class ApiMetrics:
    """Counts what is answered; `answer` is /metrics."""

    def __init__(self, ctx: Context) -> None:
        self.registry = CollectorRegistry()
        self.others: list[Callable[[], bytes]] = []  # what further parts of the process have to tell
        self._requests = Counter(
            "apiserver_request",
            "Requests answered, by what they asked for and how it ended.",
            ("verb", "group", "version", "resource", "subresource", "code"),
            registry=self.registry,
        )
        self._known: dict[
            tuple[str, str, str, str, str, int], Counter
        ] = {}  # looking labels up costs more than counting
        revision = Gauge("phalanx_store_revision", "The last durable revision.", registry=self.registry)
        revision.set_function(lambda: ctx.store.revision)
        kinds = Gauge("phalanx_served_kinds", "Kinds being served, custom ones included.", registry=self.registry)
        kinds.set_function(lambda: len(ctx.registry.all()))

    def count(self, request: Request, code: int) -> None:
        kind = request.kind
        key = (request.verb, kind.group, request.version.name, kind.plural, request.subresource, code)
        counter = self._known.get(key)
        if counter is None:
            counter = self._known[key] = self._requests.labels(*key[:-1], str(code))
        counter.inc()

    def answer(self) -> Answer:
        body = generate_latest(self.registry) + b"".join(other() for other in self.others)
        return Answer(body=body, content_type=CONTENT_TYPE_LATEST)
