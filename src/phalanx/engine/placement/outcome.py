"""What the search answers: a placement, a proof that there is none, or that its budget ran out."""

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
    """counts[i] pods of one shape of one leaf go to nodes[i]."""

    leaf: Leaf
    shape: int
    nodes: Ints
    counts: Ints


class RuledOut(msgspec.Struct, frozen=True):
    """Domains (or nodes, where there is no key) in which not a single member is allowed, by dominant reason."""

    reason: str
    domains: int
    nodes: int


class Certificate(msgspec.Struct, frozen=True):
    """Why nothing fits: the group and level where it dies and how close the best domain comes."""

    group: str
    composite: bool
    key: str | None  # topology key of that level, None = the whole area left by the parents
    needed: int  # pods (leaf) or child groups (composite)
    fits: int  # how many of them fit in the best domain
    domains: int  # domains looked at
    best: str | None  # name of the best domain
    limiting: str | None  # resource or rule that ends first in the best domain
    ruled_out: tuple[RuledOut, ...] = ()
    together: bool = False  # every one of them fits alone, they do not fit side by side
    pinned: str | None = None  # the domain that running members dictate
    inner: Certificate | None = None  # the child that fails first in the best domain
    members: int = 0  # pods or child groups there are to place


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
