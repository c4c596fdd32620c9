"""Which Services select a pod: kept by label, and the same as asking every Service there is."""

from __future__ import annotations

import random

import msgspec
import pytest

from phalanx.engine.state.objects import Objects
from phalanx.model.objects import Service


def service(namespace: str, name: str, selector: dict[str, str] | None) -> Service:
    body = {"metadata": {"namespace": namespace, "name": name}, "spec": {"selector": selector}}
    return msgspec.convert(body, Service)


@pytest.mark.parametrize("seed", range(5))
def test_services_found_by_label_are_those_that_select_the_pod(seed: int) -> None:
    rng, objects = random.Random(seed), Objects()
    there: dict[tuple[str, str], Service] = {}

    def labels(most: int) -> dict[str, str]:
        return {key: rng.choice("xyz") for key in rng.sample("abcd", rng.randrange(most + 1))}

    for _ in range(400):
        namespace, name = rng.choice(("one", "two")), f"s{rng.randrange(20)}"
        if rng.random() < 0.3:
            objects.remove("Service", namespace, name)
            there.pop((namespace, name), None)
        else:
            made = service(namespace, name, rng.choice((labels(3), labels(1), None)))
            there[namespace, name] = made
            objects.put(made)
        pod = labels(4)
        wanted = [
            each.metadata.name
            for (where, _), each in sorted(there.items())
            if where == namespace and each.spec.selector and each.spec.selector.items() <= pod.items()
        ]
        assert [each.metadata.name for each in objects.services_of(namespace, pod)] == wanted
