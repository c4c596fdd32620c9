"""How many more pods of a shape fit on each node: kept up to date row by row, always as if counted again."""

from __future__ import annotations

import random

import numpy as np

from phalanx.engine.framework.evaluation import Evaluation
from phalanx.testing import Cluster
from phalanx.testing.builders import node, pod


def test_slots_that_are_followed_equal_slots_that_are_counted():
    rng = random.Random(5)
    run = Cluster().see(*(node(f"n{i}").cpu(rng.choice(["1", "2", "4"])).pods(5) for i in range(60)))
    run.see(pod("probe").cpu("500m").port(80).gate("x"), pod("plain").cpu("500m").gate("x")).step()
    engine = run.engine
    probes = [engine.pods.records[f"default/{name}"] for name in ("probe", "plain")]
    for i in range(200):
        name = f"p{rng.randrange(80)}"
        if name in run.pods:
            run.gone("Pod", name)
        else:
            run.see(pod(name).uid(f"u{i}").cpu(rng.choice(["250m", "1"])).node(f"n{rng.randrange(60)}"))
        if i % 17 == 0:
            run.see(node(f"n{rng.randrange(60)}").cpu(rng.choice(["0", "3"])).pods(3))
        if rng.random() < 0.6:
            continue
        for probe in probes:
            followed = engine.cluster.evaluation(probe)
            fresh = Evaluation(probe.shape, followed.profile, engine.columns, engine.objects)
            fresh.refresh()
            assert np.array_equal(followed.slots(), fresh.slots())
