"""What may happen in a random world. Each function is a plug-in: it changes the world and says whether it did.

`POD_EVENTS` and `GROUP_EVENTS` are the tables of the two lives the tests run; a new kind of event is a function and a
row in one of them.
"""

from __future__ import annotations

from typing import Any

import msgspec

from phalanx.engine.events import Gone
from phalanx.model.groups import GROUP_LABEL
from phalanx.model.objects import CompositePodGroup, PodGroup
from phalanx.testing.builders import composite, node, pod, pod_group
from support.random_world.world import NS, Events, World

RACK, BLOCK, ZONE = "rack", "block", "topology.kubernetes.io/zone"
MOST_PODS = 60
MOST_GROUPS = 12


def nothing(world: World) -> bool:
    """Only news and decisions of before."""
    return True


# ---- nodes


def change_node(world: World) -> bool:
    rng = world.rng
    i = rng.randrange(8)
    built = node(f"n{i}").cpu(rng.choice(["1", "2", "4"])).pods(rng.randrange(2, 8))
    if rng.random() < 0.9:
        built.label(RACK, f"r{i // 2}").label(BLOCK, f"b{i // 4}")
    world.show_node(built.build())
    return True


def change_odd_node(world: World) -> bool:
    """With taints, cordoned, or with a capacity that is none."""
    rng = world.rng
    built = node(f"n{rng.randrange(9)}").cpu(rng.choice(["0", "1", "2", "4", "-3", "junk"])).pods(rng.randrange(1, 8))
    if rng.random() < 0.7:
        built.label(ZONE, f"z{rng.randrange(3)}")
    if rng.random() < 0.2:
        built.taint("k", "v", rng.choice(["NoSchedule", "PreferNoSchedule", "NoExecute"]))
    world.show_node(built.unschedulable(rng.random() < 0.1).build())
    return True


def remove_node(world: World) -> bool:
    if not world.nodes:
        return False
    name = world.rng.choice(sorted(world.nodes))
    del world.nodes[name]
    world.updates.append(Gone("Node", name))
    return True


# ---- groups


def _priority(name: str) -> int:
    """Of a group, by its number."""
    return 10 if int(name[1:]) % 3 == 0 else 0


def add_group(world: World) -> bool:
    if len(world.groups) >= MOST_GROUPS:
        return False
    composed = world.rng.random() < 0.3
    name = f"c{world.rng.randrange(3)}" if composed else f"g{world.rng.randrange(8)}"
    if ("CompositePodGroup" if composed else "PodGroup", name) in world.groups:
        return False
    world.show_group(random_composite(world, name) if composed else random_leaf(world, name))
    return True


def random_leaf(world: World, name: str) -> PodGroup:
    rng = world.rng
    world.made += 1
    built = pod_group(name).uid(f"group{world.made}")
    if rng.random() < 0.8:
        built.gang(rng.randrange(1, 5))
    if rng.random() < 0.4:
        built.topology(rng.choice([RACK, BLOCK]))
    if rng.random() < 0.5:
        built.parent(f"c{rng.randrange(3)}")
    if world.priorities and rng.random() < 0.9:
        built.priority(_priority(name))
    if rng.random() < 0.2:
        built.disrupt_all()
    return built.build()


def random_composite(world: World, name: str) -> CompositePodGroup:
    rng = world.rng
    world.made += 1
    built = composite(name).uid(f"group{world.made}")
    if rng.random() < 0.7:
        built.gang(rng.randrange(1, 4))
    if rng.random() < 0.4:
        built.topology(BLOCK)
    if rng.random() < 0.2:
        built.parent(f"c{rng.randrange(3)}")  # also itself, also in circles
    if world.priorities:
        built.priority(_priority(name))
    return built.build()


def remove_group(world: World) -> bool:
    if not world.groups:
        return False
    kind, name = world.rng.choice(sorted(world.groups))
    del world.groups[kind, name]
    world.updates.append(Gone(kind, name, NS))
    return True


def change_group(world: World) -> bool:
    """Its minCount, and now and then more than the API would allow: the engine has to stand it."""
    if not world.groups:
        return False
    kind, name = world.rng.choice(sorted(world.groups))
    old = world.groups[kind, name]
    new = random_leaf(world, name) if kind == "PodGroup" else random_composite(world, name)
    spec: Any = new.spec
    if world.rng.random() < 0.7:
        spec = msgspec.structs.replace(old.spec, scheduling_policy=new.spec.scheduling_policy)
    world.show_group(msgspec.structs.replace(old, spec=spec))
    return True


# ---- pods


