"""GPUFragmentation: its scores equal those of a plain loop, and GPUs stay usable that best fit strands."""

from __future__ import annotations

import random
from math import floor
from typing import Any

import numpy as np
import pytest

from phalanx.engine.engine import Engine
from phalanx.engine.framework.settings import EngineSettings, PluginUse, ProfileSettings
from phalanx.engine.plugins.config import read_config
from phalanx.engine.plugins.gpu_fragmentation import FragmentationScore, GPUFragmentation, Nodes, PodType
from phalanx.engine.plugins.registry import DEFAULT_PLUGINS
from phalanx.engine.state.columns import CPU, MEMORY
from phalanx.model import objects as o
from phalanx.testing import Cluster
from phalanx.testing.builders import node, pod
from support.device_world import DRIVER, Json, World, asks, claim, consumer, device, device_node, published
from support.verdicts import binds

NAME = "GPUFragmentation"
GPU = "example.com/gpu"
NODE_B = ("metadata.name", "In", ["b"])


def settings(weight: int) -> EngineSettings:
    uses = tuple(PluginUse(name) for name in DEFAULT_PLUGINS if name != NAME)
    uses = (*uses, PluginUse(NAME, weight)) if weight else uses
    args = {NAME: {"onlySharedDevices": False}}
    return EngineSettings(profiles=(ProfileSettings(plugins=uses, args=args),))


def part_of(name: str, **attributes: object) -> Json:
    """A device of 1,000 parts."""
    return {**device(name, **attributes), "allowMultipleAllocations": True, "capacity": {"milli": {"value": "1000"}}}


def wants(milli: int, count: int = 1, model: str = "") -> Json:
    cel = f'device.attributes["{DRIVER}"].model == "{model}"' if model else ""
    return asks(count=count, cel=cel, capacity={"requests": {"milli": str(milli)}})


# ---- the same scores as a plain loop


def free_devices(nodes: Nodes, row: int) -> list[tuple[Any, float]]:
    holdings = nodes.state.holdings
    return [
        (each, 0.0 if holdings.in_use(each) else 1.0 - holdings.consumed(each, "milli") / (1000 * 10**9))
        for each in nodes.state.view(row).devices
    ]


def share(nodes: Nodes, kind: PodType, each: Any) -> float | None:
    """The share of a device that a pod takes; None if it cannot use the device."""
    assert kind.request is not None
    if kind.request.selects(each, nodes.state.selectors) is not True:
        return None
    takes = kind.request.takes(each)
    return None if takes is None else takes["milli"] / (1000 * 10**9)


