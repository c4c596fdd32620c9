"""What the engine says about itself, as values: JSON for machines, the same sentences as conditions for people."""

from __future__ import annotations

import msgspec

from phalanx.engine.placement import Certificate


class _Value(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, gc=False):
    pass


class QueuePlace(_Value, frozen=True):
    """Where a root is in the queue."""

    place: str  # active, backoff, waiting, gated, attempt; "none": not queued (everything is placed)
    position: int = 0  # in the active queue, 1 is tried next
    attempts: int = 0
    until: str = ""  # backoff: tried again then; waiting: looked at again then even if nothing happens
    waits_for: list[str] = []  # kinds of change that wake it
    gate: str = ""  # the plugin that holds it
    message: str = ""  # what it says
    overtaken: str = ""  # how many younger units passed it, and what is reserved for it


class Level(_Value, frozen=True):
    """One group of the tree."""

    kind: str
    name: str
    depth: int = 0
    parent: str = ""
    policy: str = "basic"
    minimum: int = 1  # minCount of pods or minGroupCount of child groups
    known: int = 0  # members that count for the quorum
    placed: int = 0  # members that satisfy the minimum
    pending: int = 0
    gated: int = 0
    ready: bool = False  # quorum met: worth an attempt
    satisfied: bool = False
    topology: str = ""  # required key
    domains: list[str] = []  # where its members are
    disruption: str = "single"
    state: str = ""  # "Running 24 of 24"
    status: str = ""  # of its condition
    reason: str = ""
    message: str = ""


class RuledOutDomains(_Value, frozen=True):
    reason: str
    domains: int
    nodes: int


class Proof(_Value, frozen=True):
    """The pending certificate: the level at which the tree dies and how close the best domain comes."""

    group: str
    needed: int
    fits: int
    key: str = ""
    domains: int = 0
    best: str = ""
    limiting: str = ""
    pinned: str = ""
    together: bool = False
    ruled_out: list[RuledOutDomains] = []
    inner: Proof | None = None
    composite: bool = False  # needed and fits count child groups


class NodeReason(_Value, frozen=True):
    """How many nodes one filter rules out, and whether evictions could change that."""

    reason: str
    nodes: int
    plugin: str = ""
    evictions_help: bool = False


class Verdict(_Value, frozen=True):
    """Of an attempt (or of a trial now, which is taken back)."""

    # placed, impossible, exhausted, rules (no placement keeps the pods' rules), refused (by a plugin, or because what
    # is to follow would not fit), error, untried
    result: str
    message: str = ""
    proof: Proof | None = None
    expansions: int = 0


class Relaxation(_Value, frozen=True):
    """A change that was tried. `fits` None: the search gave up, it is not known."""

    change: str  # topology, members, nodes, filter
    text: str
    fits: bool | None
    checked: bool  # by the same search and the same filters; False: by counting alone
    group: str = ""
    to: str = ""


class PodLine(_Value, frozen=True):
    name: str
    state: str  # pending, assumed, running, succeeded, failed, leaving, foreign
    node: str = ""
    nominated: str = ""
    message: str = ""


class Preempting(_Value, frozen=True):
    """A preemption plan under way."""

    victims: list[str]  # still there
    total: int
    nodes: list[str] = []
    text: str = ""


class StoryLine(_Value, frozen=True):
    """Something that happened to a pod or group."""

    time: str
    what: str
    detail: str = ""  # a node, a message
    times: int = 1  # in a row
    of: str = ""  # "podgroup/ns/name" in the story of a member


class Why(_Value, frozen=True):
    """Everything about one pod or one root."""

    kind: str
    namespace: str
    name: str
    root: str  # podgroup/ns/name
    scheduled: bool
    summary: str  # the scheduler's own words, as in the condition
    headline: str = ""  # the same for a person: one plain sentence
    blockers: list[str] = []  # facts that rule out every node
    priority: int = 0
    queue: QueuePlace | None = None
    levels: list[Level] = []
    last: Verdict | None = None  # the last attempt
    now: Verdict | None = None  # a trial at the moment of asking
    node_reasons: list[NodeReason] = []
    nodes: int = 0  # in the cluster
    preemption: Preempting | None = None
    relaxations: list[Relaxation] = []
    pods: list[PodLine] = []
    story: list[StoryLine] = []  # how it got here, oldest first; the first things and the latest ones
    hints: list[str] = []  # what was probably meant


class Report(_Value, frozen=True):
    """The answer to `why`: one item, or one per root of a Workload."""

    kind: str
    namespace: str
    name: str
    scheduled: bool
    items: list[Why]


class NodeShare(_Value, frozen=True):
    node: str
    pods: int


class GroupPlace(_Value, frozen=True):
    group: str
    pods: int
    key: str = ""
    domain: str = ""
    nodes: list[NodeShare] = []
    ring_cost: int | None = None  # hops between consecutive ranks; None: its members have no ranks


class Would(_Value, frozen=True):
    """What would happen to one root of a manifest."""

    root: str
    fits: bool
    summary: str
    priority: int = 0
    pods: int = 0  # that would get a node
    wanted: int = 0
    places: list[GroupPlace] = []
    verdict: Verdict | None = None
    node_reasons: list[NodeReason] = []
    nodes: int = 0
    relaxations: list[Relaxation] = []
    evicts: list[str] = []  # pods ("ns/name") that the scheduler would have go to make room
    plan: PlanAnswer | None = None  # the same, with the reason for each and what it costs
    when: str = ""  # in words: when and where it would start first; "" if that was not asked
    starts: str = ""  # RFC 3339; "" if it fits now, at no time, or behind pods without a known end


class Outlook(_Value, frozen=True):
    """The answer to `whatif`: each root after those before it were placed."""

    fits: bool
    items: list[Would]
    notes: list[str] = []


def proof_of(why: Certificate | None) -> Proof | None:
    if why is None:
        return None
    return Proof(
        group=why.group,
        needed=why.needed,
        fits=why.fits,
        key=why.key or "",
        domains=why.domains,
        best=why.best or "",
        limiting=why.limiting or "",
        pinned=why.pinned or "",
        together=why.together,
        ruled_out=[RuledOutDomains(out.reason, out.domains, out.nodes) for out in why.ruled_out],
        inner=proof_of(why.inner),
        composite=why.composite,
    )


class VictimLine(_Value, frozen=True):
    name: str  # "pod ns/name", "PodGroup ns/name": what is evicted as a whole
    pods: int
    priority: int
    why: str  # what fails if this one is spared


class Price(_Value, frozen=True):
    budget_violations: int = 0
    highest_priority: int | None = None  # of an evicted unit; None: nothing is evicted
    stopped_pods: int = 0  # evicted, or left behind in a gang below its minimum
    pods: int = 0  # evicted
    broken_gangs: int = 0
    workloads: int = 0  # gangs, and groups evicted as a whole, that lose a pod
    lost_seconds: float = 0.0


class PlanAnswer(_Value, frozen=True):
    """What would be evicted, without doing it."""

    root: str
    result: str  # fits, plan, underWay, hopeless, gaveUp, none
    summary: str
    victims: list[VictimLine] = []
    places: list[NodeShare] = []  # where members would go
    cost: Price | None = None
    lower_bound: Price | None = None
    optimal: bool = False  # proved in everything but work lost
    expansions: int = 0
    proved: list[str] = []  # parts of the cost that cannot be less, the most important first
    ring_cost: int | None = None  # hops between consecutive ranks of all its groups; None: no member has a rank
