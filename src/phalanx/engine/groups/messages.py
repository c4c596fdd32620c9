"""What people read about groups. The certificate is rendered once; condition, event and CLI say the same."""

from __future__ import annotations

from collections.abc import Iterable

from phalanx.engine.groups.build import Built
from phalanx.engine.placement import Certificate, sentence
from phalanx.engine.placement.messages import domain_word
from phalanx.model.groups import Group, GroupForest, Shortage

UNSCHEDULABLE = "pod group is unschedulable"
WAITING = "WaitingForMembers"  # reason of conditions


def refused(group: Group, certificate: Certificate) -> str:
    """kube-scheduler's leading phrases first, so that tools that look for them still find them; then the diagnosis."""
    minimum = group.spec.minimum if group.spec is not None else certificate.needed
    running = 0 if group.composite else group.placed
    # What fits side by side is not known exactly when each fits alone: certainly less than was asked for.
    scheduled = min(running + certificate.fits, max(0, minimum - 1))
    head = f"{_minimum(group)} ({minimum}) cannot be satisfied: {scheduled} scheduled, 0 remaining"
    return f"{UNSCHEDULABLE}, {head}; {sentence(certificate)}"


def group_in_words(forest: GroupForest, group: Group, priority: int) -> str:
    """A group with the workload that owns it: "podgroup hotfix-5d (Job hotfix, priority 1000)".

    The kind is in lower case, as kube-scheduler writes it in its events.
    """
    owner = owner_of(forest, group)
    facts = f"{owner}, priority {priority}" if owner else f"priority {priority}"
    return f"{group.key.kind.lower()} {group.key.name.partition('/')[0]} ({facts})"


def owner_of(forest: GroupForest, group: Group) -> str:
    """Kind and name of the workload that a group belongs to; "": it was made on its own."""
    source = group.source
    for reference in source.metadata.owner_references if source is not None else ():
        if reference.controller and reference.kind != "Workload":
            return f"{reference.kind} {reference.name}"
    name = group.spec.workload if group.spec is not None else None
    workload = forest.workload(group.key.namespace, name) if name else None
    about = workload.spec.controller_ref if workload is not None else None
    return f"{about.kind} {about.name}" if about is not None else ""


def _minimum(group: Group) -> str:
    """What the field is called in the group's own kind."""
    return "minGroupCount" if group.composite else "minCount"


def exhausted(group: Group, expansions: int, certificate: Certificate) -> str:
    """The search gave up: what counting says, and that it is no proof."""
    return f"{refused(group, certificate)}{used_up(expansions)}"


def used_up(expansions: int) -> str:
    return f" (search budget of {expansions} expansions used up, not proved impossible)"


def coupled(group: Group, *, used: int = 0) -> str:
    """`used`: expansions of a search that gave up; 0: it went through everything."""
    minimum = group.spec.minimum if group.spec is not None else 1
    return (
        f"{UNSCHEDULABLE}, {_minimum(group)} ({minimum}) cannot be satisfied: there is room by resources, but no "
        f"placement was found that also keeps the pods' affinity, spreading and volume rules"
        f"{used_up(used) if used else ''}"
    )


def refused_pod(pod: str, message: str) -> str:
    """Reserve or Permit said no to one member: nobody goes."""
    return f"{UNSCHEDULABLE}, pod {pod.removeprefix('?')}: {message}"


def lacking(shortages: Iterable[Shortage]) -> str:
    """A group that is not complete, or lies in one that is not, while the rest of its tree runs."""
    return f"waiting for members: {'; '.join(map(str, shortages))}"


def leftovers(group: Group, built: Built) -> str:
    """Enough members run; more do not fit."""
    part = built.part_of[group.key]
    where = "beside those that are placed"
    if part.key is not None and part.pinned >= 0:
        name = built.problem.domain_name(part.key, part.pinned)
        where = f"in {domain_word(part.key)} {name}, where its running members are"
    return f"{UNSCHEDULABLE}, no further member of {group.key} fits {where}"


def whole(group: Group, pods: int) -> str:
    key = group.spec.topology_key if group.spec is not None else None
    where = f" in one domain of {key}" if key is not None else ""
    return (
        f"{UNSCHEDULABLE}, there is no room for all {pods} pods that it will have{where}; its first would start in vain"
    )
