"""Finding the scheduler and asking it: behind the API server first, then where --scheduler points."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from phalanx.base.errors import (
    ApiProblem,
    ConfigProblem,
    Forbidden,
    MethodNotAllowed,
    NotFound,
    ServiceUnavailable,
    Unauthorized,
    Unreachable,
)
from phalanx.cli.options import name_option
from phalanx.cli.output import output_option
from phalanx.kube.client import HttpClient
from phalanx.kube.config import Connection, in_cluster, load
from phalanx.serve.diagnostics import BASE, kind_of

if TYPE_CHECKING:
    from phalanx.controllers.workloads.kind import WorkloadKind

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

_PLACE: tuple[Decorator, ...] = (
    name_option,
    click.option(
        "--kubeconfig", default="", metavar="FILE", help="[default: $KUBECONFIG, ~/.kube/config, else in-cluster]"
    ),
    click.option("--context", default="", metavar="NAME", help="Context in it.  [default: its current one]"),
    click.option(
        "--scheduler",
        default="",
        metavar="URL",
        help="Health address of a scheduler of its own: http://127.0.0.1:10259",
    ),
)
_OPTIONS: tuple[Decorator, ...] = (
    click.option("-n", "--namespace", default="", metavar="NS", help="[default: the kubeconfig's, else default]"),
    *_PLACE,
    output_option(),
)


def place_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Where the scheduler is."""
    return reduce(lambda inner, option: option(inner), reversed(_PLACE), command)


def asking_options(command: Callable[..., Any]) -> Callable[..., Any]:
    return reduce(lambda inner, option: option(inner), reversed(_OPTIONS), command)


NEXT = "start a cluster with `phalanx up`, name one with --kubeconfig, or a scheduler of its own with --scheduler URL"


class SchedulerUnavailable(Exception):
    """No scheduler could be asked; says what was tried, and what to try next."""

    def __init__(self, tried: str) -> None:
        super().__init__(f"no scheduler answers: {tried}; {NEXT}")


def connection_of(kubeconfig: str, context: str) -> Connection:
    """Raises ConfigProblem."""
    path = kubeconfig or os.environ.get("KUBECONFIG", "").split(os.pathsep)[0]
    home = Path.home() / ".kube" / "config"
    if not path and home.exists():
        path = str(home)
    if not path and "KUBERNETES_SERVICE_HOST" not in os.environ:
        here = Path("data", "kubeconfig")
        found = f"the one started here: export KUBECONFIG={here}" if here.exists() else "start one with: phalanx up"
        raise ConfigProblem("", f"which cluster? There is no $KUBECONFIG and no ~/.kube/config; {found}")
    return load(path, context) if path else in_cluster()


@dataclass(frozen=True, slots=True)
class Where:
    """Which scheduler to ask, from the command line."""

    namespace: str = ""
    kubeconfig: str = ""
    context: str = ""
    scheduler: str = ""

    def connection(self) -> Connection:
        """Raises ConfigProblem."""
        return connection_of(self.kubeconfig, self.context)


class SchedulerClient:
    """Use as an async context manager."""

    def __init__(self, connection: Connection, scheduler: str) -> None:
        self.connection = connection
        self._scheduler = scheduler.rstrip("/")

    async def __aenter__(self) -> SchedulerClient:
        self.client = await HttpClient(self.connection, user_agent="phalanx-cli").__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.__aexit__()

    async def ask(self, method: str, what: str, query: Mapping[str, str], body: bytes | None = None) -> bytes:
        """Raises NotFound and BadRequest of a scheduler that answers, SchedulerUnavailable if none does."""
        tried = []
        if not self._scheduler:
            try:
                return await self.client.request(method, f"{BASE}/{what}", query=query, body=body)
            except NotFound as problem:
                if problem.kind:  # the scheduler's own answer, not the server's about the path
                    raise _with_hint(problem, query) from None
                tried.append("the API server has no scheduler behind it")
            except Forbidden as problem:
                tried.append(f"the API server forbids it or has no scheduler behind it ({problem})")
            except MethodNotAllowed:
                tried.append("the API server has no scheduler behind it")
            except (Unreachable, ServiceUnavailable) as problem:
                tried.append(str(problem))
            raise SchedulerUnavailable("; ".join(tried))
        elsewhere = Connection(
            self._scheduler,
            self.connection.ssl if self._scheduler.startswith("https:") else None,
            token=await self.connection.bearer(),
        )
        async with HttpClient(elsewhere, user_agent="phalanx-cli") as client:
            try:
                return await client.request(method, f"{BASE}/{what}", query=query, body=body)
            except (Unreachable, ServiceUnavailable) as problem:
                raise SchedulerUnavailable(f"{self._scheduler}: {problem}") from None
            except NotFound as problem:
                if problem.kind:
                    raise _with_hint(problem, query) from None
                raise SchedulerUnavailable(f"{self._scheduler} has no {BASE}/{what}") from None


