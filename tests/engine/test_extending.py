"""Plugins of others: plain, vectorised, waiting, refusing, and broken ones."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import phalanx.engine
from phalanx.base.errors import ConfigProblem
from phalanx.engine import decisions as d
from phalanx.engine.engine import Engine
from phalanx.engine.explain import why
from phalanx.engine.framework import Code, Depends, Finding, PostFilterResult, Status, Traits, Wake
from phalanx.engine.framework.adapters import ByMax
from phalanx.engine.framework.settings import EngineSettings, PluginUse, ProfileSettings
from phalanx.engine.plugins.registry import DEFAULT_PLUGINS
from phalanx.testing import Cluster
from phalanx.testing.builders import node, pod, service
from support.verdicts import binds, no_victims, not_helpful


def with_plugin(plugin, **use):
    uses = (*(PluginUse(name) for name in DEFAULT_PLUGINS), PluginUse("Mine", **use))
    settings = EngineSettings(profiles=(ProfileSettings(plugins=uses),))
    return Cluster(Engine(settings, plugins={"Mine": lambda args, handle: plugin}))


class EvenNodesOnly:
    name = "Mine"

    def filter(self, shape, node):
        if int(node.name[1:]) % 2:
            return Status(Code.UNRESOLVABLE, ("node(s) were odd",))
        return None


def test_a_plain_filter_in_a_few_lines():
    run = with_plugin(EvenNodesOnly()).see(node("n1"), node("n2"), pod("a"))
    assert binds(run.step()) == {"a": "n2"}
    run.see(node("n2").unschedulable(), pod("b"))
    run.step()
    assert run.messages("b") == [
        not_helpful("0/2 nodes are available: 1 node(s) were odd, 1 node(s) were unschedulable.")
    ]


class Favourite:
    name = "Mine"
    normaliser = ByMax()

    def score(self, shape, node):
        return 500.0 if node.name == "n3" else 0.0


def test_a_plain_score_with_a_weight():
    run = with_plugin(Favourite(), weight=50).see(node("n1"), node("n2"), node("n3"), pod("a"))
    assert binds(run.step()) == {"a": "n3"}


class AtMostTwo:
    """Vectorised: no more than two pods on a node."""

    name = "Mine"
    traits = Traits(depends=Depends.USAGE | Depends.NODE)

    def mask(self, shape, columns):
        return columns.used[3, : columns.n] < 2

    def explain(self, shape, columns, rows):
        return [Finding(rows, "node(s) had two pods already")]


def test_a_vectorised_filter_follows_placements():
    run = with_plugin(AtMostTwo()).see(node("n1"), node("n2"), *(pod(f"p{i}") for i in range(5)))
    assert sorted(binds(run.step()).values()) == ["n1", "n1", "n2", "n2"]
    assert run.messages("p4") == [no_victims("0/2 nodes are available: 2 node(s) had two pods already.")]
    run.gone("Pod", "p0")
    assert len(binds(run.step())) == 1


class Raises:
    name = "Mine"

    def filter(self, shape, node):
        raise ZeroDivisionError("oops")


class WrongMask(AtMostTwo):
    def mask(self, shape, columns):
        return np.ones(3)


class BadScore:
    name = "Mine"

    def score(self, shape, node):
        return 1e9


class RaisesInPreFilter:
    name = "Mine"

    def pre_filter(self, shape):
        raise KeyError("gone")


class AnswersNonsense:
    name = "Mine"

    def filter(self, shape, node):
        return True


class AnswersNonsenseInPreFilter:
    name = "Mine"

    def pre_filter(self, shape):
        return 42


class RaisesInReserve:
    name = "Mine"

    def reserve(self, record, row):
        raise RuntimeError("no ledger")

    def unreserve(self, record, row):
        raise RuntimeError("no ledger either")


class Exits:
    name = "Mine"

    def filter(self, shape, node):
        sys.exit(3)


class InterruptsInPreFilter:
    name = "Mine"

    def pre_filter(self, shape):
        raise KeyboardInterrupt


class ExitsInReserve:
    name = "Mine"

    def reserve(self, record, row):
        raise SystemExit("bye")

    def unreserve(self, record, row):
        raise SystemExit("bye again")


@pytest.mark.parametrize(
    ("plugin", "text"),
    [
        (Exits(), "plugin Mine: SystemExit: 3"),
        (InterruptsInPreFilter(), "plugin Mine: KeyboardInterrupt"),
        (ExitsInReserve(), "plugin Mine: SystemExit: bye"),
        (Raises(), "plugin Mine: ZeroDivisionError: oops"),
        (WrongMask(), "plugin Mine: mask() must return 1 booleans"),
        (BadScore(), "plugin Mine: score() returned 1000000000.0, outside 0..100"),
        (RaisesInPreFilter(), "plugin Mine: KeyError: 'gone'"),
        (AnswersNonsense(), "plugin Mine: filter() must return a Status or None, got bool"),
        (AnswersNonsenseInPreFilter(), "plugin Mine: pre_filter() must return a Status or None, got int"),
        (RaisesInReserve(), "plugin Mine: RuntimeError: no ledger"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_broken_plugin_fails_the_attempt_with_its_name_and_the_pod_is_tried_again(plugin, text):
    run = with_plugin(plugin).see(node("n"), pod("a"))
    said = [each for each in run.step() if isinstance(each, d.SetPodCondition)]
    assert [each.reason for each in said] == ["SchedulerError"]
    assert said[0].message.startswith(text)
    assert run.bound == {} and run.engine.columns.used[3, 0] == 0
    assert run.engine.next_wake() == run.now + 1.0
    run.step(1.0)
    assert run.engine.queue.units["pod/default/a"].attempts == 2


class Turnstile:
    """Permit: holds every pod until asked otherwise."""

    name = "Mine"

    def __init__(self):
        self.answer = Status(Code.WAIT, ("not yet",), timeout=30.0)
        self.undone = []

    def reserve(self, record, row):
        return None

    def unreserve(self, record, row):
        self.undone.append(record.name)

    def permit(self, record, row):
        return self.answer


def test_permit_holds_a_pod_and_its_room_until_it_is_allowed():
    plugin = Turnstile()
    run = with_plugin(plugin).see(node("n").cpu("1"), pod("a").cpu("1"), pod("b").cpu("1"))
    assert binds(run.step()) == {} and run.engine.columns.used[0, 0] == 1000
    plugin.answer = None
    assert binds(run.step()) == {"a": "n"}


def test_permit_times_out_and_the_pod_goes_back():
    plugin = Turnstile()
    run = with_plugin(plugin).see(node("n").cpu("1"), pod("a").cpu("1"))
    run.step()
    run.step(0.1)
    assert run.engine.next_wake() == run.now + 29.9
    run.step(29.9)
    assert plugin.undone == ["a"] and run.messages("a") == ["timed out waiting for permit (not yet)"]
    assert list(run.engine.scheduler.binding.permit_waits) == [(30.0, "Unschedulable")]
    assert run.engine.columns.used[0, 0] == 0


def test_a_pod_deleted_while_permit_holds_it_is_unreserved():
    plugin = Turnstile()
    run = with_plugin(plugin).see(node("n").cpu("1"), pod("a").cpu("1"))
    run.step()
    run.gone("Pod", "a")
    assert plugin.undone == ["a"] and run.engine.columns.used[0, 0] == 0


class Moody:
    """PreEnqueue: closed until a node appears."""

    name = "Mine"
    traits = Traits(gate_wakes=Wake.NODE_ADDED)
    open = False

    def pre_enqueue(self, record):
        return None if self.open else Status(Code.UNRESOLVABLE, ("closed",))


def test_a_gatekeeper_is_asked_again_after_the_changes_it_named():
    plugin = Moody()
    run = with_plugin(plugin).see(node("n"), pod("a"))
    assert binds(run.step()) == {}
    plugin.open = True
    run.see(node("n").label("x", "y"))
    assert binds(run.step()) == {}
    run.see(node("m"))
    assert len(binds(run.step())) == 1


class ByAnnotation:
    """Looks at more of a pod than a shape holds, so it signs."""

    name = "Mine"

    def sign(self, pod):
        return pod.metadata.annotations.get("team")

    def filter(self, shape, node):
        wanted = shape.signatures[self.name]
        if wanted and node.labels.get("team") != wanted:
            return Status(Code.UNSCHEDULABLE, ("node(s) belong to another team",))
        return None


def test_a_signing_plugin_tells_pods_apart_that_look_alike():
    run = with_plugin(ByAnnotation()).see(
        node("n1").label("team", "red"), node("n2").label("team", "blue"),
        pod("a").annotate("team", "blue"), pod("b").annotate("team", "red"), pod("c").annotate("team", "green"),
    )  # fmt: skip
    assert binds(run.step()) == {"a": "n2", "b": "n1"}
    assert run.messages("c") == [no_victims("0/2 nodes are available: 2 node(s) belong to another team.")]


class GpuKeeper:
    """Handles only pods that ask for a GPU, and reads the outcomes of Binds."""

    name = "Mine"
    traits = Traits(
        handles=lambda shape: any("nvidia.com/gpu" in (c.resources.requests or {}) for c in shape.pod.spec.containers),
        outcomes=(d.Bind,),
    )

    def __init__(self):
        self.called, self.outcomes = [], set()

    def pre_enqueue(self, record):
        self.called.append(("preEnqueue", record.name))

    def pre_filter(self, shape):
        self.called.append(("preFilter", shape.pod.metadata.name))

    def reserve(self, record, row):
        self.called.append(("reserve", record.name))

    def unreserve(self, record, row):
        pass

    def permit(self, record, row):
        self.called.append(("permit", record.name))

    def pre_bind(self, record, row, emit):
        self.called.append(("preBind", record.name))

    def outcome(self, decision, event):
        self.outcomes.add(type(decision))


def test_a_plugin_is_called_only_for_the_pods_it_handles():
    plugin = GpuKeeper()
    run = with_plugin(plugin).see(node("n1").gpu(1), pod("plain"), pod("gpu").gpu(1))
    run.see(pod("second").gpu(1))
    run.step()
    run.step()
    assert {name for _, name in plugin.called} == {"gpu", "second"}
    assert {point for point, name in plugin.called if name == "gpu"} == {
        "preEnqueue", "preFilter", "reserve", "permit", "preBind"
    }  # fmt: skip
    assert plugin.outcomes == {d.Bind}  # second does not fit: its condition was written, too


def test_an_unknown_plugin_is_refused_with_its_place():
    settings = EngineSettings(profiles=(ProfileSettings(plugins=(PluginUse("NoSuch"),)),))
    with pytest.raises(ConfigProblem, match="NoSuch"):
        Engine(settings)


def test_two_profiles_schedule_their_own_pods_differently():
    least = ProfileSettings("least", tuple(PluginUse(name) for name in DEFAULT_PLUGINS))
    most = ProfileSettings(
        "most",
        tuple(PluginUse(name) for name in DEFAULT_PLUGINS),
        {"NodeResourcesFit": {"scoringStrategy": {"type": "MostAllocated"}}},
    )
    run = Cluster(Engine(EngineSettings(profiles=(least, most))))
    run.see(node("n1").cpu("4"), node("n2").cpu("4"), pod("x").cpu("1").mem("1Gi").node("n1"))
    run.see(pod("a").cpu("1").mem("1Gi").scheduler("most"), pod("b").cpu("1").mem("1Gi").scheduler("least"))
    assert binds(run.step()) == {"a": "n1", "b": "n2"}


class Landlord:
    """PostFilter: promises a node once a pod of lower priority is there."""

    name = "Mine"
    traits = Traits(helps_after=Wake.POD_PLACED)

    def __init__(self):
        self.asked = 0

    def helps(self, shape, priority, change):
        return change.record.priority < priority

    def post_filter(self, record, diagnosis):
        self.asked += 1
        assert diagnosis.message == "0/1 nodes are available: 1 Insufficient cpu."
        return PostFilterResult(Status(Code.UNSCHEDULABLE), message="preemption: nobody to evict.", hopeless=True)


def test_a_post_filter_adds_its_words_and_is_asked_again_when_it_may_help():
    plugin = Landlord()
    run = with_plugin(plugin).see(node("n").cpu("1"), *(pod(f"p{i}").cpu("2").priority(5) for i in range(3)))
    run.step()
    assert plugin.asked == 1
    ours = not_helpful("0/1 nodes are available: 1 Insufficient cpu.")
    assert run.messages("p2") == [f"{ours}, preemption: nobody to evict."]
    run.see(pod("same").cpu("100m").priority(5)).step()
    assert plugin.asked == 1
    run.see(pod("low").cpu("100m")).step()
    assert plugin.asked == 2


class Evictor:
    """PostFilter: evicts every pod in the way, whatever it costs."""

    name = "Mine"

    def post_filter(self, record, diagnosis):
        return PostFilterResult(
            Status(Code.SUCCESS), decisions=(d.Evict(0, "default", "old", "uid-old", reason="Mine"),)
        )


def test_what_a_post_filter_wants_done_is_part_of_its_answer():
    """So a question can ask it too, and nothing happens."""
    run = with_plugin(Evictor()).see(node("n").cpu("1"), pod("old").uid("uid-old").cpu("1").node("n"))
    run.see(pod("new").cpu("1"))
    why(run.engine, "Pod", "default", "new")
    assert not run.engine.outbox.decisions
    evictions = [decision for decision in run.step() if isinstance(decision, d.Evict)]
    assert [(each.name, each.reason) for each in evictions] == [("old", "Mine")]
    assert evictions[0].id > 0 and run.bound == {"new": "n"}


class OddEnqueue:
    name = "Mine"

    def pre_enqueue(self, record):
        return "no idea"


class OddBind:
    name = "Mine"

    def bind(self, record, node, emit):
        raise OSError("no wire")


class OddEars:
    name = "Mine"

    def observe(self, kind, old, new):
        raise RuntimeError("deaf")

    def outcome(self, decision, event):
        raise RuntimeError("deaf")

    def sign(self, pod):
        return []


def test_a_nonsensical_gatekeeper_fails_the_pod_not_the_engine():
    run = with_plugin(OddEnqueue()).see(node("n"), pod("a"))
    run.step()
    assert run.messages("a") == ["plugin Mine: answered str"] and run.bound == {}


def test_a_binder_that_raises_gives_the_room_back():
    uses = (*(PluginUse(name) for name in DEFAULT_PLUGINS if name != "DefaultBinder"), PluginUse("Mine"))
    settings = EngineSettings(profiles=(ProfileSettings(plugins=uses),))
    run = Cluster(Engine(settings, plugins={"Mine": lambda args, handle: OddBind()})).see(node("n"), pod("a"))
    run.step()
    assert (
        run.messages("a")[0].startswith("plugin Mine: OSError: no wire (test_extending.py:")
        and run.engine.columns.used[3, 0] == 0
    )


def test_a_plugin_that_cannot_listen_harms_no_other_plugin():
    run = with_plugin(OddEars()).see(node("n"), service("s"), pod("a"))
    assert binds(run.step()) == {"a": "n"}
    assert any(fault.startswith("plugin Mine: RuntimeError: deaf (test_extending.py:") for fault in run.engine.faults)


class MisspeltWake:
    name = "Mine"
    wake_on = Wake.NODE


class MisspeltTraits:
    name = "Mine"
    trait = Traits(counted=True)


class NotTraits:
    name = "Mine"
    traits = {"counted": True}  # noqa: RUF012


class NotAWake:
    name = "Mine"
    traits = Traits(wakes_on=3)  # type: ignore[arg-type]


class OutOfPlace:
    name = "Mine"
    wakes_on = Wake.NODE


@pytest.mark.parametrize(
    ("plugin", "says"),
    [
        (MisspeltWake, "unknown trait 'wake_on': known are by_taints, by_terms"),
        (MisspeltTraits, "unknown trait 'trait'"),
        (NotTraits, "must be a Traits, got dict"),
        (NotAWake, "wakes_on must be a Wake, got int"),
        (OutOfPlace, "'wakes_on' belongs into it: traits = Traits"),
    ],
)
def test_a_trait_that_would_be_without_effect_is_an_error_at_the_start(plugin, says):
    with pytest.raises(ConfigProblem, match=says):
        with_plugin(plugin())


def test_the_core_knows_no_plugin_by_name():
    root = Path(phalanx.engine.__file__).parent
    names = [name for name in DEFAULT_PLUGINS if name not in ("PrioritySort",)]
    rooms = ("state", "placement", "preemption", "groups", "scheduling", "explain")
    for path in (path for room in rooms for path in sorted((root / room).rglob("*.py"))):
        code = "\n".join(line.partition("#")[0] for line in path.read_text().splitlines())
        found = [name for name in names if f'"{name}"' in code]
        assert not found, f"{path.name} names {found}"


def test_a_pod_that_only_time_brought_back_is_marked_until_it_fails_again():
    class Closed:
        name = "Closed"
        closed = True

        def pre_filter(self, shape):
            return Status(Code.UNSCHEDULABLE, ("closed",)) if self.closed else None

    plugin = Closed()
    run = with_plugin(plugin).see(node("n").cpu("1"), pod("a").cpu("1"))
    run.step()
    unit = run.engine.queue.units["pod/default/a"]
    run.step(run.engine.next_wake() - run.now)  # the limit without an event: closed still
    assert unit.attempts == 2 and not unit.flushed
    plugin.closed = False
    run.step(run.engine.next_wake() - run.now)
    assert run.bound == {"a": "n"} and unit.flushed
