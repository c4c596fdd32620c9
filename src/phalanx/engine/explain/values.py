"""Define the answers as values: JSON for programs, and the same sentences as conditions for users."""

from __future__ import annotations

import msgspec

from phalanx.engine.placement import Certificate


class _Value(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, gc=False):
    pass


class PendingReason(_Value, frozen=True):
    """Why a unit is pending, as of its last attempt."""

    reason: str  # for programs: Insufficient, NodeSelector, Taints, MembersMissing, …
    words: str  # the same in two or three words
    headline: str  # the same as one plain sentence
    tried: float = 0.0  # seconds since the epoch, the attempt it is from; 0: none
    resource: str = ""  # the resource that is short


class QueuePlace(_Value, frozen=True):
    """Where a scheduling unit is in the queue."""

    place: str  # active, backoff, waiting, gated, attempt; "none": not queued (everything is placed)
    position: int = 0  # in the active queue, 1 is tried next
    attempts: int = 0
    until: str = ""  # backoff: time of the retry; waiting: time of the retry even if nothing changes
    waits_for: list[str] = []  # kinds of change that wake it
    gate: str = ""  # the plugin that gates it
    message: str = ""  # the message of that plugin
    overtaken: str = ""  # how many younger units overtook it, and what is reserved for it


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
    ready: bool = False  # quorum met: can be attempted
    satisfied: bool = False
    topology: str = ""  # required topology key
    domains: list[str] = []  # domains of its members
    disruption: str = "single"
    lost: str = ""  # members lost and not replaced, by cause
    state: str = ""  # "Running 24 of 24"
    revision: str = ""  # of the workload it was made for; two exist while the workload rolls out
    settings: list[str] = []  # what else its object asks for, in words
    status: str = ""  # status of its condition
    reason: str = ""
    message: str = ""


class RuledOutDomains(_Value, frozen=True):
    reason: str
    domains: int
    nodes: int


class Proof(_Value, frozen=True):
    """The pending certificate: the level at which the tree fails and how close the best domain comes."""

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
    extra: bool = False  # the minimum of the tree runs; these are pods or child groups beyond it
    whole: bool = False  # of extra: a child group of which nothing runs


class NodeReason(_Value, frozen=True):
    """How many nodes one filter rules out, and whether evictions could change that."""

    reason: str
    nodes: int
    plugin: str = ""
    evictions_help: bool = False


class Verdict(_Value, frozen=True):
    """Result of an attempt, or of a trial now, which is undone."""

    # placed, impossible, exhausted, rules (no placement satisfies the pods' rules), refused (by a plugin, or because
    # expected pods would not fit), error, untried
    result: str
    message: str = ""
    proof: Proof | None = None
    expansions: int = 0
    at: float = 0.0  # seconds since the epoch; 0: at the time of the query
    reserved: int = 0  # number of other units for which room is reserved


class Relaxation(_Value, frozen=True):
    """A change that was tried. `fits` None: the search gave up, so it is unknown."""

    change: str  # topology, members, nodes, filter
    text: str
    fits: bool | None
    checked: bool  # by the same search and the same filters; False: by counting resources only
    group: str = ""
    to: str = ""
    reason: str = ""  # of a filter, for programs: Taints, NodeSelector, Cordoned, …
    how: str = ""  # how to apply it, where editing the object is not enough


class PodLine(_Value, frozen=True):
    name: str
    state: str  # pending, assumed, running, succeeded, failed, leaving, foreign
    node: str = ""
    nominated: str = ""
    message: str = ""


class Preempting(_Value, frozen=True):
    """A preemption plan under way."""

    victims: list[str]  # victims that still exist
    total: int
    nodes: list[str] = []
    text: str = ""


class HistoryEntry(_Value, frozen=True):
    """One entry in the history of a pod or group."""

    time: str
    what: str
    detail: str = ""  # a node, a message
    times: int = 1  # number of consecutive repeats
    of: str = ""  # "podgroup/ns/name" in the history of a member


class Why(_Value, frozen=True):
    """Everything about one pod or one scheduling unit."""

    kind: str
    namespace: str
    name: str
    root: str  # podgroup/ns/name
    scheduled: bool
    summary: str  # the scheduler's message, as in the condition
    headline: str = ""  # the same for users: one plain sentence
    blockers: list[str] = []  # facts that rule out every node
    priority: int = 0
    queue: QueuePlace | None = None
    levels: list[Level] = []
    last: Verdict | None = None  # the last attempt
    now: Verdict | None = None  # a trial at the time of the query
    node_reasons: list[NodeReason] = []
    nodes: int = 0  # in the cluster
    preemption: Preempting | None = None
    run_time: str = ""  # how long it is expected to run, and from where that is known
    relaxations: list[Relaxation] = []
    pods: list[PodLine] = []
    pod_count: int = 0  # of all its pods: `pods` does not list those of a large group
    story: list[HistoryEntry] = []  # its history, oldest first; the first entries and the latest ones
    hints: list[str] = []  # what was probably intended


