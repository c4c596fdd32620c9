"""Doing what the engine decided: each outcome reported once, lost answers resolved by reading."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import msgspec
import pytest

from phalanx.base.clock import SystemClock
from phalanx.base.errors import ApiProblem, Forbidden, Unreachable
from phalanx.base.resources import EVENTS_V1
from phalanx.engine import decisions as d
from phalanx.engine.events import CONFLICT, NOT_FOUND, PERMANENT, TRANSIENT, Outcome
from phalanx.kube import executor as module
from phalanx.kube.client import HttpClient
from phalanx.kube.executor import Executor
from phalanx.kube.recorder import Recorder
from phalanx.model.groups.keys import BOUND_IN_GROUP
from phalanx.model.objects import Pod
from support.http_client import PODS
from support.manifests import pod
from support.waiting import eventually_async


class Bench:
    """An executor at work, and what it reported."""

    def __init__(self, client: Any) -> None:
        self.outcomes: dict[int, Outcome] = {}
        clock, rng = SystemClock(), random.Random(1)
        self.recorder = Recorder(client, "sched", "sched-1", clock, rng)
        self.executor = Executor(client, self.recorder, self._report, clock, rng)

    def _report(self, outcome: Outcome) -> None:
        assert outcome.decision not in self.outcomes, "reported twice"
        self.outcomes[outcome.decision] = outcome

    async def __aenter__(self) -> Bench:
        self._tasks = [asyncio.create_task(self.executor.run()), asyncio.create_task(self.recorder.run())]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def do(self, *decisions: d.Decision) -> dict[int, Outcome]:
        self.executor.submit(list(decisions))
        await eventually_async(lambda: all(x.id in self.outcomes for x in decisions), "outcomes")
        return self.outcomes


async def make(client: HttpClient, namespace: str, name: str) -> str:
    return json.loads(await client.create(PODS, pod(name), namespace))["metadata"]["uid"]


async def read(client: HttpClient, namespace: str, name: str) -> dict[str, Any]:
    return json.loads(await client.get(PODS, name, namespace))


class LosesAnswers:
    """Passes calls on, but the first answer to each kind of write never arrives."""

    def __init__(self, inner: HttpClient) -> None:
        self._inner, self.lost = inner, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def create(self, *args: Any, **kwargs: Any) -> bytes:
        answer = await self._inner.create(*args, **kwargs)
        if kwargs.get("subresource") == "binding" and not self.lost:
            self.lost += 1
            raise Unreachable("the answer was lost")
        return answer


class HoldsBinds:
    """Binds of one pod are not passed on until `let_go`."""

    def __init__(self, inner: HttpClient, name: str) -> None:
        self._inner, self._name = inner, name
        self.let_go = asyncio.Event()
        self.deleted: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def create(self, *args: Any, **kwargs: Any) -> bytes:
        if kwargs.get("subresource") == "binding" and kwargs["name"] == self._name:
            await self.let_go.wait()
        return await self._inner.create(*args, **kwargs)

    async def delete(self, resource: Any, name: str, *args: Any, **kwargs: Any) -> bytes:
        self.deleted.append(name)
        return await self._inner.delete(resource, name, *args, **kwargs)


def test_an_eviction_does_not_overtake_the_binds_of_its_gang(run, namespace):
    """Simulation, seed 920025: a gang was chosen as a victim while its binds were on their way; one member was deleted
    before it was bound, and what was left of the gang had never been whole."""

    async def go(client: HttpClient) -> None:
        uids = {name: await make(client, namespace, name) for name in ("a", "b", "other")}
        holding = HoldsBinds(client, "b")
        mark = {BOUND_IN_GROUP: "the-gang"}
        async with Bench(holding) as bench:
            bench.executor.submit(
                [
                    d.Bind(1, namespace, "a", uids["a"], node="n1", annotations=mark),
                    d.Bind(2, namespace, "b", uids["b"], node="n1", annotations=mark),
                    d.Evict(3, namespace, "a", uids["a"]),
                    d.Evict(4, namespace, "other", uids["other"]),
                ]
            )
            await eventually_async(lambda: 1 in bench.outcomes and 4 in bench.outcomes, "what nothing holds up")
            assert holding.deleted == ["other"] and 3 not in bench.outcomes
            holding.let_go.set()
            await eventually_async(lambda: 3 in bench.outcomes, "the eviction")
            assert bench.outcomes[2] == Outcome(2) and bench.outcomes[3] == Outcome(3)
            await bench.do(d.Evict(5, namespace, "b", uids["b"]))  # nothing is under way any more

    run(go)


class Silent:
    """Binds are done or not, but neither their answer nor the pod can be read, until `back`."""

    def __init__(self, inner: HttpClient, *, done: bool, problem: ApiProblem) -> None:
        self._inner, self._done, self._problem = inner, done, problem
        self.back = False
        self.reads = self.binds = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def create(self, *args: Any, **kwargs: Any) -> bytes:
        if self.back or kwargs.get("subresource") != "binding":
            return await self._inner.create(*args, **kwargs)
        self.binds += 1
        if self._done and self.binds == 1:
            await self._inner.create(*args, **kwargs)
        raise Unreachable("the answer was lost")

    async def get(self, *args: Any, **kwargs: Any) -> bytes:
        if self.back:
            return await self._inner.get(*args, **kwargs)
        self.reads += 1
        raise self._problem


@pytest.mark.parametrize("problem", [Unreachable("no answer"), Forbidden("may not get pods")])
@pytest.mark.parametrize("done", [True, False])
def test_a_bind_that_cannot_be_read_back_has_no_outcome_until_it_is_known(run, namespace, done, problem, monkeypatch):
    monkeypatch.setattr(module, "delay", lambda *_: 0.005)

    async def go(client: HttpClient) -> None:
        uid = await make(client, namespace, "a")
        silent = Silent(client, done=done, problem=problem)
        async with Bench(silent) as bench:
            bench.executor.submit([d.Bind(1, namespace, "a", uid, node="n1")])
            await eventually_async(lambda: silent.reads > 20, "many readings")
            assert bench.outcomes == {}, "unknown is not 'not bound'"
            assert bench.executor.in_flight == 1 and bench.executor.unanswered == 1
            silent.back = True
            await eventually_async(lambda: 1 in bench.outcomes, "the outcome")
        assert bench.outcomes[1] == Outcome(1)
        assert (await read(client, namespace, "a"))["spec"]["nodeName"] == "n1"

    run(go)


@pytest.mark.parametrize(("node", "problem"), [("n1", ""), ("n2", CONFLICT), ("", None), (None, NOT_FOUND)])
def test_the_informers_word_ends_the_doubt(run, namespace, node, problem, monkeypatch):
    monkeypatch.setattr(module, "delay", lambda *_: 0.005)

    async def go(client: HttpClient) -> None:
        silent = Silent(client, done=False, problem=Forbidden("may not get pods"))
        async with Bench(silent) as bench:
            bench.executor.submit([d.Bind(1, namespace, "a", "uid-a", node="n1")])
            await eventually_async(lambda: bench.executor.unanswered == 1, "doubt")
            spec = {"nodeName": node} if node else {}
            said = {"metadata": {"name": "a", "namespace": namespace, "uid": "uid-a"}, "spec": spec}
            bench.executor.pod_seen(namespace, "a", msgspec.convert(said, Pod) if node is not None else None)
            reads = silent.reads
            await eventually_async(
                lambda: 1 in bench.outcomes or silent.reads > reads + 5, "an outcome, or more readings"
            )
        assert (bench.outcomes[1].problem if 1 in bench.outcomes else None) == problem

    run(go)


def test_a_bind_is_done_and_confirmed(run, namespace):
    async def go(client: HttpClient) -> None:
        uid = await make(client, namespace, "a")
        async with Bench(client) as bench:
            outcomes = await bench.do(d.Bind(1, namespace, "a", uid, node="n1"))
        assert outcomes[1] == Outcome(1)
        assert (await read(client, namespace, "a"))["spec"]["nodeName"] == "n1"

    run(go)


def test_a_bind_whose_answer_was_lost_is_found_done(run, namespace):
    async def go(client: HttpClient) -> None:
        uid = await make(client, namespace, "a")
        loses = LosesAnswers(client)
        async with Bench(loses) as bench:
            outcomes = await bench.do(d.Bind(1, namespace, "a", uid, node="n1"))
        assert loses.lost == 1
        assert outcomes[1] == Outcome(1)

    run(go)


def test_a_bind_by_another_scheduler_is_a_conflict(run, namespace):
    async def go(client: HttpClient) -> None:
        uid = await make(client, namespace, "a")
        async with Bench(client) as bench:
            await bench.do(d.Bind(1, namespace, "a", uid, node="n1"))
            outcomes = await bench.do(d.Bind(2, namespace, "a", uid, node="n2"))
        assert outcomes[2].problem == CONFLICT
        assert "n1" in outcomes[2].message

    run(go)


def test_a_pod_that_is_gone_or_replaced_is_not_found(run, namespace):
    async def go(client: HttpClient) -> None:
        async with Bench(client) as bench:
            outcomes = await bench.do(d.Bind(1, namespace, "absent", "uid", node="n1"))
            assert outcomes[1].problem == NOT_FOUND
            await make(client, namespace, "a")
            outcomes = await bench.do(d.Bind(2, namespace, "a", "another-uid", node="n1"))
        assert outcomes[2].problem in (NOT_FOUND, CONFLICT, PERMANENT)
        assert "nodeName" not in (await read(client, namespace, "a"))["spec"]

    run(go)


def test_a_refusal_never_overtakes_a_bind(run, namespace):
    async def go(client: HttpClient) -> None:
        uid = await make(client, namespace, "a")
        async with Bench(client) as bench:
            await bench.do(
                d.SetPodCondition(1, namespace, "a", uid, reason="Unschedulable", message="no room"),
                d.Bind(2, namespace, "a", uid, node="n1"),
            )
        conditions = {c["type"]: c["status"] for c in (await read(client, namespace, "a"))["status"]["conditions"]}
        assert conditions["PodScheduled"] == "True"

    run(go)


def test_only_the_last_of_many_messages_is_written_and_the_transition_time_stays(run, namespace):
    async def go(client: HttpClient) -> None:
        uid = await make(client, namespace, "a")
        async with Bench(client) as bench:
            await bench.do(d.SetPodCondition(1, namespace, "a", uid, reason="Unschedulable", message="first"))
            before = (await read(client, namespace, "a"))["metadata"]["resourceVersion"]
            many = [
                d.SetPodCondition(n, namespace, "a", uid, reason="Unschedulable", message=f"message {n}")
                for n in range(2, 40)
            ]
            await bench.do(*many)
            after = await read(client, namespace, "a")
        condition = next(c for c in after["status"]["conditions"] if c["type"] == "PodScheduled")
        assert condition["message"] == "message 39"
        writes = int(after["metadata"]["resourceVersion"]) - int(before)
        assert writes < len(many)

    run(go)


def test_a_nomination_is_set_and_cleared(run, namespace):
    async def go(client: HttpClient) -> None:
        uid = await make(client, namespace, "a")
        async with Bench(client) as bench:
            await bench.do(d.Nominate(1, namespace, "a", uid, node="n1"))
            assert (await read(client, namespace, "a"))["status"]["nominatedNodeName"] == "n1"
            await bench.do(d.Nominate(2, namespace, "a", uid))
        assert "nominatedNodeName" not in (await read(client, namespace, "a"))["status"]

    run(go)


def test_an_evicted_pod_says_why_before_it_goes(run, namespace):
    async def go(client: HttpClient) -> None:
        uid = await make(client, namespace, "a")
        async with Bench(client) as bench:
            await bench.do(d.Bind(1, namespace, "a", uid, node="n1"))
            await bench.do(
                d.Evict(2, namespace, "a", uid, message="sched: preempting", event_message="Preempted by pod x")
            )
            await bench.recorder.flush()
        victim = await read(client, namespace, "a")
        assert "deletionTimestamp" in victim["metadata"]
        condition = next(c for c in victim["status"]["conditions"] if c["type"] == "DisruptionTarget")
        assert (condition["status"], condition["reason"]) == ("True", "PreemptionByScheduler")
        events = json.loads(await client.list(EVENTS_V1, namespace))["items"]
        assert [(e["reason"], e["note"]) for e in events] == [("Preempted", "Preempted by pod x")]

    run(go)


def test_repeated_events_become_one(run, namespace):
    async def go(client: HttpClient) -> None:
        uid = await make(client, namespace, "a")
        async with Bench(client) as bench:
            event = {"reason": "FailedScheduling", "action": "Scheduling", "message": "no room", "type": "Warning"}
            await bench.do(*(d.RecordEvent(n, namespace, "a", uid, **event) for n in range(1, 6)))
            await bench.recorder.flush()
        events = json.loads(await client.list(EVENTS_V1, namespace))["items"]
        assert [e["note"] for e in events] == ["no room"]
        assert events[0]["regarding"]["uid"] == uid

    run(go)


def test_a_scheduler_that_may_have_lost_the_lease_neither_binds_nor_evicts(run, namespace):
    """A process that was stopped for longer than its lease lasts goes on where it was: it looks before each write."""

    async def act(client: HttpClient) -> None:
        async with Bench(client) as bench:
            mine = False
            bench.executor._may_act = lambda: mine
            uid, other = await make(client, namespace, "a"), await make(client, namespace, "b")
            outcomes = await bench.do(
                d.Bind(1, namespace, "a", uid, node="node-0"), d.Evict(2, namespace, "b", other, message="m")
            )
            assert [outcomes[n].problem for n in (1, 2)] == [TRANSIENT, TRANSIENT]
            assert "lease" in outcomes[1].message
            assert not (await read(client, namespace, "a"))["spec"].get("nodeName")
            assert not (await read(client, namespace, "b"))["metadata"].get("deletionTimestamp")
            mine = True
            assert (await bench.do(d.Bind(3, namespace, "a", uid, node="node-0")))[3].problem == ""

    run(act)
