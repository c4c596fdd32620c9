"""Check linearizability: find an order of all operations, each between its call and its answer, that explains them.

The algorithm of Wing and Gong: take any operation that no other operation's answer precedes, try it on the model, and
continue; states that were reached before with the same operations done are not tried again. Histories without lists are
first split by key. An operation that was never answered (a crash) may have happened, or not, at any moment after its
call.

The model is the API seen from outside: objects with a value and a resourceVersion, writes that may name the version
they expect.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

NEVER = 1 << 60  # the answer that did not come
UNKNOWN = "unknown"
ANY = ""  # a resourceVersion that no client has seen yet

Object = tuple[str, str]  # (value, resourceVersion)
State = tuple[Object | None, ...]  # by key


@dataclass(slots=True)
class Operation:
    """`result`: "ok", "exists", "conflict", "missing", "failed" (surely not done) or "unknown"."""

    client: int
    verb: str  # create, update, patch, delete, get, list
    key: int = 0
    value: str = ""  # written
    expect: str = ""  # resourceVersion a write names
    called: int = 0
    answered: int = NEVER
    result: str = UNKNOWN
    version: str = ANY  # of what was written or read
    seen: str = ""  # value that was read, or left by a patch
    listed: Mapping[int, Object] = field(default_factory=dict)

    def __str__(self) -> str:
        what = f"{self.verb} k{self.key}" if self.verb != "list" else "list"
        sent = f" {self.value}" if self.value else ""
        expect = f" at {self.expect}" if self.expect else ""
        got = dict(self.listed) if self.verb == "list" else f"{self.seen} {self.version}".strip()
        end = "…" if self.answered == NEVER else str(self.answered)
        return f"[{self.called}-{end}] client {self.client}: {what}{sent}{expect} -> {self.result} {got}"


def _fits(found: Object | None, version: str) -> bool:
    return found is not None and (version == ANY or found[1] in (ANY, version))


def _set(state: State, key: int, obj: Object | None) -> State:
    return (*state[:key], obj, *state[key + 1 :])


def apply(state: State, op: Operation) -> list[State]:
    """Return the states the operation may have led to; none: its answer is impossible here."""
    if op.verb == "list":
        return _list(state, op)
    found = state[op.key]
    if op.verb == "get":
        if op.result == "missing":
            return [state] if found is None else []
        right = found is not None and found[0] == op.seen and found[1] in (ANY, op.version)
        return [_set(state, op.key, (op.seen, op.version))] if right else []
    done = _set(state, op.key, None if op.verb == "delete" else (op.value, op.version))
    possible = found is None if op.verb == "create" else _fits(found, op.expect)
    match op.result:
        case "failed":
            return [state]
        case "unknown":
            return [state, done] if possible else [state]
        case "ok":
            return [done] if possible else []
        case "exists":
            return [state] if found is not None else []
        case "missing":
            return [state] if found is None else []
        case "conflict":
            stale = found is not None and op.expect != "" and found[1] != op.expect
            return [state] if stale else []
    return []


def _list(state: State, op: Operation) -> list[State]:
    for key, found in enumerate(state):
        listed = op.listed.get(key)
        if (found is None) != (listed is None):
            return []
        if found is not None and listed is not None and (found[0] != listed[0] or found[1] not in (ANY, listed[1])):
            return []
    return [tuple(op.listed.get(key) for key in range(len(state)))]


def linearizable(history: Sequence[Operation], keys: int, initial: State | None = None) -> bool:
    start = initial or (None,) * keys
    if any(op.verb == "list" for op in history):
        return _search(list(history), start)
    return all(_search([op for op in history if op.key == key], start) for key in range(keys))


def _search(history: list[Operation], start: State) -> bool:
    """Search depth first, without recursion. Unanswered operations need not be done at the end."""
    history.sort(key=lambda op: op.called)
    all_answered = sum(1 << i for i, op in enumerate(history) if op.answered != NEVER)
    tried: set[tuple[int, State]] = set()
    stack: list[tuple[int, State]] = [(0, start)]
    while stack:
        done, state = stack.pop()
        if done & all_answered == all_answered:
            return True
        if (done, state) in tried:
            continue
        tried.add((done, state))
        # An operation that was called after another was answered must be ordered after it.
        earliest = min(op.answered for i, op in enumerate(history) if not done >> i & 1)
        for i, op in enumerate(history):
            if op.called > earliest:
                break
            if not done >> i & 1:
                stack += [(done | 1 << i, after) for after in apply(state, op)]
    return False


def story(history: Sequence[Operation]) -> str:
    return "\n".join(str(op) for op in sorted(history, key=lambda op: op.called))


def check_watch(events: Sequence[tuple[str, int, Object]], writes: Sequence[Operation]) -> str:
    """Return what is wrong with a watch from the beginning: (type, key, object) in order of arrival; "" if nothing."""
    state: dict[int, Object] = {}
    last = 0
    versions: list[str] = []
    for kind, key, (value, version) in events:
        if int(version) <= last:
            return f"revision {version} after {last}"
        last = int(version)
        versions.append(version)
        there = key in state
        if (kind == "ADDED") == there:
            return f"{kind} of k{key} at {version}, which {'was there' if there else 'was not there'}"
        if kind == "DELETED":
            del state[key]
        else:
            state[key] = (value, version)
    announced = set(versions)
    for op in writes:
        if op.result == "ok" and op.verb in ("create", "update", "patch") and op.version not in announced:
            return f"nothing was told of {op}"
    return ""


def describe(problem: str, history: Sequence[Operation], seed: Any) -> str:
    return f"seed {seed}: {problem}\n{story(history)}"