class Report(_Value, frozen=True):
    """The answer to `why`: one item, or one per scheduling unit of a Workload."""

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


class WhatIfUnit(_Value, frozen=True):
    """What would happen to one scheduling unit of a manifest."""

    root: str
    fits: bool  # it would start: all its pods, or those of its minimums, get a node
    summary: str  # the scheduler's message, as in the condition
    headline: str = ""  # the same for users: one plain sentence; "" if it fits
    blockers: list[str] = []  # facts that rule out every node
    priority: int = 0
    pods: int = 0  # pods that would get a node
    wanted: int = 0
    places: list[GroupPlace] = []
    verdict: Verdict | None = None
    node_reasons: list[NodeReason] = []
    nodes: int = 0
    relaxations: list[Relaxation] = []
    evicts: list[str] = []  # pods ("ns/name") that the scheduler would preempt
    plan: PlanAnswer | None = None  # the same, with the reason for each and the cost
    when: str = ""  # text: when and where it would start at the earliest; "" if that was not asked
    starts: str = ""  # RFC 3339; "" if it fits now, never, or behind pods without a known end
    devices: list[str] = []  # "driver/pool/device" that its claims would get
    hints: list[str] = []  # why its claims get no devices: one line per request


class WhatIfAnswer(_Value, frozen=True):
    """The answer to `whatif`: each scheduling unit is tried after the earlier ones are placed."""

    fits: bool  # every pod would get a node
    items: list[WhatIfUnit]
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
        extra=why.extra,
        whole=why.whole,
    )


class VictimLine(_Value, frozen=True):
    name: str  # "pod ns/name", "PodGroup ns/name": what is evicted as a whole
    pods: int
    priority: int | None = None  # None: of pods in namespaces that the caller may not read
    why: str = ""  # what fails if this one is reprieved
    devices: list[str] = []  # "driver/pool/device" that it would free


class Price(_Value, frozen=True):
    budget_violations: int = 0
    highest_priority: int | None = None  # of an evicted unit; None: nothing is evicted
    stopped_pods: int = 0  # evicted, or left behind in a gang below its minimum
    pods: int = 0  # evicted pods
    broken_gangs: int = 0
    workloads: int = 0  # gangs, and groups evicted as a whole, that lose a pod
    lost_seconds: float = 0.0


class PlanAnswer(_Value, frozen=True):
    """What would be preempted, without doing it."""

    root: str
    result: str  # fits, plan, underWay, hopeless, gaveUp, none
    summary: str
    victims: list[VictimLine] = []
    places: list[NodeShare] = []  # nodes on which members would be placed
    cost: Price | None = None
    lower_bound: Price | None = None
    optimal: bool = False  # proved for everything except lost work
    expansions: int = 0
    proved: list[str] = []  # parts of the cost that are proved minimal, most important first
    ring_cost: int | None = None  # hops between consecutive ranks of all its groups; None: no member has a rank
    devices: list[str] = []  # "driver/pool/device" that its claims would get now; empty if pods must be evicted first
    waits: str = ""  # why no pod is evicted yet: its start is within `preemptionPatienceSeconds`


class PodDemand(_Value, frozen=True):
    """Pods that ask for the same: how many, and what a node must have for one of them."""

    pods: int
    requests: dict[str, str]
    node_selector: dict[str, str] = {}
    devices: dict[str, int] = {}  # of its claims, by device class


class NodesNeeded(_Value, frozen=True):
    """Nodes of one shape that a unit lacks."""

    shape: str
    count: int
    resources: dict[str, str] = {}  # allocatable of one node
    domain: str = ""  # value of the unit's topology key; "": anywhere
    nodes: list[str] = []  # names, where the nodes that may be created are declared


class GroupDemand(_Value, frozen=True):
    """One unit that lacks nodes. `nodes` empty: nothing that could be added helps; the message says so."""

    kind: str  # pod, podgroup, compositepodgroup
    namespace: str
    name: str
    priority: int = 0
    pods: int = 0  # that wait
    requests: list[PodDemand] = []
    topology_key: str = ""  # one domain of this key must hold the whole unit
    nodes: list[NodesNeeded] = []
    message: str = ""


class ShapeDemand(_Value, frozen=True):
    """The sum over all units."""

    shape: str
    count: int
    groups: int
    resources: dict[str, str] = {}
    topology_key: str = ""
    domain: str = ""


class NodeDemand(_Value, frozen=True):
    """The answer to `demand`: what an autoscaler has to create, and which nodes it created are not in use."""

    groups: list[GroupDemand]
    shapes: list[ShapeDemand]
    idle: list[str] = []  # declared nodes that exist and that no pod and no waiting unit uses
    cordoned: list[str] = []  # of these, the cordoned ones: no pod will go there
    notes: list[str] = []

    def only(self, namespace: str) -> NodeDemand:
        """Return the same with the units of one namespace; the sums stay those of all units."""
        groups = [group for group in self.groups if group.namespace == namespace]
        return msgspec.structs.replace(self, groups=groups)