def _with_hint(problem: NotFound, query: Mapping[str, str]) -> NotFound:
    """What is not there: how to see what is."""
    listed = f"kubectl get {problem.kind.lower()}s -n {query.get('namespace') or 'default'}"
    return NotFound(f"{problem}; see what is there with: {listed}", name=problem.name, kind=problem.kind)


def joined(words: tuple[str, ...]) -> str:
    """KIND/NAME, also where people write KIND NAME as for kubectl."""
    if len(words) == 2 and "/" not in words[0]:
        return "/".join(words)
    if len(words) != 1:
        raise click.UsageError(f"{' '.join(words)!r} is not KIND/NAME: ask about one thing at a time")
    return words[0]


def target(text: str) -> tuple[str, str]:
    """KIND/NAME -> kind, name. Raises ClickException with exit code 2."""
    kind, separator, name = text.partition("/")
    found = kind_of(kind)
    if not separator or not name or found is None:
        from phalanx.controllers.workloads.registry import KINDS

        if separator and name and (close := _close_to(kind.lower(), KINDS)):
            raise click.UsageError(f"{kind!r} is not a kind; did you mean {close}/{name}?")
        raise click.UsageError(
            f"{text!r} is not KIND/NAME; kinds are pod, podgroup, compositepodgroup, workload"
            f" (for why and plan also {', '.join(kind.names[0] for kind in KINDS)})"
        )
    return found, name


def _close_to(word: str, kinds: Iterable[WorkloadKind]) -> str:
    from difflib import get_close_matches

    names = ["pod", "podgroup", "compositepodgroup", "workload", *(name for kind in kinds for name in kind.names)]
    return next(iter(get_close_matches(word, names, n=1, cutoff=0.7)), "")


def run(work: Coroutine[Any, Any, int]) -> int:
    """The exit code of a command; problems become one line and code 2."""
    import asyncio

    try:
        return asyncio.run(work)
    except (ApiProblem, ConfigProblem, SchedulerUnavailable) as problem:
        click.echo(f"error: {problem}{_then(problem)}", err=True)
        return 2


def _then(problem: Exception) -> str:
    """What to type next, where the message of a server, or none of it, does not say so."""
    if isinstance(problem, Unauthorized):
        return (
            ": the API server does not accept the token of this kubeconfig; of a local cluster use DATA/kubeconfig, or "
            "`phalanx kubeconfig NAME --merge`"
        )
    if isinstance(problem, Unreachable):
        return "; does it run? `phalanx list` and `phalanx status` say so, `phalanx up` starts one"
    return ""


class Paint:
    """Colours only for people at a terminal who did not say NO_COLOR; FORCE_COLOR asks for them elsewhere too."""

    def __init__(self, on: bool | None = None) -> None:
        if on is None:
            on = sys.stdout.isatty() or bool(os.environ.get("FORCE_COLOR"))
            on = on and not os.environ.get("NO_COLOR")
        self._on = on

    def __call__(self, text: str, colour: str) -> str:
        return click.style(text, fg=colour) if self._on else text
