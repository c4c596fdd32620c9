"""Metrics of the API server, in kube-apiserver's names where the meaning is the same."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from phalanx.local.api.context import Context
from phalanx.local.api.fairness import Fairness
from phalanx.local.api.request import Answer, Request
from phalanx.local.store.store import Store


class ApiMetrics:
    """Counts what is answered; `answer` is /metrics."""

    def __init__(self, ctx: Context) -> None:
        self.registry = CollectorRegistry()
        self.others: list[Callable[[], bytes]] = []  # metrics of other parts of the process
        self._requests = Counter(
            "apiserver_request",
            "Requests answered, by what they asked for and how it ended.",
            ("verb", "group", "version", "resource", "subresource", "code"),
            registry=self.registry,
        )
        # Since the last scrape: a sum costs less than a counter of prometheus_client.
        self._answered: dict[tuple[str, str, str, str, str, int], int] = {}
        revision = Gauge("phalanx_store_revision", "The last durable revision.", registry=self.registry)
        revision.set_function(lambda: ctx.store.revision)
        kinds = Gauge("phalanx_served_kinds", "Kinds being served, custom ones included.", registry=self.registry)
        kinds.set_function(lambda: len(ctx.registry.all()))
        gates = Gauge(
            "kubernetes_feature_enabled", "1 if a feature gate is on.", ("name", "stage"), registry=self.registry
        )
        for name, on in ctx.gates.as_dict().items():
            gates.labels(name, "").set(on)

    def measure_store(self, store: Store) -> None:
        """Register the metrics of a store."""

        def store_gauge(name: str, text: str, value: Callable[[], float]) -> None:
            Gauge(f"phalanx_store_{name}", text, registry=self.registry).set_function(value)

        store_gauge("objects", "Objects in the store.", lambda: store.count)
        store_gauge("watchers", "Watches under way.", lambda: store.watchers)
        store_gauge("window_changes", "Changes that are kept for watches.", lambda: store.window[0])
        store_gauge("window_bytes", "Bytes of states that only the window of changes keeps.", lambda: store.window[1])
        store_gauge("space_alarm", "1 while the disk is too full for what grows.", lambda: float(bool(store.alarm())))
        store_gauge("damaged", "1 once reading the file again found damage.", lambda: float(bool(store.integrity())))
        store_gauge("verified_timestamp_seconds", "When the whole file was last found right.", lambda: store.verified)
        store_gauge("free_bytes", "Free on the disk of the store, when last looked at.", lambda: store.free_bytes)

    def measure_fairness(self, fairness: Fairness) -> None:
        """Register the metrics of fairness, with the names of kube-apiserver.

        Its priority levels and flows are one here.
        """
        running = Gauge("apiserver_flowcontrol_current_executing_requests", "Being answered.", registry=self.registry)
        running.set_function(lambda: fairness.running)
        waiting = Gauge("apiserver_flowcontrol_current_inqueue_requests", "Waiting for a turn.", registry=self.registry)
        waiting.set_function(lambda: fairness.waiting)
        rejected = Gauge("apiserver_flowcontrol_rejected_requests_total", "Answered with 429.", registry=self.registry)
        rejected.set_function(lambda: fairness.rejected)

    def count(self, request: Request, code: int) -> None:
        kind = request.kind
        key = (request.verb, kind.group, request.version.name, kind.plural, request.subresource, code)
        self._answered[key] = self._answered.get(key, 0) + 1

    def answer(self) -> Answer:
        answered, self._answered = self._answered, {}
        for (*labels, code), count in answered.items():
            self._requests.labels(*labels, str(code)).inc(count)
        body = generate_latest(self.registry) + b"".join(other() for other in self.others)
        return Answer(body=body, content_type=CONTENT_TYPE_LATEST)