def usable(
    nodes: Nodes, cpu: float, memory: float, extended: dict[int, float], devices: list[tuple[Any, float]]
) -> float:
    total = 0.0
    for kind, fraction in nodes.mix.types:
        limits = [floor(cpu / kind.cpu)] if kind.cpu else []
        limits += [floor(memory / kind.memory)] if kind.memory else []
        limits += [floor(extended[rid] / units) for rid, units in kind.extended]
        gpus = sum(units for _, units in kind.extended)
        if kind.request is not None:
            shares = [(free, need) for each, free in devices if (need := share(nodes, kind, each)) is not None]
            if kind.request.count == 1:
                limits.append(sum(floor(free / need + 1e-6) for free, need in shares))
            else:
                limits.append(sum(free >= need - 1e-6 for free, need in shares) // kind.request.count)
            gpus += kind.request.count * min((need for _, need in shares), default=0.0)
        total += fraction * gpus * max(0, min(limits))
    return total


def plain_score(nodes: Nodes, kind: PodType, row: int) -> float:
    columns = nodes.columns
    free = {rid: columns.alloc[rid, row] - columns.used[rid, row] for rid in range(len(columns.resource_names))}
    devices = free_devices(nodes, row)
    before = usable(nodes, free[CPU], free[MEMORY], free, devices)
    left = dict(free)
    for rid, units in kind.extended:
        left[rid] -= units
    if kind.request is not None:
        fits = [(part, at) for at, (each, part) in enumerate(devices)
                if (need := share(nodes, kind, each)) is not None and part >= need - 1e-6]  # fmt: skip
        for _, at in sorted(fits)[: kind.request.count]:
            each, part = devices[at]
            devices[at] = each, part - (share(nodes, kind, each) or 0.0)
    return usable(nodes, free[CPU] - kind.cpu, free[MEMORY] - kind.memory, left, devices) - before


def free_gpus(nodes: Nodes, row: int) -> float:
    columns = nodes.columns
    names = enumerate(columns.resource_names)
    extended = sum(columns.alloc[rid, row] - columns.used[rid, row] for rid, name in names if name == GPU)
    return float(extended) + sum(part for _, part in free_devices(nodes, row))


def waiting_pods(world: World, draw: random.Random) -> list[o.Pod]:
    made: list[o.Pod] = []
    for number in range(6):
        request = wants(draw.choice([100, 250, 500, 1000]), draw.choice([1, 1, 2]), draw.choice(["", "x", "y"]))
        world.see(claim(f"w{number}", request))
        made.append(consumer(f"w{number}", f"w{number}", cpu=draw.choice(["1", "3"])))
    whole = pod("whole").uid("whole").cpu("2").mem("1Gi").resource(GPU, 2, limit=True).build()
    return [*made, whole, consumer("none", cpu="4")]


@pytest.mark.parametrize("seed", range(4))
def test_scores_equal_those_of_a_plain_loop_after_every_change(seed: int):
    draw = random.Random(seed)
    world = World(settings=settings(10))
    for number in range(5):
        name = f"d{number}"
        parts = [part_of(f"g{n}", model=draw.choice("xy"), serial=f"{name}-{n}") for n in range(draw.choice([1, 2, 4]))]
        world.see(device_node(name, draw.choice(["8", "16"])), published(name, *parts))
    for number in range(3):
        world.see(node(f"e{number}").cpu("8").mem("16Gi").resource(GPU, draw.choice([2, 4])).build())
    engine = world.engine
    plugin = engine.profiles["default-scheduler"].plugins[NAME]
    assert isinstance(plugin, GPUFragmentation)
    nodes, columns = plugin.nodes, engine.columns
    trackers = [plugin.track_score(engine.shapes.of(each), columns) for each in waiting_pods(world, draw)]
    for tracker in trackers:
        tracker.rebuild()
    position, compared, bound = columns.log.position, 0, []
    for number in range(24):
        name = f"p{number}"
        if bound and draw.random() < 0.2:
            world.gone("Pod", bound.pop(draw.randrange(len(bound))))
        elif draw.random() < 0.7:
            world.see(claim(name, wants(draw.choice([200, 300, 1000]), draw.choice([1, 2]), draw.choice(["", "x"]))))
            world.see(consumer(name, name, cpu=draw.choice(["1", "2"])))
        else:
            world.see(pod(name).uid(name).cpu("2").mem("1Gi").resource(GPU, draw.choice([1, 2]), limit=True).build())
        world.run(3)
        bound = sorted(world.bound)
        changes = columns.log.since(position)
        position = columns.log.position
        for tracker in trackers:
            tracker.update(changes)
            if isinstance(tracker, FragmentationScore):
                kind = nodes.type_of(tracker.shape)
                lost = [-plain_score(nodes, kind, row) for row in range(columns.n)]
            else:
                lost = [free_gpus(nodes, row) for row in range(columns.n)]
            np.testing.assert_allclose(tracker.raw[: columns.n], -np.array(lost), atol=1e-7)
            compared += any(lost)
    assert compared > 20 and len(nodes.mix.types) > 3


def test_an_attribute_that_a_selector_names_later_divides_the_kinds_of_devices():
    world = World(device_node("a"), published("a", part_of("g0", model="x")), settings=settings(10))
    world.see(device_node("b"), published("b", part_of("g0", model="y")))
    world.see(claim("c", wants(300)), consumer("p", "c")).run(3)
    world.see(claim("d", wants(300, model="y")), consumer("q", "d")).run(3)
    plugin = world.engine.profiles["default-scheduler"].plugins[NAME]
    plugin.nodes.sync()
    types = plugin.nodes.mix.types
    (request,) = [kind.request for kind, _ in types if kind.request and len(kind.request.selectors) == 2]
    assert sorted(plugin.nodes.mix.shares(request).tolist()) == [0.3, np.inf, np.inf]


# ---- what it is for


@pytest.mark.parametrize(("weight", "waits"), [(0, {"p3"}), (3, set())])
def test_a_part_of_a_gpu_does_not_take_the_last_room_of_a_larger_part(weight: int, waits: set[str]):
    world = World(device_node("a", "16"), published("a", part_of("g0")), settings=settings(weight))
    world.see(claim("p1", wants(500)), consumer("p1", "p1", cpu="4")).run(3)
    world.see(device_node("b", "16"), published("b", part_of("g0")))
    world.see(claim("r", wants(200)))
    world.see(pod("r").uid("r").cpu("4").claim("r", "r").node_affinity(fields=[NODE_B]).build()).run(3)
    assert world.bound == {"p1": "a", "r": "b"}
    world.see(claim("q", wants(300)), consumer("q", "q")).run(3)
    for name in ("p2", "p3"):
        world.see(claim(name, wants(500)), consumer(name, name, cpu="4")).run(3)
    assert {"p1", "r", "q", "p2", "p3"} - world.bound.keys() == waits


@pytest.mark.parametrize(("weight", "chosen", "later"), [(0, "gpus", 1), (3, "plain", 2)])
def test_a_pod_without_gpus_leaves_the_cpus_of_free_gpus(weight: int, chosen: str, later: int):
    run = Cluster(Engine(settings(weight)))
    run.see(node("full").cpu(4).resource(GPU, 1), pod("first").cpu(4).resource(GPU, 1, limit=True))
    run.step()
    run.see(node("plain").cpu(8), pod("other").cpu(4))
    run.step()
    run.see(node("gpus").cpu(8).resource(GPU, 2), pod("third").cpu(4))
    assert binds(run.step()) == {"third": chosen}
    run.see(*(pod(f"gpu{n}").cpu(4).resource(GPU, 1, limit=True) for n in range(2)))
    assert len(binds(run.step())) == later


# ---- configuration


def test_the_weight_and_the_argument_are_read_from_the_configuration():
    assert NAME in Engine().profiles["default-scheduler"].plugins
    document = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "profiles": [
            {
                "plugins": {"score": {"disabled": [{"name": NAME}], "enabled": [{"name": NAME, "weight": 5}]}},
                "pluginConfig": [{"name": NAME, "args": {"onlySharedDevices": False}}],
            }
        ],
    }
    profile = Engine(read_config(document).engine()).profiles["default-scheduler"]
    assert [weight for plugin, weight in profile.scores if plugin.name == NAME] == [5]
    plugin = profile.plugins[NAME]
    assert isinstance(plugin, GPUFragmentation)
    assert plugin.applies


def chosen_node(world: World, name: str) -> str:
    world.see(pod(name).uid(name).cpu("1").build()).run(3)
    return world.bound[name]


def test_by_default_it_applies_while_a_device_can_be_divided():
    world = World(device_node("a", "16"), published("a", device("g0")))
    world.see(device_node("b", "8"))
    assert chosen_node(world, "p1") == "a"  # most free CPU, as kube-scheduler
    world.see(published("a", part_of("g0")))
    assert chosen_node(world, "p2") == "b"  # leaves its CPUs to the GPU
    world.see(published("a", device("g0")))
    assert chosen_node(world, "p3") == "a"


def test_decisions_do_not_change_if_no_pod_uses_gpus():
    placed = []
    for weight in (0, 100):
        run = Cluster(Engine(settings(weight)))
        run.see(*(node(f"n{n}").cpu(4 + n).mem("8Gi") for n in range(6)))
        run.see(*(pod(f"p{n}").cpu(1 + n % 3).mem("1Gi") for n in range(12)))
        placed.append(binds(run.step()))
    assert placed[0] == placed[1] and len(placed[0]) == 12
