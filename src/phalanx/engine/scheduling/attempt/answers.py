"""What an attempt answers: placed, placed once these are evicted, or refused because. Values only."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from phalanx.engine.decisions import Decision
from phalanx.engine.framework import Code, Emit, Status, Wake
from phalanx.engine.framework.diagnosis import Diagnosis
from phalanx.engine.framework.evaluation import Evaluation
from phalanx.engine.groups.build import Built
from phalanx.engine.groups.expected_pods import ExpectedPlacement
from phalanx.engine.groups.trial import Assignment
from phalanx.engine.placement import SearchOutcome
from phalanx.engine.preemption.result import Planned
from phalanx.engine.preemption.single_pod import Candidate
from phalanx.engine.preemption.victim_index import EvictionUnit
from phalanx.engine.state.records import PodRecord
from phalanx.model.groups import Group


class Cause(enum.Enum):
    ROOM = "room"  # no node, or no placement of the tree
    RULES = "rules"  # there is room, but the pods' rules about each other are in the way
    EXTRAS = "extras"  # the minimum is met; whoever waits beyond it fits nowhere
    WHOLE = "whole"  # what is there would fit, what is to follow would not
    PLUGIN = "plugin"  # a plugin at a group point, Reserve or Permit
    HELD = "held"  # not tried at all: objects, members or gates
    TORN = "torn"  # members on nodes contradict the group's own rules
    ERROR = "error"  # a plugin failed


class Refused(msgspec.Struct, eq=False):
    cause: Cause
    message: str
    hopeless: bool = False  # no eviction can help
    notes: str = ""  # what PostFilter plugins and preemption add to the message
    decisions: tuple[Decision, ...] = ()  # what PostFilter plugins want done
    # of groups
    built: Built | None = None
    outcome: SearchOutcome | None = None
    releases: bool = False  # members bound in an attempt that cannot be completed have to be given back first
    no_plan: Planned | None = None  # what the search for victims said, where there was one
    again: bool = False  # no verdict: the cluster moved on too often while it was looked for
    gives_up: bool = False  # nodes that were promised to its pods are promised no longer
    # of pods
    evaluation: Evaluation | None = None
    diagnosis: Diagnosis | None = None
    nominate: str | None = None  # "" takes back what was promised; None: nothing changes
    alike: bool = False  # its twins need not be tried before something changes
    asks: Wake | None = None  # of the changes that make evictions possible only these matter; None: all
    leaving: Sequence[PodRecord] = ()  # wait until these, which are on their way out, are gone
    victims_go: bool = False  # an earlier answer's evictions are under way

    @property
    def text(self) -> str:
        return self.message + self.notes


@dataclass(frozen=True, slots=True, eq=False)
class Placed:
    assignment: Assignment
    built: Built | None = None  # of groups
    satisfied: Sequence[Group] = ()  # groups that have their minimum then
    expected_placements: Sequence[ExpectedPlacement] = ()  # where those go that are not bound yet: their room is kept


@dataclass(frozen=True, slots=True, eq=False)
class NominatedAfterPreemption:
    """There is no room now, and this is how to make it."""

    refused: Refused  # why not now, with what is to be said meanwhile
    units: Sequence[EvictionUnit]
    assignment: Assignment
    plan: Planned | Candidate  # with its cost
    expected_placements: Sequence[ExpectedPlacement] = ()  # as in Placed

    @property
    def victims(self) -> list[PodRecord]:
        """In the order of arrival within a unit: trials that took some away and back must not be told from others."""
        return [pod for unit in self.units for pod in sorted(unit.pods.values(), key=lambda pod: pod.order)]


Answer = Placed | NominatedAfterPreemption | Refused


def placement_text(node: str, units: Iterable[EvictionUnit]) -> str:
    """Return kube-scheduler's sentence about a single pod's preemption."""
    victims = sum(len(unit.pods) for unit in units)
    return f"found a potential placement for pod on node {node}, preempting {victims} victims"


def group_placement_text(kind: str, victims: Sequence[PodRecord]) -> str:
    return f"found a placement for {kind}, preempting {len(victims)} victims"


def carry_out(answer: Answer, emit: Emit) -> None:
    """What PostFilter plugins want done is decided now; their decisions have no ids yet."""
    refused = answer.refused if isinstance(answer, NominatedAfterPreemption) else answer
    for decision in refused.decisions if isinstance(refused, Refused) else ():
        fields = msgspec.structs.asdict(decision)
        del fields["id"]
        emit(type(decision), **fields)


def refused_by_plugin(status: Status, built: Built | None, head: str) -> Refused:
    text = f"{head}, {status.message or 'refused'} ({status.plugin})"
    return Refused(Cause.PLUGIN, text, hopeless=status.code is Code.UNRESOLVABLE, built=built)
