"""How a group is kept whole after it has started: one value, from a WorkloadPolicy, annotations and the configuration.

An invalid value is a `FieldProblem` with the path of its field; the group is scheduled as if it were absent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from typing import Any

import msgspec

from phalanx.base.clock import parse_duration
from phalanx.model import names
from phalanx.model.annotation_values import MAX_NUMBER, shortened
from phalanx.model.objects.policy import WorkloadPolicySpec

YEAR = 366 * 86_400  # seconds; the largest value of any field
MAX_COUNT = 2**31 - 1

KEEP, REPLACE, TERMINATE_ALL, SHRINK = RESCHEDULING = ("Keep", "Replace", "TerminateAll", "Shrink")
ANY, PACK, STRIPE, BALANCE = PLACEMENTS = ("Any", "Pack", "Stripe", "Balance")
INDEX, LABEL, ANNOTATION = RANK_SOURCES = ("Index", "Label", "Annotation")

# Short forms of the commonest fields, as annotations of a workload or a group.
RESCHEDULING_POLICY = "scheduling.phalanx.dev/rescheduling-policy"
RANK_PLACEMENT = "scheduling.phalanx.dev/rank-placement"
SCHEDULE_TIMEOUT = "scheduling.phalanx.dev/schedule-timeout"
EXPECTED_DURATION = "scheduling.phalanx.dev/expected-duration"
SHORT_FORMS = (RESCHEDULING_POLICY, RANK_PLACEMENT, SCHEDULE_TIMEOUT, EXPECTED_DURATION)


class Policy(msgspec.Struct, frozen=True):
    """What is in effect for a group. Times are in seconds; 0 is no limit."""

    min_count: int | None = None  # None: the group's own minCount
    desired_count: int | None = None  # None: as many as there are
    max_count: int | None = None  # None: no limit
    rank_source: str = INDEX
    rank_key: str = ""
    rank_placement: str = ANY
    rank_topology_key: str = ""  # of Stripe, Balance and co_place_with; "": nodes
    co_place_with: str = ""
    rescheduling: str = KEEP
    grace_seconds: int = 300
    max_restarts: int = 5
    backoff_seconds: int = 10
    members_seconds: int = 0
    schedule_seconds: int = 0
    ready_seconds: int = 0
    min_runtime_seconds: int = 0
    max_unavailable_replicas: int | None = None
    expected_duration_seconds: int = 0

    @property
    def has_counts(self) -> bool:
        """Return True if the policy sets how many members a group runs with.

        Such a group is then extended above its minimum into free capacity.
        """
        return (self.min_count, self.desired_count, self.max_count) != (None, None, None)

    @property
    def maintained(self) -> bool:
        """Return True if the policy asks for anything after the start of a group, or at a given time."""
        limits = self.members_seconds or self.schedule_seconds or self.ready_seconds
        return self.rescheduling != KEEP or bool(limits) or self.desired_count is not None

    def with_fields(self, fields: Fields) -> Policy:
        return msgspec.structs.replace(self, **fields) if fields else self


DEFAULT = Policy()
Fields = Mapping[str, Any]  # some fields of a Policy by name: those that are set


class FieldProblem(msgspec.Struct, frozen=True):
    """An invalid value of a field, or of an annotation."""

    path: str  # spec.timeouts.readySeconds, or the key of the annotation
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


class Parsed(msgspec.Struct, frozen=True):
    fields: dict[str, Any]
    problems: tuple[FieldProblem, ...] = ()
    notes: tuple[str, ...] = ()  # values that are allowed and have no effect


NOTHING = Parsed({})


class _Reader:
    def __init__(self) -> None:
        self.fields: dict[str, Any] = {}
        self.problems: list[FieldProblem] = []
        self.notes: list[str] = []

    def wrong(self, path: str, message: str) -> None:
        self.problems.append(FieldProblem(path, message))

    def choice(self, path: str, field: str, value: str, allowed: Iterable[str]) -> None:
        if not value:
            return
        if value in allowed:
            self.fields[field] = value
        else:
            self.wrong(path, f"{shortened(value)!r} is not one of {', '.join(allowed)}")

    def number(self, path: str, field: str, value: int | None, low: int, high: int = MAX_COUNT) -> None:
        if value is None:
            return
        if low <= value <= high:
            self.fields[field] = value
        else:
            self.wrong(path, f"{value} is not between {low} and {high}")

    def seconds(self, path: str, field: str, value: int | None) -> None:
        if value is None:
            return
        if 0 <= value <= YEAR:
            self.fields[field] = value
        else:
            self.wrong(path, f"{value} seconds is not between 0 and {YEAR} (a year)")

    def limit(self, path: str, field: str, value: int | None) -> None:
        """Read a time limit, and add a note if it is 0, which sets no limit."""
        self.seconds(path, field, value)
        if value == 0:
            self.notes.append(f"{path}: 0 sets no limit")

    def label(self, path: str, field: str, value: str) -> None:
        if not value:
            return
        problems = names.label_key(value)
        if problems:
            self.wrong(path, f"{shortened(value)!r} is not a label key: {problems[0]}")
        else:
            self.fields[field] = value

    def parsed(self) -> Parsed:
        return Parsed(self.fields, tuple(self.problems), tuple(self.notes))


def parse_spec(spec: WorkloadPolicySpec) -> Parsed:
    """Parse the fields that a WorkloadPolicy sets."""
    reader = _Reader()
    _counts(reader, spec)
    _ranks(reader, spec)
    _rescheduling(reader, spec)
    if spec.timeouts is not None:
        for name, value in (
            ("members", spec.timeouts.members_seconds),
            ("schedule", spec.timeouts.schedule_seconds),
            ("ready", spec.timeouts.ready_seconds),
        ):
            reader.limit(f"spec.timeouts.{name}Seconds", f"{name}_seconds", value)
    if spec.preemption is not None:
        reader.seconds("spec.preemption.minRuntimeSeconds", "min_runtime_seconds", spec.preemption.min_runtime_seconds)
    if spec.disruption is not None:
        replicas = spec.disruption.max_unavailable_replicas
        reader.number("spec.disruption.maxUnavailableReplicas", "max_unavailable_replicas", replicas, 0)
    reader.seconds("spec.expectedDurationSeconds", "expected_duration_seconds", spec.expected_duration_seconds)
    return reader.parsed()


def _counts(reader: _Reader, spec: WorkloadPolicySpec) -> None:
    if spec.counts is None:
        return
    before = len(reader.problems)
    counts = (("min", spec.counts.min), ("desired", spec.counts.desired), ("max", spec.counts.max))
    for name, value in counts:
        reader.number(f"spec.counts.{name}", f"{name}_count", value, 1)
    known = [(name, value) for name, value in counts if value is not None]
    for (low_name, low), (high_name, high) in pairwise(known):
        if low > high and len(reader.problems) == before:
            reader.wrong(f"spec.counts.{low_name}", f"{low} is more than {high_name}, which is {high}")
    if len(reader.problems) > before:
        # A range with a wrong end is ignored: half of it could start or hold back pods against the author's intention.
        for name, _ in counts:
            reader.fields.pop(f"{name}_count", None)


def _ranks(reader: _Reader, spec: WorkloadPolicySpec) -> None:
    ranks = spec.ranks
    if ranks is None:
        return
    reader.choice("spec.ranks.placement", "rank_placement", ranks.placement, PLACEMENTS)
    reader.label("spec.ranks.topologyKey", "rank_topology_key", ranks.topology_key)
    source = ranks.from_ or INDEX
    if source in (LABEL, ANNOTATION):
        if not ranks.key:
            reader.wrong("spec.ranks.key", f"is needed with from: {source}")
            source = ""
        else:
            reader.label("spec.ranks.key", "rank_key", ranks.key)
            source = source if "rank_key" in reader.fields else ""
    reader.choice("spec.ranks.from", "rank_source", source, RANK_SOURCES)
    if ranks.co_place_with:
        problems = names.dns_subdomain(ranks.co_place_with)
        if problems:
            reader.wrong(
                "spec.ranks.coPlaceWith",
                f"{shortened(ranks.co_place_with)!r} is not the name of a group: {problems[0]}",
            )
        else:
            reader.fields["co_place_with"] = ranks.co_place_with


def _rescheduling(reader: _Reader, spec: WorkloadPolicySpec) -> None:
    found = spec.rescheduling
    if found is None:
        return
    reader.choice("spec.rescheduling.policy", "rescheduling", found.policy, RESCHEDULING)
    reader.seconds("spec.rescheduling.graceSeconds", "grace_seconds", found.grace_seconds)
    reader.number("spec.rescheduling.maxRestarts", "max_restarts", found.max_restarts, 0)
    reader.seconds("spec.rescheduling.backoffSeconds", "backoff_seconds", found.backoff_seconds)


def parse_annotations(annotations: Mapping[str, str] | None) -> Parsed:
    """Parse the fields that the short annotations of a workload or a group set."""
    if not annotations or not any(key in annotations for key in SHORT_FORMS):
        return NOTHING
    reader = _Reader()
    for key, read in _SHORT.items():
        if key in annotations:
            read(reader, key, str(annotations[key]).strip())
    return reader.parsed()


def _time(field: str) -> Callable[[_Reader, str, str], None]:
    def read(reader: _Reader, key: str, text: str) -> None:
        try:
            seconds = float(text) if text.isdecimal() and text.isascii() else parse_duration(text[:MAX_NUMBER])
        except ValueError:
            reader.wrong(key, f"{shortened(text)!r} is neither a number of seconds nor a duration such as 1h30m")
            return
        if 0 < seconds <= YEAR:
            reader.fields[field] = math.ceil(seconds)
        else:
            reader.wrong(key, f"{shortened(text)!r} is not above 0 and at most a year")

    return read


def _word(field: str, allowed: tuple[str, ...]) -> Callable[[_Reader, str, str], None]:
    def read(reader: _Reader, key: str, text: str) -> None:
        if not text:
            reader.wrong(key, f"is empty; write one of {', '.join(allowed)}")
        reader.choice(key, field, text, allowed)

    return read


_SHORT: dict[str, Callable[[_Reader, str, str], None]] = {
    RESCHEDULING_POLICY: _word("rescheduling", RESCHEDULING),
    RANK_PLACEMENT: _word("rank_placement", PLACEMENTS),
    SCHEDULE_TIMEOUT: _time("schedule_seconds"),
    EXPECTED_DURATION: _time("expected_duration_seconds"),
}
