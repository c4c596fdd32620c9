"""Find the scheduler and ask it: in the API server's process, behind its service proxy, or where --scheduler says."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from phalanx.base.client import Client
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
from phalanx.base.resources import NAMESPACES
from phalanx.cli.options import asked_cluster
from phalanx.cli.output import CommandError, output_option
from phalanx.cli.service_proxy import NoService, ServiceProxy
from phalanx.kube.client import HttpClient
from phalanx.kube.config import Connection, in_cluster, load
from phalanx.serve.queries.paths import BASE, kind_of

if TYPE_CHECKING:
    from phalanx.controllers.workloads.kind import WorkloadKind

_OWN_TOKEN = "phalanx.own-token"

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def _place(_context: click.Context, _option: click.Parameter, text: str) -> str:
    """Return where the scheduler is, if the text is a URL or NAMESPACE/SERVICE."""
    if text and not re.fullmatch(r"https?://[^/\s]+/?|[-a-z0-9]+/[-a-z0-9.]+", text):
        raise click.BadParameter(
            f"{text!r} is neither a URL such as http://127.0.0.1:10259 nor NAMESPACE/SERVICE such as "
            "phalanx-system/phalanx-scheduler"
        )
    return text


_PLACE: tuple[Decorator, ...] = (
    asked_cluster,
    click.option(
        "--scheduler",
        default="",
        callback=_place,
        metavar="URL|NAMESPACE/SERVICE",
        help="Where the scheduler is.  [default: in the API server's process, else phalanx-system/phalanx-scheduler]",
    ),
    click.option(
        "--own-token",
        is_flag=True,
        expose_value=False,
        callback=lambda context, _, value: context.meta.__setitem__(_OWN_TOKEN, value),
        help="Send this kubeconfig's token to the scheduler; else one that is only good there.",
    ),
)
_OPTIONS: tuple[Decorator, ...] = (
    click.option("-n", "--namespace", default="", metavar="NS", help="[default: the kubeconfig's, else default]"),
    *_PLACE,
    output_option(),
)


def place_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say where the scheduler is."""
    return reduce(lambda inner, option: option(inner), reversed(_PLACE), command)


def asking_options(command: Callable[..., Any]) -> Callable[..., Any]:
    return reduce(lambda inner, option: option(inner), reversed(_OPTIONS), command)


NEXT = "start a cluster with `phalanx up`, name one with --kubeconfig, or say where the scheduler is with --scheduler"


class SchedulerUnavailable(Exception):
    """No scheduler could be asked; says what was tried, and what to try next."""

    def __init__(self, tried: str) -> None:
        super().__init__(f"no scheduler answers: {tried}; {NEXT}")


def default_kubeconfig() -> str:
    """Return the kubeconfig that kubectl would use without options; empty if there is none."""
    home = Path.home() / ".kube" / "config"
    return os.environ.get("KUBECONFIG", "").split(os.pathsep)[0] or (str(home) if home.exists() else "")


def _local_cluster() -> str:
    """Return how to name a local cluster that is there, or how to start one."""
    from phalanx.serve.clusters import all_homes

    here = Path("data", "kubeconfig")
    if here.exists():
        return f"the one started here: export KUBECONFIG={here}"
    names = [home.name for home in all_homes() if home.running()]
    if names:
        running = f"{', '.join(names[:3])}{' and others' if len(names) > 3 else ''}"
        return f"running here: {running}; choose one with: --name {names[0]}"
    return "start one with: phalanx up"


def connection_of(kubeconfig: str, context: str) -> Connection:
    """Return the connection of a kubeconfig, of the default one, or of the pod's own cluster.

    Raises ConfigProblem.
    """
    path = kubeconfig or default_kubeconfig()
    if not path and "KUBERNETES_SERVICE_HOST" not in os.environ:
        raise ConfigProblem("", f"which cluster? There is no $KUBECONFIG and no ~/.kube/config; {_local_cluster()}")
    return load(path, context) if path else in_cluster()


@dataclass(frozen=True, slots=True)
class Where:
    """Which scheduler to ask, from the command line."""

    namespace: str = ""
    kubeconfig: str = ""
    context: str = ""
    scheduler: str = ""

    def connection(self) -> Connection:
        """Return the connection to the chosen cluster. Raises ConfigProblem."""
        return connection_of(self.kubeconfig, self.context)


