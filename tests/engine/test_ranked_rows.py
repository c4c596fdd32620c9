"""The lowest row of a table, held against looking at all rows: whatever changes, and whichever rows are allowed."""

import random

import numpy as np
import pytest

from phalanx.engine.preemption.ranking import SHORTLIST, RankedRows

ROWS = 5 * SHORTLIST


def some_allowed(rng: random.Random) -> np.ndarray:
    return np.array([rng.random() for _ in range(ROWS)]) < rng.choice((0.0, 0.004, 0.1, 1.0))


@pytest.mark.parametrize("seed", range(8))
def test_the_lowest_is_the_lowest_of_all(seed):
    rng = random.Random(seed)
    values = (2, 3, 1000)[seed % 3]  # many alike, or hardly any
    ranked, plain = RankedRows(3, ROWS), {}
    for turn in range(600):
        for _ in range(rng.choice((0, 1, 1, 2, 40))):
            row = rng.randrange(ROWS)
            if rng.random() < (0.2 if turn < 300 else 0.7):  # filled first, emptied later
                ranked.forget(row)
                plain.pop(row, None)
            else:
                plain[row] = tuple(float(rng.randrange(-values, values)) for _ in range(3))
                ranked.put(row, plain[row])
        allowed = some_allowed(rng)
        inside = sorted((key, row) for row, key in plain.items() if allowed[row])
        lowest = ranked.lowest(allowed)
        assert lowest == (inside[0][1] if inside else -1)
        if inside:
            than = rng.choice(inside)[0]
            assert ranked.key(lowest) == inside[0][0]
            assert ranked.below(allowed, than) == [row for key, row in inside if key < than]
    assert ranked.possible.sum() == len(plain)


def test_used_up_row_by_row_it_answers_in_order():
    ranked, all_pods = RankedRows(2, ROWS), np.ones(ROWS, dtype=bool)
    for row in range(ROWS):
        ranked.put(row, (float(row % 7), float(-row)))
    announced = []
    while (row := ranked.lowest(all_pods)) >= 0:
        announced.append(row)
        ranked.forget(row)
    assert announced == sorted(range(ROWS), key=lambda row: (row % 7, -row))
