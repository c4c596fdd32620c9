"""A scheduler that runs for months: what is gone leaves nothing behind, whatever names it brought along.

Every wave brings nodes, pods and groups with labels, resources, selectors and topologies that are new, and
takes them away again. `CHURN_WAVES=10000 pytest tests/engine/test_churn.py` is more than 100,000 short-lived pods.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest

from phalanx.engine.decisions import Bind
from phalanx.engine.engine import Engine
from phalanx.engine.framework import evaluations
from phalanx.engine.plugins import balanced_allocation, pod_index, resources_fit
from phalanx.engine.preemption import victim_index
from phalanx.engine.scheduling.attempt import preemption
from phalanx.engine.scheduling.lifecycle import history
from phalanx.engine.scheduling.queue import units, waiting
from phalanx.engine.state import columns, label_interest, labels, shapes
from phalanx.testing import Cluster
from phalanx.testing.builders import (
    composite,
    namespace,
    node,
    pdb,
    pod,
    pod_group,
    pv,
    pvc,
    service,
)
from support.table_sizes import table_sizes

WAVES = int(os.environ.get("CHURN_WAVES", "160"))
LIMITS = {
    balanced_allocation: ("MANY_SHAPES",),
    victim_index: ("MOST_STARTS",),
    preemption: ("MOST_FUTILE",),
    columns: ("FEW",),
    label_interest: ("_FEW", "_MANY_HIDDEN", "_MANY_VALUES"),
    labels: ("FEW",),
    pod_index: ("_MANY",),
    units: ("FEW_STALE",),
    resources_fit: ("MANY_SHAPES",),
    shapes: ("FEW_SHAPES", "MOST_QUICK"),
    history: ("MOST_OBJECTS", "MOST_GONE"),
    waiting: ("FEW_CLASSES",),
}


class Unchecked(Engine):
    """Checks itself when the test says so: thousands of waves would take minutes otherwise."""

    def validate(self) -> None:
        pass


def wave(number: int) -> list:
    key, device = f"example.com/key-{number}", f"example.com/device-{number}"
    label = {f"app-{number}": f"v-{number}"}
    space = f"space-{number}"

    def one(name):
        return pod(f"{name}-{number}").cpu("100m").label(f"app-{number}", f"v-{number}")

    new = (
        node(f"new-{number}")
        .cpu("4")
        .label(key, f"value-{number}")
        .label("kubernetes.io/hostname", f"new-{number}")
        .label("rack", f"rack-{number}")
        .resource(device, "4")
        .taint(f"team-{number}", "x", "PreferNoSchedule")
    )
    return [
        new,
        namespace(space).label(f"team-{number}", "x"),
        service(f"service-{number}").select(label),
        pdb(f"budget-{number}").select(label).allowed(0),
        pv(f"volume-{number}").label("topology.kubernetes.io/zone", "z").claimed_by(f"data-{number}"),
        pvc(f"data-{number}").bound(f"volume-{number}"),
        one("selects").select(key, f"value-{number}").resource(device, 1).image(f"image:{number}").port(1000 + number),
        one("near").affinity(key, label).node_affinity((f"nobody-{number}", "DoesNotExist", [])),
        one("apart").anti_affinity("kubernetes.io/hostname", label, weight=5).spread("rack", label, soft=True),
        one("spread").spread(key, label).tolerate(f"team-{number}", "x"),
        one("stored").pvc(f"data-{number}"),
        pod(f"waits-{number}").cpu("99"),
        one("hopeless").resource(f"example.com/none-{number}", 1),
        one("other").ns(space),
        one("filler").cpu("3").priority(1),
        one("urgent").cpu("4").priority(100 + number),
        pod_group(f"gang-{number}").gang(2).topology(key),
        *(one(f"member{i}").group(f"gang-{number}").cpu("200m") for i in range(2)),
        pod_group(f"short-{number}").gang(3),
        one("alone").group(f"short-{number}"),
        composite(f"tree-{number}").gang(1).topology("rack"),
        pod_group(f"leaf-{number}").gang(1).parent(f"tree-{number}"),
        one("leafy").group(f"leaf-{number}"),
        pod_group(f"large-{number}").gang(2),
        *(one(f"large{i}").group(f"large-{number}").cpu("9") for i in range(2)),
    ]  # fmt: skip


def churn(run: Cluster, first: int, last: int) -> None:
    for number in range(first, last):
        things = [builder.build() for builder in wave(number)]
        run.see(*things).step(1)
        for thing in things:
            meta = thing.metadata
            own = meta.namespace in ("", "default")
            run.gone(type(thing).__name__, meta.name if own else f"{meta.namespace}/{meta.name}")
        run.step(1)


def largest(run: Cluster, first: int, last: int) -> Counter[str]:
    """The most that each table ever held between waves: they grow and are tidied up in turns."""
    most: Counter[str] = Counter()
    for number in range(first, last, 7):
        churn(run, number, min(number + 7, last))
        most |= table_sizes(run.engine)
    return most


def ever_bound(run: Cluster) -> set[str]:
    return {decision.name for decision in run.log if isinstance(decision, Bind)}


def start() -> Cluster:
    run = Cluster(Unchecked())
    run.see(*(node(f"n{i}").cpu("4").label("rack", f"r{i}").label("kubernetes.io/hostname", f"n{i}") for i in range(4)))
    run.see(pod("waits").cpu("99")).step()
    return run


@pytest.fixture
def small(monkeypatch):
    """Whatever may be remembered up to a limit reaches it within the test."""
    forget_soon(monkeypatch)


def forget_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, limits in LIMITS.items():
        for name in limits:
            assert isinstance(getattr(module, name), int)
            monkeypatch.setattr(module, name, 16)
    monkeypatch.setattr(evaluations, "BUDGET", 0)


def test_what_is_gone_leaves_nothing_behind(small):
    run = start()
    for log in (
        run.engine.columns.log,
        run.engine.nominations.changes,
        run.engine.preemption.victim_index.changed_rows,
    ):
        log.keep = 100
    early = largest(run, 0, WAVES // 2)
    assert {"urgent", "selects", "member0", "leafy"} <= {name.partition("-")[0] for name in ever_bound(run)}
    late = largest(run, WAVES // 2, WAVES)
    Engine.validate(run.engine)
    more = WAVES // 4  # one entry in two waves
    grown = {
        name: (early[name], size) for name, size in late.items() if size > max(1.2 * early[name], early[name] + more)
    }
    assert grown == {}


def test_what_is_forgotten_changes_no_decision(monkeypatch):
    """Questions may come in between or not, limits may be high or low: the same events lead to the same decisions."""
    patient = start()
    churn(patient, 0, 30)
    forget_soon(monkeypatch)
    forgetful = start()
    churn(forgetful, 0, 30)
    assert forgetful.engine.interest.epoch > patient.engine.interest.epoch
    assert len(forgetful.engine.columns.labels) < len(patient.engine.columns.labels)
    assert forgetful.log == patient.log
