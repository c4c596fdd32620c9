"""Metrics of groups: times until complete, placed and bound, states, fragmentation and promised starts."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterable

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric

from phalanx.base.clock import parse_rfc3339
from phalanx.engine import decisions as d
from phalanx.engine.events import Outcome
from phalanx.engine.groups.group_state import Phase
from phalanx.model.groups import Group, GroupKey, PodKey
from phalanx.serve.metrics.at_scrape import AtScrape, gauge
from phalanx.serve.metrics.histograms import Histograms, exponential
from phalanx.serve.queries.engine_view import EngineReader
from phalanx.serve.scheduler import SchedulerService

_SECONDS = exponential(0.1, 2, 18)  # up to about 7 hours
GROUPS_PER_SCRAPE = 2000  # groups whose state is computed (16 ms); with more groups a pass takes several scrapes


class GroupMetrics:
    def __init__(self, service: SchedulerService, registry: CollectorRegistry) -> None:
        self._service = service
        self._reader = EngineReader(service.engine, service.now)
        self._binding: dict[GroupKey, tuple[float, set[int]]] = {}  # group -> begin, and Binds without an outcome
        self._root_of: dict[int, GroupKey] = {}  # Bind -> its group
        self._known: dict[GroupKey, str] = {}  # states of the last complete pass
        self._pass: dict[GroupKey, str] = {}  # states of the running pass
        self._left: list[Group] = []  # groups left in this pass

        self._complete = Histograms(
            "phalanx_group_complete_seconds",
            "From the creation of a group to that of the last pod of its placement.",
            (),
            _SECONDS,
            registry,
        )
        self._place = Histograms(
            "phalanx_group_place_seconds",
            "From the creation of the last pod of a placement to the decision to bind it.",
            (),
            _SECONDS,
            registry,
        )
        self._bind = Histograms(
            "phalanx_group_bind_seconds",
            "From the decision to bind the pods of a group to the last confirmed bind.",
            (),
            _SECONDS,
            registry,
        )
        AtScrape(registry, self._counts)
        service.on_decisions.append(self._decided)
        service.on_outcome.append(self._answered)

    # ---- times

    def _decided(self, made: list[d.Decision]) -> None:
        binds: dict[GroupKey, list[d.Bind]] = {}
        forest = self._service.engine.cluster.forest
        for decision in made:
            if isinstance(decision, d.Bind):
                leaf = forest.leaf_of(PodKey(decision.namespace, decision.name))
                if leaf is not None:
                    binds.setdefault(forest.root_of(leaf) or leaf, []).append(decision)
        for root, decisions in binds.items():
            self._placed(root, decisions)

    def _placed(self, root: GroupKey, binds: list[d.Bind]) -> None:
        now, records = self._service.now(), self._service.engine.pods.records
        found = (records.get(f"{bind.namespace}/{bind.name}") for bind in binds)
        created = [record.created for record in found if record is not None]
        waiting = self._binding.get(root)
        ids = {bind.id for bind in binds}
        self._root_of.update(dict.fromkeys(ids, root))
        if waiting is not None:  # a large gang is bound in several steps
            waiting[1].update(ids)
            return
        self._binding[root] = (now, ids)
        if not created:
            return
        group = self._service.engine.cluster.forest.group(root)
        made = group.spec.created if group is not None and group.spec is not None else ""
        last = max(created)
        if made:
            self._complete.observe(max(0.0, last - parse_rfc3339(made)))
        self._place.observe(max(0.0, now - last))

    def _answered(self, outcome: Outcome) -> None:
        root = self._root_of.pop(outcome.decision, None)
        if root is None:
            return
        since, ids = self._binding[root]
        ids.discard(outcome.decision)
        if not ids:
            del self._binding[root]
            if not outcome.problem:
                self._bind.observe(max(0.0, self._service.now() - since))

    # ---- at a scrape

    def _counts(self) -> Iterable[Metric]:
        states = self._count_states()
        found = {str(state): states[state] for state in Phase}
        yield gauge("phalanx_groups", "Groups by their state.", ["state"], found)
        text = "Share of the free capacity that lies in domains of a level that hold a pod."
        yield gauge("phalanx_fragmentation_ratio", text, ["level", "resource"], self._reader.fragmentation())
        held = len(self._service.engine.starts.held)
        yield gauge("phalanx_promised_starts", "Promised starts that stand.", [], held)

    def _count_states(self) -> Tally[str]:
        health = self._service.engine.groups.members.health
        if not self._left:
            self._pass, self._left = {}, list(self._reader.all_groups())
        chunk, self._left = self._left[:GROUPS_PER_SCRAPE], self._left[GROUPS_PER_SCRAPE:]
        for group in chunk:
            self._pass[group.key] = str(health.state(group).phase)
        if not self._left:
            self._known = self._pass
        return Tally((self._known | self._pass).values())
