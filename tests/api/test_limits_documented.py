"""The limits on docs/local-cluster.md are those of the code."""

from __future__ import annotations

from pathlib import Path

import pytest

from phalanx.cel import admission, parser
from phalanx.controllers.grouping import core
from phalanx.controllers.runtime import events
from phalanx.kube import recorder
from phalanx.local.api import body, event_expiry, patch_json, read, storing, view
from phalanx.local.api.limits import Limits
from phalanx.local.store import space, watchers
from phalanx.local.store.window import WindowBounds
from phalanx.model import decode, pattern, quantity, selectors, yaml_body

LIMITS, BOUNDS = Limits(), WindowBounds()
SHARES = LIMITS.shares
LIMITS_ON_PAGE = (
    (Path(__file__).parents[2] / "docs" / "local-cluster.md")
    .read_text()
    .partition("\n## Limits\n")[2]
    .partition("\n## ")[0]
)


def mib(size: int) -> str:
    return f"{size / (1 << 20):g} MiB"


def kib(size: int) -> str:
    return f"{size >> 10} KiB"


ROWS = {
    "body": mib(LIMITS.body_bytes),
    "values (members and items) in a body": f"{decode.MAX_VALUES:,}",
    "nesting of a body": f"{decode.MAX_DEPTH} levels",
    "aliases in a YAML body": str(yaml_body.MAX_ALIASES),
    "operations of a JSON patch": f"{patch_json.MAX_OPERATIONS:,}",
    "bytes copied by a JSON patch": mib(patch_json.MAX_COPIED_BYTES),
    "object after any kind of write": mib(storing.OBJECT_BYTES),
    "quantity": f"{quantity._MAX_LENGTH:,} characters",
    "requirements of a label selector, terms of a field selector": str(selectors.MAX_TERMS),
    "pattern in a CustomResourceDefinition": f"{mib(pattern.MAX_MEMORY)} compiled",
    "expression (CEL)": (
        f"{parser.MAX_CODE_POINTS:,} code points, {parser.MAX_DEPTH} levels, {admission.CALL_LIMIT:,} cost units"
    ),
    "answer as YAML": mib(view.YAML_BYTES),
    "headers with the path": kib(LIMITS.header_bytes),
    "time for the headers, the TLS handshake": f"{LIMITS.header_seconds:g} s",
    "time for the body": f"{LIMITS.body_seconds:g} s",
    "requests begun in one turn of the loop": f"{SHARES.turn}; {SHARES.turn_all} while there is no other client",
    "requests being answered": str(SHARES.slots_per_client),
    "requests waiting": str(SHARES.queue),
    "watches": f"{SHARES.watches:,}",
    "time in which it reads nothing": f"{LIMITS.write_seconds:g} s",
    "time without a request": f"{LIMITS.idle_seconds:g} s",
    "requests begun in one turn, all clients": str(SHARES.turn_all),
    "connections": f"{LIMITS.connections:,}",
    "changes kept for watches and past lists": (
        f"{BOUNDS.changes:,}, {mib(BOUNDS.bytes)}, {BOUNDS.seconds / 60:g} minutes"
    ),
    "one piece of a watch or list on its way to a client": (
        f"{watchers.BATCH_CHANGES} changes, {kib(watchers.BATCH_BYTES)}"
    ),
    "life of an event": f"{event_expiry.TTL / 3600:g} hour after its last change",
    "events that a scheduler or the controllers have still to write": f"{recorder.QUEUE:,} each",
    "free space on the disk of the data directory": mib(space.ALARM_BYTES),
    "pods of a StatefulSet, ReplicaSet, Job, JobSet, LeaderWorkerSet, MPIJob or TrainJob": f"{core.MOST_PODS:,}",
    "Jobs of a JobSet, replicas of a LeaderWorkerSet": f"{core.MOST_PARTS:,}",
    "objects created in one reconcile of a workload": str(core.BATCH),
}


@pytest.mark.parametrize("what", ROWS)
def test_a_documented_limit_is_the_one_in_the_code(what: str) -> None:
    assert f"| {what} | {ROWS[what]} |" in LIMITS_ON_PAGE


def test_controllers_keep_as_many_events_as_a_scheduler() -> None:
    assert events.WAITING == recorder.QUEUE


def test_every_documented_limit_is_compared() -> None:
    rows = [line.split(" | ")[0].removeprefix("| ") for line in LIMITS_ON_PAGE.splitlines() if line.startswith("| ")]
    assert [row for row in rows if row != "what"] == list(ROWS)


def test_the_text_between_the_tables_is_true_too() -> None:
    text = " ".join(LIMITS_ON_PAGE.split())
    assert f"YAML bodies above {kib(decode.APART_YAML)}, protobuf bodies above {kib(decode.APART_PROTOBUF)}" in text
    assert f"every {read.CHUNK_CHECKS:,} comparisons and every {kib(read.CHUNK_BYTES)} of answer" in text
    assert f"{kib(storing.MARK_BYTES)} more for one that is being deleted" in text
    assert body.read_apart.__doc__
