"""Answers of an attempt: placed, nominated after preemption, or refused. Values only."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from phalanx.engine.decisions import Decision
from phalanx.engine.framework import Code, Emit, Status, Wake
from phalanx.engine.framework.diagnosis import Diagnosis
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
    RULES = "rules"  # there is room, but affinity, spreading or volume rules of the pods prevent it
    EXTRAS = "extras"  # the minimum is met; no node has room for the pods beyond it
    WHOLE = "whole"  # there is room for the existing pods, but not for the expected ones
    PLUGIN = "plugin"  # a group plugin refused
    PERMIT = "permit"  # a Reserve or Permit plugin refused
    HELD = "held"  # not tried: objects, members or gates are missing
    PARTIAL = "partial"  # members on nodes contradict the group's own rules
    ERROR = "error"  # a plugin failed


@dataclass(frozen=True, slots=True, eq=False)
class GroupSearch:
    """Why a group does not fit: the problem and the outcome of its search."""

    built: Built
    outcome: SearchOutcome | None = None  # None: the search was not the reason


@dataclass(frozen=True, slots=True, eq=False)
class PreemptionResult:
    """The plan of a preemption for a unit; nothing is evicted yet."""

    message: str = ""  # added to the unit's message
    plan: Planned | Candidate | None = None  # with its cost, or why there is none
    units: Sequence[EvictionUnit] = ()  # the victims
    assignment: Assignment = field(default_factory=list)
    nominate: str | None = None  # node of a single pod; "" clears the nominations of the unit; None keeps them
    same_for_class: bool = False  # units of the same equivalence class get the same result until something changes
    helpful_changes: Wake | None = None  # of the changes after which preemption may help, only these matter; None: all
    waits: bool = False  # for victims of an earlier plan that are terminating
    leaving: Sequence[PodRecord] = ()  # terminating pods that are not victims of a known plan

    @property
    def found(self) -> bool:
        return bool(self.units or self.assignment)


class Refused(msgspec.Struct, eq=False):
    cause: Cause
    message: str
    evidence: Diagnosis | GroupSearch | None = None  # None: it was not searched, or a plugin failed
    hopeless: bool = False  # no eviction can help
    reason: str = ""  # reason of the pods' condition; "": Unschedulable
    reserved: int = 0  # number of other units for which room is reserved
    notes: str = ""  # what PostFilter plugins and preemption add to the message
    decisions: tuple[Decision, ...] = ()  # decisions that PostFilter plugins asked for
    preemption: PreemptionResult | None = None  # where it was tried
    nominate: str | None = None  # as in PreemptionResult; a PostFilter plugin may have set it
    same_for_class: bool = False  # as in PreemptionResult
    releases: bool = False  # members bound in an attempt that cannot be completed have to be evicted first
    again: bool = False  # no verdict: the cluster changed too often during the search

    @property
    def text(self) -> str:
        return self.message + self.notes

    @property
    def diagnosis(self) -> Diagnosis | None:
        return self.evidence if isinstance(self.evidence, Diagnosis) else None

    @property
    def built(self) -> Built | None:
        return self.evidence.built if isinstance(self.evidence, GroupSearch) else None

    @property
    def outcome(self) -> SearchOutcome | None:
        return self.evidence.outcome if isinstance(self.evidence, GroupSearch) else None


@dataclass(frozen=True, slots=True, eq=False)
class Placed:
    assignment: Assignment
    built: Built | None = None  # of groups
    satisfied: Sequence[Group] = ()  # groups whose minimum this placement satisfies
    expected_placements: Sequence[ExpectedPlacement] = ()  # places reserved for expected pods
    wait: Status | None = None  # of a single pod: a Permit plugin delays its Bind


@dataclass(frozen=True, slots=True, eq=False)
class NominatedAfterPreemption:
    """The unit fits once the victims are gone."""

    refused: Refused  # why it does not fit now; reported until the victims are gone
    units: Sequence[EvictionUnit]
    assignment: Assignment
    plan: Planned | Candidate  # with its cost
    expected_placements: Sequence[ExpectedPlacement] = ()  # as in Placed

    @property
    def victims(self) -> list[PodRecord]:
        """Return the victims, in the order of arrival within an eviction unit: trials must not change the order."""
        return [pod for unit in self.units for pod in sorted(unit.pods.values(), key=lambda pod: pod.order)]


Answer = Placed | NominatedAfterPreemption | Refused


def placement_text(node: str, units: Iterable[EvictionUnit]) -> str:
    """Return kube-scheduler's sentence about a single pod's preemption."""
    victims = sum(len(unit.pods) for unit in units)
    return f"found a potential placement for pod on node {node}, preempting {victims} victims"


def group_placement_text(kind: str, victims: Sequence[PodRecord]) -> str:
    return f"found a placement for {kind}, preempting {len(victims)} victims"


def carry_out(answer: Answer, emit: Emit) -> None:
    """Emit the decisions that PostFilter plugins asked for; they have no ids yet."""
    refused = answer.refused if isinstance(answer, NominatedAfterPreemption) else answer
    for decision in refused.decisions if isinstance(refused, Refused) else ():
        fields = msgspec.structs.asdict(decision)
        del fields["id"]
        emit(type(decision), **fields)


def refused_by_plugin(status: Status, built: Built, head: str) -> Refused:
    text = f"{head}, {status.message or 'refused'} ({status.plugin})"
    return Refused(Cause.PLUGIN, text, GroupSearch(built), hopeless=status.code is Code.UNRESOLVABLE)
