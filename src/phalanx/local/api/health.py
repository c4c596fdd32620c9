"""/livez, /readyz and /healthz in kube-apiserver's form: `ok`, or every check by name with ?verbose.

Answers here are public, so a reason never names paths, objects or users.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from prometheus_client.exposition import CONTENT_TYPE_LATEST

from phalanx.base.errors import NotFound
from phalanx.local.api.request import Answer
from phalanx.local.api.route import UNKNOWN

Check = Callable[[], str]  # "" while all is well, else why not


class Health:
    def __init__(self) -> None:
        self.ready = False
        self.checks: dict[str, Check] = {}  # of readiness only: a server that cannot write is alive
        self._counts: Counter[tuple[str, str, str]] = Counter()  # (check, "success" or "error", type) of all answers

    def slis(self) -> Answer:
        """Return the checks as metrics, under kube-apiserver's names (/metrics/slis)."""
        checks: dict[str, Check] = {"started": lambda: "" if self.ready else "starting", **self.checks}
        lines = [
            "# HELP kubernetes_healthcheck [STABLE] This metric records the result of a single healthcheck.",
            "# TYPE kubernetes_healthcheck gauge",
            'kubernetes_healthcheck{name="ping",type="livez"} 1',
            *(
                f'kubernetes_healthcheck{{name="{check}",type="readyz"}} {int(not ask())}'
                for check, ask in checks.items()
            ),
            "# HELP kubernetes_healthchecks_total [STABLE] This metric records the results of all healthcheck.",
            "# TYPE kubernetes_healthchecks_total counter",
            *(
                f'kubernetes_healthchecks_total{{name="{check}",status="{status}",type="{kind}"}} {count}'
                for (check, status, kind), count in sorted(self._counts.items())
            ),
        ]
        return Answer(body=("\n".join(lines) + "\n").encode(), content_type=CONTENT_TYPE_LATEST)

    def answer(self, path: str, query: Mapping[str, str]) -> Answer:
        name, _, single = path.strip("/").partition("/")
        checks: dict[str, Check] = {"ping": lambda: ""}
        if name == "readyz":
            checks["started"] = lambda: "" if self.ready else "starting or shutting down"
            checks |= self.checks
        if single:
            if single not in checks:
                raise NotFound(UNKNOWN)
            checks = {single: checks[single]}
        lines = []
        failed = []
        for check, problem in ((check, ask()) for check, ask in checks.items()):
            self._counts[check, "error" if problem else "success", name] += 1
            lines.append(f"[-]{check} failed: {problem}" if problem else f"[+]{check} ok")
            if problem:
                failed.append(f"{check}: {problem}")
        if failed:
            lines.append(f"{name} check failed")
            text = "\n".join(lines) + "\n" if "verbose" in query else f"not ready: {'; '.join(failed)}"
            return Answer(500, text.encode(), content_type="text/plain")
        lines.append(f"{name} check passed")
        body = "\n".join(lines) + "\n" if "verbose" in query else "ok"
        return Answer(body=body.encode(), content_type="text/plain")
