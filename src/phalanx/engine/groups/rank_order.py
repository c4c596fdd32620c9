"""Read the ranks of members and sort members by rank.

A rank comes from the index that the pod's controller wrote, or from a label or annotation that the group's policy
names. A pod whose rank is not a number, or is the rank of an older pod of the group, counts as a pod without a rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from phalanx.base.well_known import COMPLETION_INDEX, JOB_GLOBAL_INDEX, POD_INDEX, REPLICA_INDEX
from phalanx.engine.state.records import MAX_DIGITS, PodRecord
from phalanx.model.groups.policy import ANNOTATION, INDEX, Policy

Rank = tuple[int, int]  # compared in order; of a JobSet: index of the Job, completion index

WORKER = "leaderworkerset.sigs.k8s.io/worker-index"
ROLES = ("training.kubeflow.org/replica-type", "training.kubeflow.org/job-role")  # of PyTorchJobs, MPIJobs
INDEX_KEYS = (COMPLETION_INDEX, WORKER, REPLICA_INDEX, POD_INDEX)  # the first that a pod has counts
_INDEX_KEYS = frozenset(INDEX_KEYS)
FIRST_ROLES = ("launcher", "master", "chief", "head")
MAX_RANK = 2**31 - 1
LAST: Rank = (MAX_RANK + 1, 0)  # of members without a rank


class BadRank(Exception):
    """Report a rank value that is not valid."""


def rank_of(record: PodRecord, policy: Policy) -> Rank | None:
    """Return the rank of a pod, or None if it has none. Raises BadRank."""
    labels = record.labels
    if policy.rank_source != INDEX:
        values = labels if policy.rank_source != ANNOTATION else _annotations(record)
        text = values.get(policy.rank_key)
        return None if text is None else (0, _number(text, policy.rank_key))
    for key in INDEX_KEYS:
        if key in labels:
            text = labels[key]
            break
    else:
        text = _annotations(record).get(COMPLETION_INDEX) if not labels else None
        return None if text is None else (0, _number(text, COMPLETION_INDEX))
    index = _number(text, key)
    if key == COMPLETION_INDEX and JOB_GLOBAL_INDEX in labels:
        return (_number(labels[JOB_GLOBAL_INDEX], JOB_GLOBAL_INDEX), index)
    if key == REPLICA_INDEX:
        return (0 if any(labels.get(role, "").lower() in FIRST_ROLES for role in ROLES) else 1, index)
    return (0, index)


def _annotations(record: PodRecord) -> Mapping[str, str]:
    """Return the annotations of a pod; of a placed pod only those that can be ranks."""
    return record.pod.metadata.annotations or {} if record.pod is not None else record.numbers


def _number(text: str, key: str) -> int:
    if len(text) <= MAX_DIGITS and text.isdigit() and text.isascii() and (number := int(text)) <= MAX_RANK:
        return number
    raise BadRank(f"{key}: {text[:40]!r} is not a rank")


class Ranks(msgspec.Struct, frozen=True):
    of: dict[str, Rank]  # by pod key
    problems: tuple[str, ...] = ()


NO_RANKS = Ranks({})


def ranks_of(records: Iterable[PodRecord], policy: Policy) -> Ranks:
    """Read the ranks of pods; NO_RANKS if none has one and none is invalid."""
    records = list(records)
    found, bad = _ranks(records, policy)
    if not found and not bad:
        return NO_RANKS
    if not bad and len(set(found.values())) == len(found):
        return Ranks(found)
    taken: dict[Rank, str] = {}
    problems = [f"pod {name}: {problem}" for name, problem in bad]
    for record in sorted(records, key=lambda each: (each.row < 0, each.created, each.key)):
        rank = found.get(record.key)
        if rank is not None and taken.setdefault(rank, record.name) != record.name:
            problems.append(f"pod {record.name}: rank {rank[1]} is that of pod {taken[rank]}, too")
            del found[record.key]
    return Ranks(found, tuple(problems))


def _ranks(records: Iterable[PodRecord], policy: Policy) -> tuple[dict[str, Rank], list[tuple[str, BadRank]]]:
    found: dict[str, Rank] = {}
    bad: list[tuple[str, BadRank]] = []
    by_index = policy.rank_source == INDEX
    for record in records:
        if by_index:  # most pods have no index of a controller: seen without reading key by key
            labels = record.labels
            if _INDEX_KEYS.isdisjoint(labels) if labels else not _annotations(record):
                continue
        try:
            rank = rank_of(record, policy)
        except BadRank as problem:
            bad.append((record.name, problem))
            continue
        if rank is not None:
            found[record.key] = rank
    return found, bad


def in_rank_order(records: Iterable[PodRecord], policy: Policy) -> tuple[list[PodRecord], Ranks]:
    """Return pods sorted by priority, rank, age and name, and their ranks. Arrival order would not survive a
    restart."""
    records = list(records)
    ranks = ranks_of(records, policy)
    if not ranks.of:
        records.sort(key=lambda each: (-each.priority, each.created, len(each.key), each.key))
    else:
        of = ranks.of
        records.sort(key=lambda each: (-each.priority, of.get(each.key, LAST), each.created, by_name(each)))
    return records, ranks


def by_name(record: PodRecord) -> tuple[int, str]:
    """Return the sort key of pods without ranks: pod-2 before pod-10."""
    return (len(record.key), record.key)
