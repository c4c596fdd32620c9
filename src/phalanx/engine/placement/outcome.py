"""Define the result of the search: a placement, a proof that there is none, or an exhausted budget."""

from __future__ import annotations

import enum
from dataclasses import dataclass

import msgspec

from phalanx.engine.placement.problem import Ints, Leaf, Subtree


class SearchVerdict(enum.Enum):
    PLACED = "placed"
    IMPOSSIBLE = "impossible"  # proved for the free capacity of the problem
    EXHAUSTED = "exhausted"  # the budget ended before a placement or a proof was found


@dataclass(slots=True, frozen=True, eq=False)
class Share:
    """Assign counts[i] pods of one shape of one leaf to nodes[i]."""

    leaf: Leaf
    shape: int
    nodes: Ints
    counts: Ints


class RuledOut(msgspec.Struct, frozen=True):
    """Count domains (or nodes, without a key) in which no member is allowed, by dominant reason."""

    reason: str
    domains: int
    nodes: int


class Certificate(msgspec.Struct, frozen=True):
    """Explain why nothing fits: the group and level that fail, and how many fit in the best domain."""

    group: str
    composite: bool
    key: str | None  # topology key of that level, None = the whole area left by the parents
    needed: int  # pods (leaf) or child groups (composite)
    fits: int  # how many of them fit in the best domain
    domains: int  # domains considered
    best: str | None  # name of the best domain
    limiting: str | None  # resource or rule that limits the best domain
    ruled_out: tuple[RuledOut, ...] = ()
    together: bool = False  # each of them fits alone, but not all of them together
    pinned: str | None = None  # the domain that running members dictate
    inner: Certificate | None = None  # the child that fails first in the best domain
    members: int = 0  # pods or child groups to place


class SearchOutcome(msgspec.Struct, eq=False):
    verdict: SearchVerdict
    expansions: int
    shares: list[Share] = msgspec.field(default_factory=list)
    satisfied: set[int] = msgspec.field(default_factory=set)  # id() of groups whose minimum is met
    domains: dict[int, tuple[str, int]] = msgspec.field(default_factory=dict)  # id(group) -> (key, domain id) chosen
    certificate: Certificate | None = None

    @property
    def placed(self) -> bool:
        return self.verdict is SearchVerdict.PLACED

    def satisfies(self, group: Subtree) -> bool:
        return id(group) in self.satisfied
