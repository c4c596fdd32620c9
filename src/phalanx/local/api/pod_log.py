"""The log of a pod, which an annotation gives: no process runs in a simulated pod."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Any

from phalanx.base.errors import BadRequest
from phalanx.cel.functions.times import parse_timestamp
from phalanx.cel.values import EvaluationError
from phalanx.local.api.options import invalid_options
from phalanx.local.api.read import too_old
from phalanx.local.api.request import Answer, Request, parse_number, parse_signed, query_flag
from phalanx.local.api.view import decode
from phalanx.local.store.contract import Compacted, Entry, Key, SlowWatcher, StoreProtocol, Watcher
from phalanx.model.fieldpath import forbidden, invalid
from phalanx.model.kinds import FieldError

LOG = "simulation.phalanx.dev/log"  # annotation: what `kubectl logs` prints of a pod
LOOK_SECONDS = 3600.0  # for which a change of the pod is waited for at once
_LOG_NUMBERS = (  # of the query of a pod's log: the least value, and what is wrong with a smaller one
    ("tailLines", 0, "must be greater than or equal to 0"),
    ("limitBytes", 1, "must be greater than 0"),
    ("sinceSeconds", 1, "must be greater than 0"),
)


def is_followed(request: Request) -> bool:
    return request.subresource == "log" and query_flag(request.query, "follow")


def log_of(request: Request, pod: Entry, store: StoreProtocol) -> Answer:
    """Return the log of a pod. A followed one ends with the container, as for programs that wait with `logs -f`."""
    _check_options(request)
    body = decode(pod.value)
    text = _text(request, body)
    if not is_followed(request):
        return Answer(body=text, content_type="text/plain")
    try:
        watcher = store.watch(request.kind.storage_key, request.namespace, pod.revision)
    except Compacted as old:
        raise too_old(pod.revision, old.oldest) from None
    return Answer(stream=_followed(text, body, watcher, pod.key, request), content_type="text/plain")


async def _followed(
    text: bytes, pod: Mapping[str, Any], watcher: Watcher, key: Key, request: Request
) -> AsyncGenerator[bytes, None]:
    try:
        yield text
        while not _has_ended(pod, request.query.get("container", "")):
            for change in await watcher.within(LOOK_SECONDS):
                if change.entry.key == key:
                    if change.deleted:
                        return
                    pod = decode(change.entry.value)
    except (StopAsyncIteration, SlowWatcher):
        return
    finally:
        watcher.close()


def _has_ended(pod: Mapping[str, Any], container: str) -> bool:
    status = pod.get("status") or {}
    if status.get("phase") in ("Succeeded", "Failed"):
        return True
    mine = (each for each in status.get("containerStatuses") or () if each["name"] == container)
    return any("terminated" in (each.get("state") or {}) for each in mine)


def _check_options(request: Request) -> None:
    """Check the numbers and the time of the query of a pod's log. Raises BadRequest or Invalid, as kube-apiserver."""
    query = request.query
    errors: list[FieldError] = []
    for name, least, detail in _LOG_NUMBERS:
        if name in query and (number := parse_signed(query, name)) < least:
            errors.append(invalid(name, number, detail))
    if query.get("sinceTime", "null") not in ("", "null"):
        try:
            parse_timestamp(query["sinceTime"])
        except EvaluationError as problem:
            raise BadRequest(str(problem)) from None
    if "sinceSeconds" in query and "sinceTime" in query:
        errors.append(forbidden("", "at most one of `sinceTime` or `sinceSeconds` may be specified"))
    if errors:
        raise invalid_options("PodLogOptions", errors, group="", name=request.name)


def _text(request: Request, pod: Mapping[str, Any]) -> bytes:
    """Return the log that an annotation gives; else a line which says that nothing runs in the pod."""
    annotations = pod["metadata"].get("annotations") or {}
    if LOG in annotations:
        lines = annotations[LOG].splitlines(keepends=True)
        if query_flag(request.query, "timestamps"):
            started = (pod.get("status") or {}).get("startTime") or pod["metadata"]["creationTimestamp"]
            stamp = started.removesuffix("Z") + ".000000000Z"
            lines = [f"{stamp} {line}" for line in lines]
        tail = parse_number(request.query, "tailLines") if "tailLines" in request.query else len(lines)
        text = "".join(lines[max(0, len(lines) - tail) :])
        limit = parse_number(request.query, "limitBytes") or len(text.encode())
        return text.encode()[:limit]
    container = request.query.get("container", "")
    text = f"pod {request.namespace}/{request.name} is simulated: its containers write no log\n"
    if container:
        text = f"container {container} of " + text
    return text.encode()
