"""A cluster in memory on a virtual clock: an engine, with a simulated API server and kubelets around it.

    cluster = Cluster().see(node("n").cpu("2"), pod("a").cpu("1"))
    cluster.step()
    assert cluster.bound == {"a": "n"}

Objects go in through `see` and `gone`; `step` lets the engine decide and carries its decisions out until it has none
left. Nothing here sleeps, listens or is random. The engine checks itself after every step and every event; in a cluster
of many pods or nodes, where that would dominate the run time, only after some of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Self, cast

import msgspec
import yaml

from phalanx.base.clock import rfc3339
from phalanx.engine import decisions as d
from phalanx.engine.engine import Engine
from phalanx.engine.events import CHANGED_BY_KIND, NOT_FOUND, Event, Gone, Outcome
from phalanx.engine.framework import Factory
from phalanx.engine.plugins.config import read_config
from phalanx.model.gates import Gates
from phalanx.model.objects import Node, Pod

ENDED = "2026-01-01T00:00:00Z"
ROUNDS = 100  # rounds of deciding and executing, after which an engine that still decides will never settle
SLICES = 100_000  # steps in which searches only went on
SMALL = 100  # pods and nodes: checking all of them costs little compared with an event


class Cluster:
    def __init__(
        self,
        engine: Engine | None = None,
        *,
        config: str | None = None,  # KubeSchedulerConfiguration, YAML
        plugins: Mapping[str, Factory] | None = None,  # name -> factory, in addition to the engine's own
        gates: Mapping[str, bool] | None = None,
        confirm: bool = True,  # binds are answered and seen; False: they stay in progress
        evict: bool = True,  # evicted pods are deleted; False: they stay until `gone` is called
        grace: bool = False,  # evicted pods terminate first, until `finish`
        now: float = 1000.0,
    ) -> None:
        self._plugins, self._gates = dict(plugins or {}), Gates(dict(gates or {}))
        self._config = config
        self.engine = engine or self._new_engine()
        self.confirm, self.evict, self.grace = confirm, evict, grace
        self.now = now  # seconds
        # Kind -> name -> object, as the API server has it; "ns/name" outside the default namespace.
        self.objects: dict[str, dict[str, Any]] = {kind: {} for kind in CHANGED_BY_KIND}
        self.log: list[d.Decision] = []  # everything the engine decided
        self.bound: dict[str, str] = {}  # pods that the engine bound and that are still there -> node
        self.refuse: dict[str, str] = {}  # pod -> problem its binds meet
        self.hold: set[str] = set()  # pods whose binds are not answered before `answer_held`
        self.held: list[d.Bind] = []
        self._unchecked = 0  # objects that events since the last check pay for

    def _new_engine(self) -> Engine:
        if self._config is None:
            return Engine(gates=self._gates, plugins=self._plugins)
        settings = read_config(yaml.safe_load(self._config), self._plugins).engine()
        return Engine(settings, gates=self._gates, plugins=self._plugins)

    # ---- what happens in the cluster

    def see(self, *builders: Any) -> Self:
        """Add or update objects (or builders of them)."""
        for builder in builders:
            obj = builder.build() if hasattr(builder, "build") else builder
            kind = type(obj).__name__
            self.objects[kind][_key(obj.metadata.namespace, obj.metadata.name)] = obj
            self._notify(obj)
        self._validate()
        return self

    def _notify(self, obj: Any) -> None:
        self.engine.apply(cast("Event", CHANGED_BY_KIND[type(obj).__name__](obj)))

    def gone(self, kind: str, name: str) -> Self:
        """Delete an object; "ns/name" outside the default namespace. It need not have been seen."""
        known = self.objects.get(kind, {}).pop(name, None)
        if kind == "Pod":
            self.bound.pop(name, None)
        namespace, _, plain = name.rpartition("/")
        uid = known.metadata.uid if known is not None else ""
        if known is not None:
            namespace = known.metadata.namespace
        elif kind != "Node":
            namespace = namespace or "default"
        self.engine.apply(Gone(kind, plain, namespace, uid))
        self._validate()
        return self

    def _validate(self) -> None:
        """Validate the engine's state. The cost grows with the cluster, so large clusters skip most events."""
        self._unchecked += SMALL
        if self._unchecked >= len(self.pods) + len(self.nodes):
            self._unchecked = 0
            self.engine.validate()

    def update(self, name: str, *, phase: str | None = None, started: bool = False, ending: bool = False) -> Self:
        """Update a pod's status: its phase, that it started, that it is being deleted."""
        pod = self.pods[name]
        status, meta = pod.status, pod.metadata
        if phase is not None:
            status = msgspec.structs.replace(status, phase=phase)
        if started:
            status = msgspec.structs.replace(status, start_time=ENDED)
        if ending:
            meta = msgspec.structs.replace(meta, deletion_timestamp=ENDED)
        return self.see(msgspec.structs.replace(pod, status=status, metadata=meta))

    def annotate(self, name: str, key: str, value: str) -> Self:
        pod = self.pods[name]
        meta = msgspec.structs.replace(pod.metadata, annotations={**pod.metadata.annotations, key: value})
        return self.see(msgspec.structs.replace(pod, metadata=meta))

    def finish(self, *names: str) -> Self:
        """Delete these pods, or all that are terminating."""
        for name in names or [n for n, p in self.pods.items() if p.metadata.deletion_timestamp is not None]:
            self.gone("Pod", name)
        return self

    def restart(self, engine: Engine | None = None, order: Iterable[int] | None = None) -> Self:
        """Start a new scheduler process on the API server's state; `order`: in which objects arrive."""
        self.engine = engine or self._new_engine()
        last = {kind: number for number, kind in enumerate(("Workload", "PodGroup", "CompositePodGroup", "Pod"), 1)}
        kinds = sorted(self.objects, key=lambda kind: last.get(kind, 0))
        found = [obj for kind in kinds for obj in self.objects[kind].values()]
        for index in order if order is not None else range(len(found)):
            self._notify(found[index])
        return self

    # ---- time

    def step(self, seconds: float = 0.0, limit: int = 10_000) -> list[d.Decision]:
        """Advance time and let the engine decide until it has no decisions left; return them.

        `limit`: attempts per round.
        """
        self.now += seconds
        made: list[d.Decision] = []
        rounds = slices = 0
        while rounds < ROUNDS and slices < SLICES:
            out = self.engine.step(self.now, limit)
            self.engine.validate()
            rounds, slices = rounds + bool(out), slices + (not out)
            if not out and not self._more():
                return made
            made += out
            self.log += out
            for decision in out:
                self.perform(decision)
        raise AssertionError("the engine does not come to rest")

    def _more(self) -> bool:
        """Return True if a search continues, or more units can be tried at once."""
        due = self.engine.next_wake()
        return due is not None and due <= self.now

    def perform(self, decision: d.Decision) -> None:
        """Carry a decision out and report back."""
        if isinstance(decision, d.Bind):
            if decision.name in self.hold:
                self.held.append(decision)
            elif self.confirm:
                self.bind(decision)
            return
        if isinstance(decision, d.SetGroupCondition):
            self._condition(decision)
            return
        self.engine.apply(Outcome(decision.id))
        name = _key(decision.namespace, decision.name)
        pod = self.pods.get(name)
        if pod is None:
            return
        if isinstance(decision, d.Nominate):
            status = msgspec.structs.replace(pod.status, nominated_node_name=decision.node)
            self.see(msgspec.structs.replace(pod, status=status))
        elif isinstance(decision, d.Evict) and self.grace:
            self.update(name, ending=True)
        elif isinstance(decision, d.Evict) and self.evict:
            self.gone("Pod", name)

    def bind(self, decision: d.Bind, *, answer: bool = True, show: bool = True) -> None:
        """Bind a pod. `answer`: the scheduler gets the response; `show`: its informer sees the pod bound."""
        name = _key(decision.namespace, decision.name)
        pod = self.pods.get(name)
        problem = self.refuse.get(decision.name, "") if pod is not None else NOT_FOUND
        if answer:
            self.engine.apply(Outcome(decision.id, problem, f"bind says {problem}" if problem else ""))
        if problem or pod is None:
            return
        annotations = {**pod.metadata.annotations, **decision.annotations}
        meta = msgspec.structs.replace(pod.metadata, annotations=annotations)
        spec = msgspec.structs.replace(pod.spec, node_name=decision.node)
        self.pods[name] = msgspec.structs.replace(pod, metadata=meta, spec=spec)
        self.bound[name] = decision.node
        if show:
            self.see(self.pods[name])

    def show_bound(self, name: str, node: str) -> Self:
        """Show the informer a pod on a node, including a pod bound by another scheduler."""
        pod = self.pods[name]
        return self.see(msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, node_name=node)))

    def answer_held(self) -> Self:
        """Answer the Binds that were held."""
        held, self.held = self.held, []
        self.hold = set()
        for decision in held:
            self.bind(decision)
        return self

    def _condition(self, decision: d.SetGroupCondition) -> None:
        found = self.objects[decision.kind].get(_key(decision.namespace, decision.name))
        self.engine.apply(Outcome(decision.id, "" if found is not None else NOT_FOUND))
        if found is None:
            return
        conditions = msgspec.to_builtins(found.status).get("conditions") or []
        before: dict[str, Any] = next((each for each in conditions if each["type"] == decision.type), {})
        conditions = [each for each in conditions if each["type"] != decision.type]
        fields = ("type", "status", "reason", "message")
        since = before.get("lastTransitionTime") if before.get("status") == decision.status else rfc3339(self.now)
        conditions.append({name: getattr(decision, name) for name in fields} | {"lastTransitionTime": since})
        status = {**msgspec.to_builtins(found.status), **(decision.counts or {}), "conditions": conditions}
        self.see(msgspec.structs.replace(found, status=msgspec.convert(status, type(found.status))))

    # ---- what users see

    @property
    def pods(self) -> dict[str, Pod]:
        return self.objects["Pod"]

    @property
    def nodes(self) -> dict[str, Node]:
        return self.objects["Node"]

    @property
    def placed(self) -> dict[str, str]:
        """Return every pod on a node, including pods bound by another scheduler."""
        return {name: pod.spec.node_name for name, pod in self.pods.items() if pod.spec.node_name}

    @property
    def evicted(self) -> list[str]:
        return [each.name for each in self.log if isinstance(each, d.Evict)]

    def of(self, kind: type[Any], name: str | None = None) -> list[Any]:
        """Return decisions of a kind, about one object or all."""
        return [each for each in self.log if isinstance(each, kind) and name in (None, each.name)]

    def messages(self, pod: str) -> list[str]:
        """Return the messages reported for a pod, in order."""
        return [each.message for each in self.of(d.SetPodCondition, pod)]

    def message(self, pod: str) -> str:
        return str(self.messages(pod)[-1])

    def pod_condition(self, pod: str) -> str:
        """Return "reason: message" of the condition last set on a pod; "" if none."""
        found = self.of(d.SetPodCondition, pod)
        return f"{found[-1].reason}: {found[-1].message}" if found else ""

    def condition(self, name: str, kind: str = "PodGroup") -> tuple[str, str, str]:
        """Return (status, reason, message) of a group's first condition of those that Kubernetes has."""
        conditions = [c for c in self.objects[kind][name].status.conditions or () if "/" not in c.type]
        return next(((c.status, c.reason, c.message) for c in conditions), ("", "", ""))

    def nominated(self) -> dict[str, str]:
        """Return the pods with a nominated node."""
        found = {each.name: each.node for each in self.of(d.Nominate)}
        return {name: node for name, node in found.items() if node}

    def attempts(self, root: str) -> int:
        """Return how often a pending unit ("pod/ns/name", "podgroup/ns/name") has been tried."""
        found = self.engine.queue.units.get(root)
        return found.attempts if found is not None else 0


def _key(namespace: str, name: str) -> str:
    return name if namespace in ("", "default") else f"{namespace}/{name}"
