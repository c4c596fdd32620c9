"""Runs tests of Kubernetes' own `e2e.test` binary by name and says what came of each.

Every cluster gets one process and a share of the tests, one after the other, so that none disturbs another. By hand,
against clusters that are up, with names in a file, one a line:

    python tests/clients/upstream_tests.py E2E.TEST NAMES KUBECONFIG [KUBECONFIG …] [--timeout 30m]
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

LISTS = Path(__file__).parent / "upstream"
PASSED = "passed"


@dataclass(frozen=True)
class Outcome:
    name: str
    state: str  # passed, failed, skipped, timedout, …: as Ginkgo says it
    seconds: float
    message: str = ""


def passing() -> list[str]:
    """Names of the tests that pass against `phalanx up`."""
    return lines(LISTS / "passing.txt")


def cannot() -> dict[str, str]:
    """Names of the tests that do not, each with the reason."""
    return {name: reason for name, _, reason in (line.partition("\t") for line in lines(LISTS / "cannot.txt"))}


def lines(file: Path) -> list[str]:
    return [line for line in file.read_text().splitlines() if line and not line.startswith("#")]


def run(program: str, kubeconfigs: Sequence[Path], names: Iterable[str], timeout: str = "30m") -> list[Outcome]:
    """What became of every name; one that the binary does not have is `unknown`."""
    wanted = sorted(set(names))
    found: dict[str, Outcome] = {}
    with tempfile.TemporaryDirectory() as directory:
        started = []
        for number, kubeconfig in enumerate(kubeconfigs):
            place, share = Path(directory) / str(number), wanted[number :: len(kubeconfigs)]
            if share:
                place.mkdir()
                started.append((place, share, _start(program, kubeconfig, share, place, timeout)))
        try:
            for place, share, process in started:
                process.wait()
                found |= {outcome.name: outcome for outcome in _outcomes(place, share)}
        finally:
            for _, _, process in started:
                process.kill()
                process.wait()
    return [found.get(name) or Outcome(name, "unknown", 0, "this e2e.test has no such test") for name in wanted]


def _start(program: str, kubeconfig: Path, names: list[str], place: Path, timeout: str) -> subprocess.Popen[bytes]:
    focus = "(" + "|".join(re.escape(name) for name in names) + ")$"  # the suite's own name stands before a test's
    with (place / "log").open("wb") as log:
        return subprocess.Popen(
            [
                program,
                f"--kubeconfig={kubeconfig}",
                "--provider=skeleton",
                "--minStartupPods=0",
                "--dump-logs-on-failure=false",
                f"--ginkgo.timeout={timeout}",
                "--ginkgo.no-color",
                f"--ginkgo.json-report={place / 'report.json'}",
                f"--ginkgo.focus={focus}",
            ],
            cwd=place,
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
        )


def _outcomes(place: Path, share: list[str]) -> Iterable[Outcome]:
    report = place / "report.json"
    if not report.exists():  # it ended before its first test
        tail = (place / "log").read_text(errors="replace")[-2000:]
        yield from (Outcome(name, "aborted", 0, tail) for name in share)
        return
    wanted = set(share)
    for suite in json.loads(report.read_text()):
        for spec in suite["SpecReports"] or []:
            name = " ".join([*(spec.get("ContainerHierarchyTexts") or []), spec.get("LeafNodeText") or ""])
            if name in wanted:
                failure = spec.get("Failure") or {}
                yield Outcome(name, spec["State"], spec["RunTime"] / 1e9, failure.get("Message", ""))


def summary(outcomes: Iterable[Outcome]) -> str:
    """How many of each state, then whatever did not pass and the first lines of why."""
    found = list(outcomes)
    states = Counter(outcome.state for outcome in found)
    counts = ", ".join(f"{count} {state}" for state, count in states.most_common())
    announced = [f"{len(found)} tests of e2e.test: {counts}"]
    for outcome in found:
        if outcome.state != PASSED:
            announced.append(f"{outcome.state} after {outcome.seconds:.0f} s: {outcome.name}")
            announced += ["    " + line for line in outcome.message.strip().splitlines()[:8]]
    return "\n".join(announced)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", help="the e2e.test binary")
    parser.add_argument("names", type=Path, help="a file of test names, one a line")
    parser.add_argument("kubeconfigs", type=Path, nargs="+", help="of clusters that are not used otherwise meanwhile")
    parser.add_argument("--timeout", default="30m", help="of all tests of a process together")
    chosen = parser.parse_args()
    names = [line.partition("\t")[0] for line in lines(chosen.names)]
    outcomes = run(chosen.program, [file.resolve() for file in chosen.kubeconfigs], names, chosen.timeout)
    print(summary(outcomes))
    return 0 if all(outcome.state == PASSED for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
