"""Which listed conformance cases were lost. Arguments: [--all] LIST RESULT… (results of runs; later ones win).

Prints the names of lost cases, one a line, on standard output and the summary on standard error; exit code 1 if any.
With --all a listed case that did not run is lost, too; without it a run may have been of some files only.
"""

import json
import sys
from pathlib import Path

arguments = sys.argv[1:]
everything = arguments[:1] == ["--all"]
listed, *results = arguments[1:] if everything else arguments
wanted = {line for line in Path(listed).read_text().splitlines() if line and not line.startswith("#")}
status: dict[str, str] = {}
for result in results:
    for case in json.loads(Path(result).read_text())["cases"]:
        status[f"{case['file']}/{case['name']}"] = case["status"]
judged = wanted if everything else wanted & status.keys()
lost = sorted(name for name in judged if status.get(name) != "PASS")
sys.stdout.write("".join(f"{name}\n" for name in lost))
unlisted = sorted(name for name, verdict in status.items() if verdict == "PASS" and name not in wanted)
sys.stderr.write(f"conformance: {len(judged) - len(lost)} passed, {len(lost)} failed\n")
if unlisted:
    sys.stderr.write("pass, not yet listed: " + ", ".join(unlisted) + "\n")
sys.exit(1 if lost or not judged else 0)
