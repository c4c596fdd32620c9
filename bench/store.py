"""Store: durable writes per second, fan-out to watchers, memory, start, list. Reports numbers, asserts nothing.

python bench/store.py [--pods 50000] [--seconds 3]
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import resource
import tempfile
import time
from pathlib import Path

from phalanx.local.store import Store
from phalanx.local.store.contract import Key
from phalanx.local.store.watchers import StoreWatcher
from progress import announced

VALUE = b"x" * 3600  # a pod as an API server stores it


def value(revision: int) -> bytes:
    return b"%d " % revision + VALUE


def resident_mib() -> float:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize() / 2**20


async def durable_puts(path: Path, seconds: float, writers: int = 64) -> float:
    store = Store.open(path)
    end = time.perf_counter() + seconds
    done = 0

    async def writer(me: int) -> None:
        nonlocal done
        count = 0
        while time.perf_counter() < end:
            count += 1
            await store.put(("pods", "default", f"p{me}-{count % 200}"), value)
            done += 1

    started = time.perf_counter()
    await asyncio.gather(*(writer(me) for me in range(writers)))
    rate = done / (time.perf_counter() - started)
    await store.close()
    return rate


async def fan_out(changes: int, watchers: int = 100) -> tuple[float, float]:
    """(changes per second written, deliveries per second) with every watcher reading everything."""
    store = Store.open(":memory:")

    async def reader(watcher: StoreWatcher) -> int:
        seen = 0
        async for batch in watcher:
            seen += len(batch)
            if seen >= changes:
                break
        return seen

    readers = [asyncio.create_task(reader(store.watch("pods"))) for _ in range(watchers)]
    await asyncio.sleep(0)
    started = time.perf_counter()
    for index in range(changes):
        await store.put(("pods", "default", f"p{index % 1000}"), value)
    seen = sum(await asyncio.gather(*readers))
    elapsed = time.perf_counter() - started
    await store.close()
    return changes / elapsed, seen / elapsed


async def many_objects(path: Path, pods: int) -> None:
    gc.collect()
    before = resident_mib()
    store = Store.open(path)

    def key(index: int) -> Key:
        return ("pods", f"ns-{index % 20}", f"pod-{index}")

    for start in range(0, pods, 500):
        await asyncio.gather(*(store.put(key(i), value) for i in range(start, min(pods, start + 500))))
    print(f"{pods} pods: {resident_mib() - before:.0f} MiB resident (values alone {pods * 3600 / 2**20:.0f} MiB)")
    for label in ("first", "again"):
        started = time.perf_counter()
        count = len(store.list("pods"))
        print(f"list of {count} pods, {label}: {1000 * (time.perf_counter() - started):.2f} ms")
    rates = []
    for _ in range(3):
        started = time.perf_counter()
        await asyncio.gather(*(store.put(key(i), value) for i in range(1000)))
        rates.append(1000 / (time.perf_counter() - started))
    print(f"updates with {pods} pods there: {max(rates):.0f}/s in batches of 1000")
    await store.close()
    started = time.perf_counter()
    store = Store.open(path)
    print(f"reopened {store.count} pods in {time.perf_counter() - started:.2f} s")
    await store.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pods", type=int, default=50_000)
    parser.add_argument("--seconds", type=float, default=3.0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        # First, while the process holds no freed memory that could be used again.
        asyncio.run(many_objects(Path(folder) / "many.db", arguments.pods))
        announced(1, 4)
        rate = asyncio.run(durable_puts(Path(folder) / "puts.db", arguments.seconds))
        print(f"durable puts, 64 writers, 3.6 kB: {rate:.0f}/s")
        announced(2, 4)
        rate = asyncio.run(durable_puts(Path(folder) / "single.db", min(1.0, arguments.seconds), writers=1))
        print(f"durable puts, 1 writer: {rate:.0f}/s")
        announced(3, 4)
        written, delivered = asyncio.run(fan_out(5000))
        print(f"fan-out to 100 watchers: {written:.0f} changes/s, {delivered:.0f} deliveries/s")


if __name__ == "__main__":
    main()
