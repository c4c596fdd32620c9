"""The capacity index finds exactly the waiting classes for whose requests a row has room."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.engine.scheduling.queue.units import EquivalenceClass
from phalanx.engine.state.capacity_index import CapacityIndex
from phalanx.engine.state.columns import Columns
from phalanx.testing.builders import node

RESOURCES = ["cpu", "memory", "pods", "a.io/x", "b.io/y"]
requests = st.dictionaries(st.sampled_from(RESOURCES), st.integers(1, 6), max_size=4)
steps = st.lists(st.tuples(requests, st.booleans(), st.integers(0, 200)), max_size=120)


@settings(max_examples=60, deadline=None)
@given(steps=steps, offer=st.dictionaries(st.sampled_from(RESOURCES), st.integers(0, 5)))
def test_the_index_agrees_with_a_check_of_each_class(steps, offer):
    columns = Columns()
    built = node("n")
    for name in RESOURCES:
        built.resource(name, f"{offer.get(name, 0)}m" if name == "cpu" else offer.get(name, 0))
    rids = {name: columns.resource(name) for name in RESOURCES}
    row = columns.set_node(built.build())
    index = CapacityIndex(columns)
    waiting: dict[int, tuple[EquivalenceClass, tuple[tuple[int, float], ...]]] = {}
    for number, (wanted, leaves, who) in enumerate(steps):
        needs = tuple(sorted((rids[name], float(amount)) for name, amount in wanted.items()))
        waiting_class = EquivalenceClass(number)
        waiting[number] = (waiting_class, needs)
        index.add(waiting_class, needs)
        if leaves:
            gone = list(waiting)[who % len(waiting)]
            index.remove(waiting.pop(gone)[0])
    expected = {
        key for key, (_, needs) in waiting.items() if all(amount <= columns.alloc[rid, row] for rid, amount in needs)
    }
    assert {waiting_class.key for waiting_class in index.passing(row)} == expected
    assert len(index) == len(waiting)
