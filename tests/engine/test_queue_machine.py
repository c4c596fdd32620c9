"""The engine under random events: every pending pod is in exactly one place, no pod is forgotten, nothing is
over-committed, and what could be placed has been placed."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from phalanx.engine import decisions as d
from phalanx.engine.engine import Engine
from phalanx.engine.events import CONFLICT, NOT_FOUND, TRANSIENT, Gone, NodeChanged, Outcome, PodChanged
from phalanx.engine.framework.evaluation import Evaluation
from phalanx.engine.scheduling.queue.units import QueueName
from phalanx.testing.builders import node, pod

NODE_NAMES = st.integers(0, 4).map("n{}".format)
POD_NAMES = st.integers(0, 9).map("p{}".format)


class Cluster(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.engine = Engine()
        self.now = 0.0
        self.pods: dict[str, Any] = {}  # what the API server holds
        self.nodes: dict[str, Any] = {}
        self.unanswered: list[d.Bind] = []
        self.uids = 0

    # ---- the world

    @rule(
        name=NODE_NAMES,
        cpu=st.sampled_from(["0", "1", "2", "4", "-1"]),
        disk=st.sampled_from(["", "ssd", "hdd"]),
        zone=st.sampled_from(["", "z1", "z2"]),
        tainted=st.booleans(),
        cordoned=st.booleans(),
    )
    def node_seen(self, name, cpu, disk, zone, tainted, cordoned):
        built = node(name).cpu(cpu).pods(5)
        if disk:
            built.label("disk", disk)
        if zone:
            built.label("zone", zone)
        if tainted:
            built.taint("k", "v")
        self.nodes[name] = built.unschedulable(cordoned).build()
        self.engine.apply(NodeChanged(self.nodes[name]))

    @rule(name=NODE_NAMES)
    def node_gone(self, name):
        self.nodes.pop(name, None)
        self.engine.apply(Gone("Node", name))

    @rule(
        name=POD_NAMES,
        cpu=st.sampled_from(["500m", "1", "2"]),
        priority=st.integers(0, 2),
        disk=st.booleans(),
        tolerant=st.booleans(),
        gated=st.booleans(),
        port=st.booleans(),
        nominated=st.one_of(st.just(""), st.just(""), NODE_NAMES),
        app=st.sampled_from(["", "a", "b"]),
        company=st.sampled_from(["", "", "", "with", "without", "spread"]),
        key=st.sampled_from(["kubernetes.io/hostname", "zone"]),
    )
    def pod_made(self, name, cpu, priority, disk, tolerant, gated, port, nominated, app, company, key):
        if name in self.pods:
            return
        self.uids += 1
        built = pod(name).cpu(cpu).priority(priority).uid(f"u{self.uids}")
        if disk:
            built.select("disk", "ssd")
        if tolerant:
            built.tolerate("k", "v")
        if gated:
            built.gate("g")
        if port:
            built.port(80)
        if nominated:
            built.nominated(nominated)
        if app:
            built.label("app", app)
        if company == "with":
            built.affinity(key, {"app": "a"})
        elif company == "without":
            built.anti_affinity(key, {"app": "a"})
        elif company == "spread":
            built.spread(key, {"app": "b"})
        self.pods[name] = built.build()
        self.engine.apply(PodChanged(self.pods[name]))

    @rule(name=POD_NAMES)
    def gates_removed(self, name):
        if name in self.pods:
            self._change(name, scheduling_gates=None)

    @rule(name=POD_NAMES, app=st.sampled_from(["a", "b", "c"]))
    def relabelled(self, name, app):
        if name in self.pods:
            found = self.pods[name]
            meta = msgspec.structs.replace(found.metadata, labels={"app": app})
            self.pods[name] = msgspec.structs.replace(found, metadata=meta)
            self.engine.apply(PodChanged(self.pods[name]))

    @rule(name=POD_NAMES)
    def seen_again(self, name):
        if name in self.pods:
            self.engine.apply(PodChanged(self.pods[name]))

    @rule(name=POD_NAMES, node_name=NODE_NAMES)
    def bound_by_another_scheduler(self, name, node_name):
        if name in self.pods and not self.pods[name].spec.node_name:
            self._change(name, node_name=node_name)

    @rule(name=POD_NAMES)
    def deleted(self, name):
        found = self.pods.pop(name, None)
        self.engine.apply(Gone("Pod", name, "default", found.metadata.uid if found else ""))

    @rule(name=POD_NAMES)
    def finished(self, name):
        found = self.pods.pop(name, None)
        if found is not None:
            status = msgspec.structs.replace(found.status, phase="Succeeded")
            self.engine.apply(PodChanged(msgspec.structs.replace(found, status=status)))

    def _change(self, name, **spec):
        found = self.pods[name]
        self.pods[name] = msgspec.structs.replace(found, spec=msgspec.structs.replace(found.spec, **spec))
        self.engine.apply(PodChanged(self.pods[name]))

    # ---- the scheduler

    @rule(limit=st.integers(1, 3))
    def step(self, limit):
        self._take(self.engine.step(self.now, limit))

    def _take(self, made):
        for decision in made:
            if isinstance(decision, d.Bind):
                self.unanswered.append(decision)

    @rule(data=st.data(), fate=st.sampled_from(["done", "done", CONFLICT, NOT_FOUND, TRANSIENT, "lost"]))
    def bind_answered(self, data, fate):
        if not self.unanswered:
            return
        bind = self.unanswered.pop(data.draw(st.integers(0, len(self.unanswered) - 1)))
        found = self.pods.get(bind.name)
        alive = found is not None and found.metadata.uid == bind.uid and not found.spec.node_name
        if alive and fate in ("done", "lost"):
            if fate == "lost":  # the write happened; the answer never came, the informer shows it
                self._change(bind.name, node_name=bind.node)
                return
            if data.draw(st.booleans()):
                self.engine.apply(Outcome(bind.id))
                self._change(bind.name, node_name=bind.node)
            else:
                self._change(bind.name, node_name=bind.node)
                self.engine.apply(Outcome(bind.id))
        else:
            self.engine.apply(Outcome(bind.id, NOT_FOUND if found is None else CONFLICT))

    @rule(seconds=st.sampled_from([0.5, 1.0, 11.0]))
    def time_passes(self, seconds):
        self.now += seconds

    # ---- what must hold

    @invariant()
    def state_is_sound(self):
        self.engine.validate()

    @invariant()
    def unschedulable_pods_could_not_be_placed_now(self):
        """An event that makes a pod feasible always wakes it: no sleeping pod fits anywhere, unless a nomination of
        equal or higher priority holds the place."""
        engine = self.engine
        for root, place in engine.queue.places():
            if place is not QueueName.WAITING or not root.equivalence_class.is_waiting:
                continue
            record = root.record
            fresh = Evaluation(record.shape, engine.profiles["default-scheduler"], engine.columns, engine.objects)
            fresh.refresh()
            free = [row for row in range(engine.columns.n) if fresh.feasible[row]]
            held = [row for row in free if engine.nominations.rivals(engine.columns.names[row], record)]
            assert free == held, f"{record} would fit on {free}"

    def teardown(self):
        """When the world stands still everything that fits gets placed."""
        for _ in range(30):
            self.now += 11.0
            self._take(self.engine.step(self.now, 1000))
            for bind in self.unanswered:
                found = self.pods.get(bind.name)
                if found is not None and found.metadata.uid == bind.uid and not found.spec.node_name:
                    self.engine.apply(Outcome(bind.id))
                    self._change(bind.name, node_name=bind.node)
                else:
                    self.engine.apply(Outcome(bind.id, CONFLICT))
            self.unanswered = []
            self.engine.validate()
        places = {root.key: place for root, place in self.engine.queue.places()}
        assert all(place in (QueueName.WAITING, QueueName.GATED) for place in places.values()), places
        self.unschedulable_pods_could_not_be_placed_now()


TestCluster = Cluster.TestCase
TestCluster.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
