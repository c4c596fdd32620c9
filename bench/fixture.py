"""How long the fixture `cluster` of phalanx.testing.pytest takes to start. Run: python bench/fixture.py [times]"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

from progress import counted


def main(times: int) -> None:
    import pytest  # noqa: F401 (who uses the fixture has it already)

    begun, spent = time.perf_counter(), time.process_time()
    from phalanx.testing.pytest import _start

    print(f"import of the plugin: {time.perf_counter() - begun:.2f} s ({time.process_time() - spent:.2f} s of CPU)")
    starts: list[tuple[float, float]] = []  # seconds of wall and of CPU
    stops: list[float] = []
    for _ in counted(range(times)):
        with tempfile.TemporaryDirectory() as directory:
            begun, spent = time.perf_counter(), time.process_time()
            cluster = _start(Path(directory), {})
            starts.append((time.perf_counter() - begun, time.process_time() - spent))
            begun = time.perf_counter()
            cluster.stop()
            stops.append(time.perf_counter() - begun)
    first, rest = starts[0], starts[1:]
    print(f"first start, with the import of all parts: {first[0]:.2f} s ({first[1]:.2f} s of CPU)")
    walls, cpus = zip(*rest, strict=True)
    print(f"further starts: {statistics.median(walls):.2f} s, {min(walls):.2f} to {max(walls):.2f}")
    print(f"   of CPU: {statistics.median(cpus):.2f} s; stop: {statistics.median(stops):.2f} s")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
