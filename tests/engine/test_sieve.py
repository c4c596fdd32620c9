"""The sieve finds exactly the sleepers a row has room for, whatever they ask for."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.engine.framework import Wake
from phalanx.engine.scheduling.queue.units import EquivalenceClass
from phalanx.engine.state.capacity_index import CapacityIndex
from phalanx.engine.state.columns import Columns
from phalanx.testing.builders import node

RESOURCES = ["cpu", "memory", "pods", "a.io/x", "b.io/y"]
requests = st.dictionaries(st.sampled_from(RESOURCES), st.integers(1, 6), max_size=4)
steps = st.lists(st.tuples(requests, st.booleans(), st.integers(0, 200)), max_size=120)


@settings(max_examples=60, deadline=None)
@given(steps=steps, offer=st.dictionaries(st.sampled_from(RESOURCES), st.integers(0, 5)))
def test_the_sieve_agrees_with_asking_each_sleeper(steps, offer):
    columns = Columns()
    built = node("n")
    for name in RESOURCES:
        built.resource(name, f"{offer.get(name, 0)}m" if name == "cpu" else offer.get(name, 0))
    rids = {name: columns.resource(name) for name in RESOURCES}
    row = columns.set_node(built.build())
    sieve = CapacityIndex(columns)
    sleepers: dict[int, tuple[EquivalenceClass, tuple[tuple[int, float], ...]]] = {}
    for number, (wanted, leaves, who) in enumerate(steps):
        needs = tuple(sorted((rids[name], float(amount)) for name, amount in wanted.items()))
        bucket = EquivalenceClass(number, Wake.NOTHING, None, "", None)
        sleepers[number] = (bucket, needs)
        sieve.add(bucket, needs)
        if leaves:
            gone = list(sleepers)[who % len(sleepers)]
            sieve.remove(sleepers.pop(gone)[0])
    expected = {
        key for key, (_, needs) in sleepers.items() if all(amount <= columns.alloc[rid, row] for rid, amount in needs)
    }
    assert {bucket.key for bucket in sieve.passing(row)} == expected
    assert len(sieve) == len(sleepers)