def add_members(world: World) -> bool:
    rng = world.rng
    before, group = world.made, f"g{rng.randrange(8)}"
    for _ in range(rng.choice([1, 1, 2, 4])):
        name = f"p{rng.randrange(80)}"
        if name in world.pods or len(world.pods) >= MOST_PODS:
            continue
        world.made += 1
        built = pod(name).uid(f"pod{world.made}").cpu(rng.choice(["500m", "1", "1500m"]))
        dice = rng.random()
        if dice < 0.6:
            built.group(group)
        elif dice < 0.85:
            built.label(GROUP_LABEL, group)
        if world.priorities:
            built.priority(_priority(group))
        if rng.random() < 0.05:
            built.gate("g")
        if rng.random() < 0.1:
            built.port(80)
        if rng.random() < 0.1:
            built.label("app", "a").anti_affinity(RACK, {"app": "a"})
        if rng.random() < 0.05:
            built.scheduler("somebody-else")
        world.show_pod(built.build())
    return world.made > before


def add_pod(world: World) -> bool:
    """A pod of no group, with constraints of all kinds."""
    rng = world.rng
    name = f"p{rng.randrange(80)}"
    if name in world.pods or len(world.pods) >= MOST_PODS:
        return False
    world.made += 1
    built = pod(name).uid(f"pod{world.made}").cpu(f"{rng.randrange(1, 9) * 250}m").label("app", f"a{rng.randrange(3)}")
    built.priority(rng.randrange(3))
    if rng.random() < 0.2:
        built.gate("g")
    if rng.random() < 0.2:
        built.anti_affinity("kubernetes.io/hostname", {"app": "a0"})
    if rng.random() < 0.2:
        built.affinity(ZONE, {"app": "a1"})
    if rng.random() < 0.2:
        built.spread(ZONE, {"app": "a2"})
    if rng.random() < 0.2:
        built.port(80)
    if rng.random() < 0.2:
        built.tolerate("k", "v")
    if rng.random() < 0.1:
        built.scheduler("somebody-else")
    world.show_pod(built.build())
    return True


def delete_pod(world: World) -> bool:
    if not world.pods:
        return False
    world.delete_pod(world.rng.choice(sorted(world.pods)))
    return True


def finish_pod(world: World) -> bool:
    """It starts, succeeds or fails on its node."""
    bound = sorted(name for name, found in world.pods.items() if found.spec.node_name)
    if not bound:
        return False
    found = world.pods[world.rng.choice(bound)]
    phase = world.rng.choice(["Succeeded", "Failed", "Running", "Running"])
    status = msgspec.structs.replace(found.status, phase=phase, start_time="2026-01-01T00:00:00Z")
    world.show_pod(msgspec.structs.replace(found, status=status))
    return True


def change_pod(world: World) -> bool:
    """Gates go; the label that names the group changes."""
    if not world.pods:
        return False
    found = world.pods[world.rng.choice(sorted(world.pods))]
    labels = {k: v for k, v in found.metadata.labels.items() if k != GROUP_LABEL}
    if world.rng.random() < 0.5 and not found.spec.node_name:
        labels[GROUP_LABEL] = f"g{world.rng.randrange(8)}"
    elif GROUP_LABEL in found.metadata.labels:
        labels[GROUP_LABEL] = found.metadata.labels[GROUP_LABEL]
    return _relabel(world, found, labels)


def relabel_pod(world: World) -> bool:
    """Gates go; the label that other pods' constraints select changes."""
    if not world.pods:
        return False
    found = world.pods[world.rng.choice(sorted(world.pods))]
    return _relabel(world, found, {**found.metadata.labels, "app": f"a{world.rng.randrange(3)}"})


def _relabel(world: World, found: Any, labels: dict[str, str]) -> bool:
    meta = msgspec.structs.replace(found.metadata, labels=labels)
    spec = msgspec.structs.replace(found.spec, scheduling_gates=None)
    world.show_pod(msgspec.structs.replace(found, metadata=meta, spec=spec))
    return True


def bind_elsewhere(world: World) -> bool:
    """Another scheduler binds a pod: to any node, also to one that is gone, whatever fits there."""
    unbound = sorted(name for name, found in world.pods.items() if not found.spec.node_name)
    if not unbound:
        return False
    return world.bind(world.rng.choice(unbound), f"n{world.rng.randrange(9)}", {})


# ---- the scheduler and its clock


def restart(world: World) -> bool:
    world.restart()
    return True


def set_clock(world: World) -> bool:
    """An hour back, or a day on."""
    world.now += world.rng.choice([-3600.0, 86400.0])
    return True


POD_EVENTS: Events = (
    (change_odd_node, 12), (remove_node, 2), (add_pod, 31), (delete_pod, 15), (relabel_pod, 5), (bind_elsewhere, 3),
    (set_clock, 1), (nothing, 31),
)  # fmt: skip
GROUP_EVENTS: Events = (
    (change_node, 8), (change_odd_node, 1), (remove_node, 2), (add_group, 10), (remove_group, 3), (change_group, 3),
    (add_members, 27), (add_pod, 2), (delete_pod, 11), (finish_pod, 3), (change_pod, 5), (relabel_pod, 1),
    (bind_elsewhere, 0.5), (set_clock, 0.5), (restart, 1.5), (nothing, 21.5),
)  # fmt: skip
