"""Run a conformance runner, whose path comes first, with one more kind: our own cases create WorkloadPolicies."""

from __future__ import annotations

import runpy
import sys

KIND = "WorkloadPolicy"
PLACE = ("scheduling.phalanx.dev/v1alpha1", "workloadpolicies", True)  # API version, resource, in a namespace


def main() -> int:
    sys.argv = sys.argv[1:]
    runner = runpy.run_path(sys.argv[0], run_name="conform")
    runner["KINDS"][KIND] = PLACE
    runner["ALIASES"][KIND.lower()] = KIND
    answer: int = runner["main"]()
    return answer


if __name__ == "__main__":
    sys.exit(main())
