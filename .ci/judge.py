"""Which listed conformance cases were lost. Arguments: the list, then results of one or more runs; later ones win.

Prints the names of lost cases, one a line, on standard output and the summary on standard error; exit code 1 if any.
Listed cases that no run contained do not count: a run may have been of some files only.
"""

import json
import sys

wanted = {line.strip() for line in open(sys.argv[1]) if line.strip() and not line.startswith("#")}
status: dict[str, str] = {}
for path in sys.argv[2:]:
    for case in json.load(open(path))["cases"]:
        status[f"{case['file']}/{case['name']}"] = case["status"]
ran = wanted & status.keys()
lost = sorted(name for name in ran if status[name] != "PASS")
print(*lost, sep="\n", end="\n" if lost else "")
unlisted = sorted(name for name, verdict in status.items() if verdict == "PASS" and name not in wanted)
sys.stderr.write(f"conformance: {len(ran) - len(lost)} passed, {len(lost)} failed\n")
if unlisted:
    sys.stderr.write("pass, not yet listed: " + ", ".join(unlisted) + "\n")
sys.exit(1 if lost or not ran else 0)
