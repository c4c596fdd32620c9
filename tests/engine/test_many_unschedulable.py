"""A node that many unschedulable pods could have: which gets it, and that the others are not tried."""

from phalanx.engine import decisions as d
from phalanx.testing import Cluster
from phalanx.testing.builders import node, pod, pod_group

MANY = 200


def waiting_classes(priority=lambda i: 0) -> Cluster:
    """Gangs of two, no two alike, that fit nowhere."""
    run = Cluster().see(node("small").cpu("1"))
    for i in range(MANY):
        run.see(pod_group(f"g{i}").gang(2).priority(priority(i)))
        run.see(*(pod(f"g{i}-{j}").cpu(f"{2000 + i}m").group(f"g{i}").priority(priority(i)) for j in range(2)))
    run.step()
    assert not run.bound
    return run


def attempts(run: Cluster) -> int:
    return sum(root.attempts for root in run.engine.queue.units.values())


def test_the_first_gets_the_room_and_the_others_sleep_on():
    run = waiting_classes()
    before = attempts(run)
    run.see(node("large").cpu("5")).step()
    assert run.bound == {"g0-0": "large", "g0-1": "large"}
    assert attempts(run) - before < MANY // 4
    run.engine.validate()


def test_the_highest_priority_gets_it_first():
    run = waiting_classes(priority=lambda i: i)
    run.see(pod("latecomer").cpu("3").priority(MANY // 2))
    run.see(node("large").cpu("5")).step()
    assert sorted(run.bound) == [f"g{MANY - 1}-0", f"g{MANY - 1}-1"]


def test_room_for_several_goes_to_several():
    run = waiting_classes()
    run.see(node("large").cpu("25")).step()
    assert len(run.bound) == 12 and "g5-0" in run.bound


def test_a_root_that_arrives_meanwhile_is_not_served_before_those_that_are_to_be_asked():
    run = waiting_classes(priority=lambda i: 5)
    run.see(node("large").cpu("5"), pod("low").cpu("2").priority(1))
    first = [each.name for each in run.engine.step(run.now, 1) if isinstance(each, d.Bind)]
    assert first == ["g0-0", "g0-1"]