class SchedulerClient:
    """Use as an async context manager."""

    def __init__(self, connection: Connection, scheduler: str) -> None:
        self.connection = connection
        self._scheduler = scheduler.rstrip("/")

    async def __aenter__(self) -> SchedulerClient:
        self.client = await HttpClient(self.connection, user_agent="phalanx-cli").__aenter__()
        context = click.get_current_context(silent=True)
        own = context is not None and bool(context.meta.get(_OWN_TOKEN))
        service = "" if "://" in self._scheduler else self._scheduler
        self._proxy = ServiceProxy(self.client, self.connection, service, own_token=own)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.__aexit__()

    async def ask(self, method: str, what: str, query: Mapping[str, str], body: bytes | None = None) -> bytes:
        """Ask the scheduler and return its answer.

        Raises what the scheduler answers (NotFound, Forbidden, …), or SchedulerUnavailable if none answers.
        """
        try:
            if "://" in self._scheduler:
                return await self._at_address(method, what, query, body)
            return await self._through_server(method, what, query, body)
        except NotFound as problem:
            raise _with_hint(problem, query) from None
        except (Unreachable, ServiceUnavailable) as problem:
            raise SchedulerUnavailable(str(problem)) from None

    async def ask_listing(self, what: str, namespace: str) -> bytes:
        """Ask about all groups: of `namespace`, else of all, or of the kubeconfig's if the caller may read no more."""
        if namespace:
            await require_namespace(self.client, namespace)
            return await self.ask("GET", what, {"namespace": namespace})
        try:
            return await self.ask("GET", what, {})
        except Forbidden:
            return await self.ask("GET", what, {"namespace": self.connection.namespace})

    async def _through_server(self, method: str, what: str, query: Mapping[str, str], body: bytes | None) -> bytes:
        """Ask the API server: a local one has the scheduler in its process, others have a Service."""
        here = ""
        if not self._scheduler:
            try:
                return await self.client.request(method, f"{BASE}/{what}", query=query, body=body)
            except (NotFound, Forbidden, MethodNotAllowed) as problem:
                if problem.kind:  # an answer of the scheduler, not of the server about the path
                    raise
                here = "the API server has no scheduler behind it; "
        try:
            return await self._proxy.ask(method, what, query, body, query.get("namespace", ""))
        except NoService as problem:
            raise SchedulerUnavailable(f"{here}{problem}") from None

    async def _at_address(self, method: str, what: str, query: Mapping[str, str], body: bytes | None) -> bytes:
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
                    raise
                raise SchedulerUnavailable(f"{self._scheduler} has no {BASE}/{what}") from None


async def require_namespace(client: Client, namespace: str) -> None:
    """Raise CommandError if there is no such namespace; one that may not be read counts as there."""
    with suppress(Forbidden):
        try:
            await client.get(NAMESPACES, namespace)
        except NotFound:
            raise CommandError(f"there is no namespace {namespace!r}: see kubectl get namespaces") from None


def _with_hint(problem: NotFound, query: Mapping[str, str]) -> NotFound:
    """Add the command that lists the existing objects to the message."""
    where = "" if problem.kind == "Node" else f" -n {query.get('namespace') or 'default'}"
    listed = f"kubectl get {problem.kind.lower()}s{where}"
    return NotFound(f"{problem}; see what is there with: {listed}", name=problem.name, kind=problem.kind)


def joined(words: tuple[str, ...]) -> str:
    """Return KIND/NAME, also if it was written as KIND NAME, as for kubectl."""
    if len(words) == 2 and "/" not in words[0]:
        return "/".join(words)
    if len(words) != 1:
        raise click.UsageError(f"{' '.join(words)!r} is not KIND/NAME: ask about one thing at a time")
    return words[0]


def target(text: str) -> tuple[str, str]:
    """Split KIND/NAME into kind and name. Raises ClickException with exit code 2."""
    kind, separator, name = text.partition("/")
    found = kind_of(kind)
    if not separator or not name or found is None:
        from phalanx.controllers.workloads.registry import KINDS

        if separator and name and (close := _close_to(kind.lower(), KINDS)):
            raise click.UsageError(f"{kind!r} is not a kind; did you mean {close}/{name}?")
        problem = f"{kind!r} is not scheduled" if separator and name and kind else f"{text!r} is not KIND/NAME"
        raise click.UsageError(
            f"{problem}; kinds are pod, podgroup, compositepodgroup, workload"
            f" (for why and plan also {', '.join(kind.names[0] for kind in KINDS)})"
        )
    return found, name


def _close_to(word: str, kinds: Iterable[WorkloadKind]) -> str:
    from difflib import get_close_matches

    names = ["pod", "podgroup", "compositepodgroup", "workload", *(name for kind in kinds for name in kind.names)]
    return next(iter(get_close_matches(word, names, n=1, cutoff=0.7)), "")


def run(work: Coroutine[Any, Any, int]) -> int:
    """Run a command and return its exit code; problems become one line and code 2."""
    import asyncio

    try:
        return asyncio.run(work)
    except (ApiProblem, ConfigProblem, SchedulerUnavailable) as problem:
        click.echo(f"error: {problem}{_then(problem)}", err=True)
        return 2


def _then(problem: Exception) -> str:
    """Return what to type next, for problems whose message does not say it."""
    if isinstance(problem, Unauthorized):
        return (
            ": the API server does not accept the token of this kubeconfig; of a local cluster use DATA/kubeconfig, or "
            "`phalanx kubeconfig NAME --merge`"
        )
    if isinstance(problem, Unreachable):
        return "; does it run? `phalanx list` and `phalanx status` say so, `phalanx up` starts one"
    return ""


class Colours:
    """Use colours only on terminals and without NO_COLOR; FORCE_COLOR sets them elsewhere too."""

    def __init__(self, on: bool | None = None) -> None:
        if on is None:
            on = sys.stdout.isatty() or bool(os.environ.get("FORCE_COLOR"))
            on = on and not os.environ.get("NO_COLOR")
        self._on = on

    def __call__(self, text: str, colour: str) -> str:
        return click.style(text, fg=colour) if self._on else text
