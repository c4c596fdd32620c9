"""Requests made to be slow: refused early, read in linear work, or read beside the loop. Others are served meanwhile.

Nothing here looks at a clock: what used to take minutes would simply not end, and a loop that is held up does not tick.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from typing import Any

import pytest

from phalanx.base.errors import BadRequest, Invalid, NotAcceptable, RequestEntityTooLarge
from phalanx.controllers.workloads.jobset.policy import FAIL, RESTART, reaction
from phalanx.local.api import view
from phalanx.local.api.handler import Api
from phalanx.local.api.request import Answer
from phalanx.model import names
from phalanx.model.decode import MAX_VALUES, parse
from phalanx.model.quantity import BadQuantity
from phalanx.model.quantity import parse as quantity
from phalanx.model.selectors import MAX_TERMS, parse_labels
from support.api_world import APPLY, CONFIGS, JSON_PATCH, PODS, World, config
from support.manifests import pod

pytestmark = pytest.mark.timeout(60)
YAML = "application/yaml"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def with_ticks(world: World, work: Coroutine[Any, Any, Answer]) -> tuple[Answer, int]:
    """The answer, and how often another task got its turn before it was there."""

    async def both() -> tuple[Answer, int]:
        count = 0

        async def tick() -> None:
            nonlocal count
            while True:
                count += 1
                await asyncio.sleep(0)

        other = asyncio.ensure_future(tick())
        try:
            answer = await work
            return answer, count
        finally:
            other.cancel()

    return world.run(both())


@pytest.mark.parametrize(
    "text", ["1" * 400_000, "1" * 400_000 + "x", "." * 400_000, "m" * 400_000, "1e" + "0" * 400_000]
)
def test_an_endless_quantity_is_refused(text: str) -> None:
    with pytest.raises(BadQuantity):
        quantity(text)


def test_a_pod_with_an_endless_quantity_is_refused(world: World) -> None:
    container = {"name": "main", "image": "x", "resources": {"requests": {"cpu": "1" * 400_000}}}
    with pytest.raises(BadRequest, match="quantity"):
        world.create(PODS, pod(containers=[container]))


def definition(pattern: str) -> dict[str, Any]:
    schema = {"type": "object", "properties": {"spec": {"type": "object", "properties": {"a": {"type": "string"}}}}}
    schema["properties"]["spec"]["properties"]["a"]["pattern"] = pattern  # type: ignore[index]
    return {
        "metadata": {"name": "traps.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Namespaced",
            "names": {"plural": "traps", "singular": "trap", "kind": "Trap", "listKind": "TrapList"},
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}],
        },
    }


@pytest.mark.parametrize("pattern", [r"^(a+)+$", r"^(a|aa)+$", r"^(.*a){20}$", r"^([a-z]+)*\d$"])
def test_a_pattern_that_backtracks_costs_no_more_than_another(world: World, pattern: str) -> None:
    world.create(DEFINITIONS, definition(pattern))
    traps = "/apis/example.com/v1/namespaces/ns/traps"
    with pytest.raises(Invalid, match="should match"):
        world.create(traps, {"metadata": {"name": "a"}, "spec": {"a": "a" * 5000 + "!"}})


@pytest.mark.parametrize("pattern", ["(a", r"(?=a)b", r"(a)\1", "((((a{100}){100}){100}){100})"])
def test_a_pattern_outside_the_dialect_is_refused_with_its_definition(world: World, pattern: str) -> None:
    with pytest.raises(Invalid, match="must be a valid regular expression"):
        world.create(DEFINITIONS, definition(pattern))


def test_a_failure_policy_of_a_jobset_cannot_hold_up_its_controller() -> None:
    condition = {"type": "Failed", "status": "True", "reason": "x", "message": "a" * 5000 + "!"}
    condition["lastTransitionTime"] = "2026-01-01T00:00:00Z"
    job = {"metadata": {"name": "j"}, "status": {"conditions": [condition]}}
    rule = {"action": FAIL, "onJobFailureMessagePatterns": ["^(a+)+$", "(?<=no lookbehind)a"]}
    assert reaction({"spec": {"failurePolicy": {"rules": [rule]}}}, [job]).action == RESTART
    rule["onJobFailureMessagePatterns"] = ["^a+!$"]
    assert reaction({"spec": {"failurePolicy": {"rules": [rule]}}}, [job]).action == FAIL


@pytest.mark.parametrize(
    ("body", "content"),
    [
        (b'{"data":[' + b"1," * MAX_VALUES + b"1]}", "application/json"),
        (b'{"data":[' + b"[]," * MAX_VALUES + b"1]}", "application/json"),
        (b"a:\n" + b"- a\n" * (2 * MAX_VALUES), YAML),
        (b"".join(b"k%d: 1\n" % i for i in range(MAX_VALUES + 1)), YAML),
    ],
)
def test_a_body_of_too_many_values_is_refused(body: bytes, content: str) -> None:
    with pytest.raises(RequestEntityTooLarge, match=str(MAX_VALUES)):
        parse(body, content)


def test_many_commas_in_few_values_are_fine() -> None:
    found, _ = parse(json.dumps({"data": {"csv": "," * 500_000}}).encode(), "application/json")
    assert len(found["data"]["csv"]) == 500_000


def test_a_long_yaml_body_is_read_beside_the_loop_and_means_the_same(world: World) -> None:
    lines = "".join(f"  key-{i}: 'value {i}'\n" for i in range(12_000))
    body = f"apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: long}}\nunheard: of\ndata:\n{lines}  key-1: again\n"
    api = Api(world.ctx, world.writer)
    request = world.request("create", CONFIGS, body.encode(), YAML, fieldValidation="Warn")
    answer, ticks = with_ticks(world, api.handle(request))
    assert ticks > 10
    assert answer.warnings == ('line 12006: key "key-1" already set in map', 'unknown field "unheard"')
    stored = world.get(f"{CONFIGS}/long")
    assert stored["data"]["key-1"] == "again" and len(stored["data"]) == 12_000


def test_a_long_applied_yaml_is_read_beside_the_loop_too(world: World) -> None:
    lines = "".join(f"  key-{i}: 'value {i}'\n" for i in range(2_000))
    body = f"apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: long}}\ndata:\n{lines}"
    request = world.request("patch", f"{CONFIGS}/long", body.encode(), APPLY, fieldManager="me")
    answer, ticks = with_ticks(world, Api(world.ctx, world.writer).handle(request))
    assert answer.code == 201 and ticks > 2
    assert len(world.get(f"{CONFIGS}/long")["data"]) == 2_000


def test_a_list_held_against_a_long_selector_lets_others_in(world: World) -> None:
    for i in range(200):
        world.create(CONFIGS, config(f"c{i:03}"))
    selector = ",".join(f"k{i}!=v" for i in range(MAX_TERMS))
    request = world.request("list", CONFIGS, labelSelector=selector)
    answer, ticks = with_ticks(world, Api(world.ctx, world.writer).handle(request))
    assert len(json.loads(answer.whole())["items"]) == 200
    assert ticks >= 10
    page = world.request("list", CONFIGS, labelSelector=selector, limit="150")
    first = json.loads(world.run(Api(world.ctx, world.writer).handle(page)).whole())
    assert len(first["items"]) == 150
    rest = world.request("list", CONFIGS, labelSelector=selector, **{"continue": first["metadata"]["continue"]})
    assert len(json.loads(world.run(Api(world.ctx, world.writer).handle(rest)).whole())["items"]) == 50


@pytest.mark.parametrize(
    "query",
    [
        {"labelSelector": ",".join(f"k{i}!=v" for i in range(MAX_TERMS + 1))},
        {"fieldSelector": ",".join(f"metadata.name!=v{i}" for i in range(MAX_TERMS + 1))},
    ],
)
def test_a_selector_of_too_many_terms_is_refused(world: World, query: dict[str, str]) -> None:
    with pytest.raises(BadRequest, match=f"more than {MAX_TERMS}"):
        world.run(Api(world.ctx).handle(world.request("list", CONFIGS, **query)))


def test_a_long_set_of_values_is_looked_up_not_walked() -> None:
    (requirement,) = parse_labels(f"app in ({','.join(f'v{i}' for i in range(5000))})").requirements
    assert isinstance(requirement.members, frozenset)
    assert requirement.matches({"app": "v4999"}) and not requirement.matches({"app": "w"})


def test_a_long_answer_in_yaml_is_written_beside_the_loop(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.create(CONFIGS, config("long", **{f"k{i}": "v" for i in range(5000)}))
    request = world.request("get", f"{CONFIGS}/long")
    request.accept = YAML
    answer, ticks = with_ticks(world, Api(world.ctx).handle(request))
    assert answer.body.startswith(b"apiVersion: v1") and ticks > 10
    monkeypatch.setattr(view, "YAML_BYTES", 1000)
    with pytest.raises(NotAcceptable, match="ask for JSON"):
        world.run(Api(world.ctx).handle(request))


def test_thousands_of_spread_constraints_are_checked_once_each(world: World) -> None:
    constraints = [{"maxSkew": 1, "topologyKey": f"k{i}", "whenUnsatisfiable": "DoNotSchedule"} for i in range(6_000)]
    with pytest.raises(Invalid, match=r"topologySpreadConstraints\[0\].*Duplicate value: \"{k0, DoNotSchedule}\""):
        world.create(PODS, pod(topologySpreadConstraints=[*constraints, constraints[0]]))


def test_a_patch_of_very_many_operations_is_refused(world: World) -> None:
    world.create(CONFIGS, config("a"))
    operations = [{"op": "add", "path": "/data", "value": {}}] * 10_001
    with pytest.raises(RequestEntityTooLarge, match="10000"):
        world.patch(f"{CONFIGS}/a", operations, JSON_PATCH)


def test_names_of_megabytes_are_not_remembered() -> None:
    before = names._label_matches.cache_info().currsize, names._value_matches.cache_info().currsize
    for i in range(5):
        assert names.dns_label(f"{i}" * 100_000) and names.label_value(f"{i}" * 100_000)
    assert before == (names._label_matches.cache_info().currsize, names._value_matches.cache_info().currsize)
