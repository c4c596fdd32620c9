"""Define the result of the search: a placement, a proof that there is none, or an exhausted budget."""

from __future__ import annotations

import enum
from dataclasses import dataclass

import msgspec

from phalanx.engine.placement.problem import Ints, Leaf, Subtree
from phalanx.model.groups.keys import HOSTNAME


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
    extra: bool = False  # the minimum of the tree runs; these are pods or child groups beyond it
    whole: bool = False  # of extra: a child group of which nothing runs


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


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def amount_word(resource: str, amount: float) -> str:
    """Format an amount: 5000 milli-cpu is 5; bytes get a unit."""
    if resource == "cpu":
        return f"{amount / 1000:g}"
    if resource == "memory" or resource.endswith("storage"):
        for unit, size in (("Ti", 2**40), ("Gi", 2**30), ("Mi", 2**20), ("Ki", 2**10)):
            if amount >= size and amount % (size / 4) == 0:
                return f"{amount / size:g}{unit}"
    return f"{amount:g}"


def domain_word(key: str) -> str:
    """Return the short name of a topology key: topology.kubernetes.io/zone -> zone, kubernetes.io/hostname -> node."""
    return "node" if key == HOSTNAME else key.rsplit("/", 1)[-1]


def domain_phrase(key: str, before: str = "") -> str:
    """Return a topology key after its preposition: in rack, on node; with `before`, in one rack or on a node."""
    return " ".join(("on" if key == HOSTNAME else "in", *filter(None, [before]), domain_word(key)))


def sentence(why: Certificate) -> str:
    """Return a sentence for the certificate.

    For example: needs 8 pods in one rack; best rack r7 fits 5 (limited by nvidia.com/gpu); 12 racks ruled out by taint
    x
    """
    noun = "child group" if why.composite else "pod"
    what = plural(why.needed, noun)
    if why.members < why.needed:
        there = "is" if why.members == 1 else "are"
        return f"needs {what}, but only {plural(why.members, noun)} {there} waiting"
    parts = [f"needs {what}{_where(why)}"]
    limited = f" (limited by {why.limiting})" if why.limiting else ""
    if why.key is not None and why.domains == 0:
        parts.append(f"no node in reach has the label {why.key}")
    elif why.together:
        best = f" {domain_phrase(why.key)} {why.best}" if why.key is not None and why.best else ""
        parts.append(f"each of them fits alone{best}, but not all side by side{limited}")
    else:
        best = f"best {domain_word(why.key)} {why.best} fits" if why.key is not None and why.best else "room for"
        parts.append(f"{best} {why.fits}{limited}")
    for out in why.ruled_out:
        noun = domain_word(why.key) if why.key is not None else "node"
        parts.append(f"{plural(out.domains, noun)} ruled out by {out.reason}")
    text = "; ".join(parts)
    if why.inner is not None:
        text += f": {why.inner.group} {sentence(why.inner)}"
    return text


def _where(why: Certificate) -> str:
    if why.key is None:
        return ""
    if why.pinned is not None:
        return f" {domain_phrase(why.key)} {why.pinned}, where its running members are"
    return f" {domain_phrase(why.key, 'one')}"
