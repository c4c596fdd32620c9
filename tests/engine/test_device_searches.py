"""Claims whose solution, or its absence, is obvious to a person: the search ends within its budget and is right."""

from __future__ import annotations

from typing import Any

import pytest

from phalanx.engine.devices.allocator import Allocator, ClaimDemand
from phalanx.engine.devices.cel import compile_selector
from phalanx.engine.devices.holdings import Unused
from phalanx.engine.devices.inventory import build_pool
from phalanx.engine.devices.requests import ClaimSpecs
from phalanx.engine.devices.selectors import DeviceSelectors
from phalanx.model import objects as o
from support.device_world import DRIVER, asks, claim, device, device_class, published

Json = dict[str, Any]
A = f'device.attributes["{DRIVER}"]'


def first(name: str, *parts: Json) -> Json:
    return {"name": name, "firstAvailable": [{"name": f"s{i}", **part["exactly"]} for i, part in enumerate(parts)]}


def match(attribute: str, *requests: str) -> Json:
    return {"matchAttribute": f"{DRIVER}/{attribute}", "requests": list(requests)}


def distinct(attribute: str) -> Json:
    return {"distinctAttribute": f"{DRIVER}/{attribute}"}


def plain(count: int, **attributes: int) -> list[o.ResourceSlice]:
    """Devices with attributes that count modulo (kind=4) or, if negative, in blocks (numa=-4)."""
    return published(
        "a",
        *(device(f"g{n:02}", **{k: n % v if v > 0 else n // -v for k, v in attributes.items()}) for n in range(count)),
    )


def partitions(gpus: int, profiles: Json) -> list[o.ResourceSlice]:
    """GPUs of seven slices each, and partitions of them by profile: {slices: how many}."""
    made = []
    for gpu in range(gpus):
        for size, count in profiles.items():
            for number in range(count):
                each = device(f"g{gpu:02}-{size}-{number}", size=size)
                each["consumesCounters"] = [{"counterSet": f"gpu{gpu}", "counters": {"slices": {"value": str(size)}}}]
                made.append(each)
    return published("a", *made, counters={f"gpu{gpu}": {"slices": "7"} for gpu in range(gpus)})


def shared(count: int, **attributes: int) -> list[o.ResourceSlice]:
    made = [device(f"g{n}", **{key: n % of for key, of in attributes.items()}) for n in range(count)]
    for each in made:
        each.update(capacity={"mem": {"value": "80"}}, allowMultipleAllocations=True)
    return published("a", *made)


def part(name: str, size: int, count: int) -> Json:
    return asks(name, count, f"{A}.size == {size}")


def share(name: str, mem: int) -> Json:
    return asks(name, capacity={"requests": {"mem": str(mem)}})


KINDS = [asks(cel=f"{A}.kind == {kind}") for kind in range(8)]
PAIRS = [asks(f"r{n}") for n in range(32)]
IN_PAIRS = [match("numa", f"r{n}", f"r{n + 1}") for n in range(0, 32, 2)]
MIG = {7: 1, 3: 2, 1: 7}

CASES: list[tuple[str, list[o.ResourceSlice], list[o.ResourceClaim], bool]] = [
    ("alternatives", plain(40, kind=8), [claim("c", *(first(f"r{n}", *KINDS) for n in range(32)))], True),
    ("too many alternatives", plain(31, kind=8), [claim("c", *(first(f"r{n}", *KINDS) for n in range(32)))], False),
    ("only the last alternative of each request", plain(16, kind=4),
     [claim("c", *(first(f"r{n}", *[asks(cel="false")] * 7, KINDS[0]) for n in range(4)))], True),
    ("claims that give up devices for each other", plain(20, kind=8),
     [claim(f"c{n}", first("r", *(asks(count=4 - k) for k in range(4)))) for n in range(16)], True),
    ("and one too many", plain(15, kind=8),
     [claim(f"c{n}", first("r", *(asks(count=4 - k) for k in range(4)))) for n in range(16)], False),
    ("every domain full", plain(32, numa=8),
     [claim(f"c{n}", asks(count=4), constraints=[match("numa")]) for n in range(8)], True),
    ("one domain short", plain(31, numa=8),
     [claim(f"c{n}", asks(count=4), constraints=[match("numa")]) for n in range(8)], False),
    ("what the domains leave", plain(32, numa=-4),
     [*(claim(f"c{n}", asks(count=3), constraints=[match("numa")]) for n in range(8)), claim("x", asks(count=9))],
     False),
    ("sixteen pairs", plain(32, numa=8), [claim("c", *PAIRS, constraints=IN_PAIRS)], True),
    ("pairs in domains of three", plain(33, numa=-3), [claim("c", *PAIRS[:24], constraints=IN_PAIRS[:12])], False),
    ("rows and columns", plain(16, numa=4, board=-4),
     [claim("c", asks("x", 4), asks("y", 4), constraints=[match("numa", "x"), match("board", "y")])], False),
    ("more than there are values", plain(31, numa=8),
     [claim("c", asks(count=9), constraints=[distinct("numa")])], False),
    ("one of each row and column", plain(36, numa=6, board=-6),
     [claim("c", asks(count=6), constraints=[distinct("numa"), distinct("board")])], True),
    ("and one more", plain(48, numa=6, board=-6),
     [claim("c", asks(count=7), constraints=[distinct("numa"), distinct("board")])], False),
    ("whole GPUs beside partitions", partitions(16, MIG),
     [claim("b", part("y", 3, 8), part("z", 1, 4)), claim("c", part("x", 7, 12))], True),
    ("one partition too many", partitions(16, MIG), [claim("b", part("y", 3, 9)), claim("c", part("x", 7, 12))], False),
    ("a sum of counters", published("a", *(
        device(f"g{n}") | {"consumesCounters": [{"counterSet": "s", "counters": {"m": {"value": str(3 + n * 7 % 11)}}}]}
        for n in range(30)), counters={"s": {"m": "60"}}), [claim("c", asks(count=20))], False),
    ("shares that do not add up", shared(4), [claim(f"c{n}", share("r", 30)) for n in range(9)], False),
    ("shares that do", shared(8), [claim(f"c{n}", share("r", [10, 30, 40][n % 3])) for n in range(24)], True),
    ("large shares behind small ones", shared(8),
     [*(claim(f"c{n}", share("r", 7)) for n in range(10)), *(claim(f"d{n}", share("r", 41)) for n in range(9))], False),
    ("shares of one domain", shared(8, numa=2),
     [claim(f"c{n}", share("x", 50), share("y", 50), constraints=[match("numa")]) for n in range(5)], False),
    ("all for inspection, and most for work", plain(28, numa=4),
     [claim("a", {"name": "r", "exactly": {"deviceClassName": "gpu", "allocationMode": "All", "adminAccess": True}}),
      claim("b", asks(count=16))], True),
    ("devices of one claim differ, inspected or not", plain(28, numa=4),
     [claim("b", asks("x", 25), asks("y", 4, adminAccess=True))], False),
]  # fmt: skip


@pytest.mark.parametrize(
    ("slices", "claims", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_the_search_ends_with_the_right_answer(
    slices: list[o.ResourceSlice], claims: list[o.ResourceClaim], expected: bool
) -> None:
    pool = build_pool((DRIVER, "a"), {each.metadata.name: each for each in slices}, ())
    assert pool is not None and not pool.problem
    specs = ClaimSpecs(lambda name: device_class(name))
    demands = [ClaimDemand(each.metadata.name, each.metadata.name, specs.of(each), pool.devices) for each in claims]
    allocator = Allocator(demands, Unused(), DeviceSelectors(compile_selector))
    assert (allocator.solve() is not None) == expected
    assert not allocator.exhausted
