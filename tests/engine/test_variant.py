"""A remedy that changes the cluster can be asked about: more nodes, a filter left out."""

from __future__ import annotations

import random
from typing import Any

import pytest

from phalanx.base.errors import BadRequest
from phalanx.engine.explain import Question, WhatIfAnswer, whatif
from phalanx.serve.queries.variant import MoreNodes, Variant
from phalanx.testing.builders import gang, node, pod
from support.asked_engine import Asked, racks


def ask(run: Asked, variant: Variant, *builders: Any) -> WhatIfAnswer:
    built = [builder.build() for builder in builders]
    question = Question(
        pods=[each for each in built if type(each).__name__ == "Pod"],
        pod_groups=[each for each in built if type(each).__name__ == "PodGroup"],
    )
    variant.put_into(run.engine)
    run.engine.validate()
    return whatif(run.engine, question)


def remedy(outlook: WhatIfAnswer, change: str) -> str:
    return next(each.to for each in outlook.items[0].relaxations if each.change == change and each.fits)


@pytest.mark.parametrize("seed", range(20))
def test_as_many_nodes_as_were_said_to_help_do_and_one_fewer_does_not(seed: int) -> None:
    chance = random.Random(seed)
    key = chance.choice(["rack", "block", ""])
    size = {"rack": 3, "block": 5, "": 9}[key] + chance.randrange(6)

    def fresh() -> Asked:
        run = Asked().see(*racks())
        run.see(*(pod(f"there-{i}").cpu("2") for i in range(seed % 4)))
        run.step()
        return run

    count, like = remedy(ask(fresh(), Variant(), *gang("g", size, "3", topology=key)), "nodes").split()
    fewer = Variant([MoreNodes(int(count) - 1, like)] if int(count) > 1 else [])
    assert not ask(fresh(), fewer, *gang("g", size, "3", topology=key)).fits
    (would,) = ask(fresh(), Variant([MoreNodes(int(count), like)]), *gang("g", size, "3", topology=key)).items
    assert would.fits and would.pods == size
    new = [share.node for place in would.places for share in place.nodes if share.node.startswith(f"{like}-more-")]
    assert len(new) == int(count)


def test_a_filter_left_out_opens_its_nodes_and_no_others() -> None:
    def fresh() -> Asked:
        tainted = [node(f"t{i}").cpu("4").taint("team", "a", "NoSchedule") for i in range(3)]
        return Asked().see(*tainted, node("free").cpu("4"), node("closed").cpu("4").unschedulable())

    (no,) = (refused := ask(fresh(), Variant(), *gang("g", 4, "3"))).items
    assert not no.fits
    name = remedy(refused, "filter")
    assert name == "TaintToleration"
    (would,) = ask(fresh(), Variant(without_filters=[name]), *gang("g", 4, "3")).items
    assert {share.node for place in would.places for share in place.nodes} == {"t0", "t1", "t2", "free"}
    assert not ask(fresh(), Variant(without_filters=["NodeUnschedulable"]), *gang("g", 4, "3")).fits
    both = Variant(without_filters=["NodeUnschedulable", name])
    assert ask(fresh(), both, *gang("g", 5, "3")).fits


def test_a_cordon_is_lifted_with_its_taint() -> None:
    closed = node("closed").cpu("4").unschedulable().taint("node.kubernetes.io/unschedulable", "", "NoSchedule")
    assert not ask(Asked().see(closed), Variant(), pod("p").cpu("1")).fits
    run = Asked().see(closed)
    assert remedy(ask(run, Variant(), pod("p").cpu("1")), "filter") == "NodeUnschedulable"
    assert ask(run, Variant(without_filters=["NodeUnschedulable"]), pod("p").cpu("1")).fits


def test_what_cannot_be_changed_is_reported_with_what_can() -> None:
    run = Asked().see(*racks())
    for variant, words in (
        (Variant([MoreNodes(1, "ghost")]), "there is no node 'ghost'"),
        (Variant([MoreNodes(0, "n0")]), "from 1 to"),
        (Variant([MoreNodes(10**9, "n0")]), "from 1 to"),
        (Variant(without_filters=["Ghost"]), "there is no filter 'Ghost'; filters that can be left out are DynamicRes"),
        (Variant(without_filters=["NodeResourcesFit"]), "cannot be left out: add nodes"),
    ):
        with pytest.raises(BadRequest, match=words):
            variant.put_into(run.engine)
