"""Format messages about groups for users. Condition, event and CLI show the same text."""

from __future__ import annotations

from collections.abc import Iterable

from phalanx.engine.groups.build import Built
from phalanx.engine.placement import Certificate, sentence
from phalanx.engine.placement.outcome import domain_word
from phalanx.model.groups import COMPOSITE, Group, GroupForest, GroupKey, QuorumShortage

UNSCHEDULABLE = "pod group is unschedulable"
WAITING = "WaitingForMembers"  # reason of conditions
LIMITED = "LimitedByPolicy"  # reason of pods beyond the counts of their group's policy


def refused(group: Group, certificate: Certificate) -> str:
    """Return kube-scheduler's phrases, which tools match, followed by the diagnosis."""
    minimum = group.spec.minimum if group.spec is not None else certificate.needed
    running = 0 if group.composite else group.placed
    # If each pod fits alone, the number that fits together is unknown, but below the minimum.
    scheduled = min(running + certificate.fits, max(0, minimum - 1))
    head = f"{_minimum(group)} ({minimum}) cannot be satisfied: {scheduled} scheduled, 0 remaining"
    if group.composite and group.spec is not None and not group.spec.gang:
        head = f"{group.key} is Basic and no child group of it fits"
    return f"{UNSCHEDULABLE}, {head}; {sentence(certificate)}"


def group_in_words(forest: GroupForest, group: Group, priority: int) -> str:
    """Describe a group with the workload that owns it: "PodGroup hotfix-5d (Job hotfix, priority 1000)"."""
    owner = owner_of(forest, group)
    facts = f"{owner}, priority {priority}" if owner else f"priority {priority}"
    return f"{group.key.kind} {group.key.name.partition('/')[0]} ({facts})"


def scheduled(key: GroupKey, minimum: int) -> str:
    """Return the sentence for a group whose minimum has nodes."""
    what = "child groups" if key.kind == COMPOSITE else "pods"
    return f"{key} is scheduled: at least {minimum} of its {what} {'has' if minimum == 1 else 'have'} a node"


def owner_of(forest: GroupForest, group: Group) -> str:
    """Return kind and name of the workload that owns a group; empty if it has no owner."""
    source = group.source
    for reference in source.metadata.owner_references if source is not None else ():
        if reference.controller and reference.kind != "Workload":
            return f"{reference.kind} {reference.name}"
    name = group.spec.workload if group.spec is not None else None
    workload = forest.workload(group.key.namespace, name) if name else None
    about = workload.spec.controller_ref if workload is not None else None
    return f"{about.kind} {about.name}" if about is not None else ""


def _minimum(group: Group) -> str:
    """Return the name of the minimum field in the group's kind."""
    return "minGroupCount" if group.composite else "minCount"


def exhausted(group: Group, expansions: int, certificate: Certificate) -> str:
    """Return the message of an exhausted search: the result of counting, which is no proof."""
    return f"{refused(group, certificate)}{used_up(expansions)}"


def used_up(expansions: int) -> str:
    return f" (search budget of {expansions} expansions used up, not proved impossible)"


def coupled(group: Group, *, used: int = 0) -> str:
    """Return the message of a group that fits by resources only. `used`: expansions of an incomplete search, else 0."""
    minimum = group.spec.minimum if group.spec is not None else 1
    return (
        f"{UNSCHEDULABLE}, {_minimum(group)} ({minimum}) cannot be satisfied: there is room by resources, but no "
        f"placement was found that also keeps the pods' affinity, spreading and volume rules"
        f"{used_up(used) if used else ''}"
    )


def refused_pod(pod: str, message: str) -> str:
    """Return the message for a member that Reserve or Permit rejects: no member is bound."""
    return f"{UNSCHEDULABLE}, pod {pod.removeprefix('?')}: {message}"


def lacking(shortages: Iterable[QuorumShortage]) -> str:
    """Return the message of an incomplete group, or of one with an incomplete ancestor, in a running tree."""
    return f"waiting for members: {'; '.join(map(str, shortages))}"


def leftovers(group: Group, built: Built, rest: Certificate | None) -> str:
    """Return the message if the minimum runs but no further member fits. `rest`: why the next members do not fit."""
    part = built.part_of[group.key]
    where = "next to those that are placed"
    if part.key is not None and part.pinned >= 0:
        name = built.problem.domain_name(part.key, part.pinned)
        where = f"in {domain_word(part.key)} {name}, where its running members are"
    name = f"{rest.group} " if rest is not None and rest.group != str(group.key) else ""
    lacks = f": {name}{sentence(rest)}" if rest is not None else ""
    return f"{UNSCHEDULABLE}, no further member of {group.key} fits {where}{lacks}"


def whole(group: Group, pods: int) -> str:
    key = group.spec.topology_key if group.spec is not None else None
    where = f" in one domain of {key}" if key is not None else ""
    return f"{UNSCHEDULABLE}, there is no room for all {pods} pods that it will have{where}; its first waits for that"
