"""`phalanx list`, `status`, `down`, `kubeconfig`: local clusters, found by name."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from functools import reduce, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from phalanx.base.errors import ConfigProblem
from phalanx.base.resources import NODES, POD_GROUPS, PODS
from phalanx.cli.completion import complete_cluster
from phalanx.cli.messages import age
from phalanx.cli.options import no_empty_name
from phalanx.cli.output import encoded, for_programs, notify, output_option, table

if TYPE_CHECKING:
    from phalanx.serve.clusters import ClusterRecord, Home

STOPPED = 1  # exit code of `status` where nothing runs
PATIENCE = 30.0


def choose(name: str, data: str, kubeconfig: str, context: str) -> tuple[str, str]:
    """Return (name, data directory) of the local cluster that the options choose; one of them is empty."""
    given = {"--name": name, "--data": data, "--kubeconfig": kubeconfig or context}
    options = [option for option, value in given.items() if value]
    if len(options) > 1:
        raise click.UsageError(f"give {options[0]} or {options[1]}, not both: each says which cluster")
    if kubeconfig or context:
        from phalanx.cli.scheduler_client import default_kubeconfig
        from phalanx.serve.clusters import home_at

        home = home_at(kubeconfig or default_kubeconfig(), context)
        return (home.name, "") if home.name else ("", str(home.path))
    return (name, "") if name else ("", data or "data")


def _name_argument(context: click.Context, option: click.Parameter, value: str) -> str:
    """Refuse a second name; the default of the argument is no name."""
    other = context.params.get("named") or context.params.get("name_argument")
    if value and other:
        raise click.UsageError("give NAME or --name, not both")
    return no_empty_name(context, option, value)


def local_cluster(*, argument: bool) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add the options that choose a local cluster, running or not. The command gets `cluster` and `data`.

    argument: the name may also be given without --name
    """
    meaning = "The same as NAME." if argument else "A local cluster by its name."
    which = "Or the cluster" if argument else "A local cluster"
    options = [
        click.option("--name", "named", default="", metavar="CLUSTER", callback=_name_argument, help=meaning),
        click.option(
            "--data", "data_given", default="", metavar="DIR", help=f"{which} by its data directory.  [default: data]"
        ),
        click.option(
            "--kubeconfig",
            "kubeconfig_given",
            default="",
            metavar="FILE",
            help=f"{which} by a kubeconfig that leads to it.",
        ),
        click.option(
            "--context", "context_given", default="", metavar="NAME", help="Context in it.  [default: its current one]"
        ),
    ]
    if argument:
        options.append(
            click.argument(
                "name_argument", metavar="[NAME]", default="", callback=_name_argument, shell_complete=complete_cluster
            )
        )

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(command)
        def chosen(
            *args: Any,
            named: str,
            data_given: str,
            kubeconfig_given: str,
            context_given: str,
            name_argument: str = "",
            **others: Any,
        ) -> Any:
            cluster, data = choose(named or name_argument, data_given, kubeconfig_given, context_given)
            return command(*args, cluster=cluster, data=data, **others)

        return reduce(lambda inner, option: option(inner), reversed(options), chosen)

    return decorate


@click.command("list", short_help="List local clusters and whether they run.")
@output_option()
def list_clusters(output: str) -> int:
    """List the clusters that have a name, and the one in ./data if there is one.

    \b
    Example:
      phalanx list -o json
    """
    from phalanx.serve.clusters import all_homes, home_of

    here = home_of("", "data")
    found = [*all_homes(), *([here] if here.record() is not None else [])]
    rows = [_row(home) for home in found]
    if for_programs(output):
        click.echo(encoded(rows, output))
        return 0
    if not rows:
        click.echo("no clusters; start one with: phalanx up --name NAME --detach", err=True)
        return 0
    columns = ("name", "state", "age", "url", *(("kubeconfig", "data", "pid") if output == "wide" else ()))
    cells = [tuple("" if row[column] is None else str(row[column]) for column in columns) for row in rows]
    click.echo(table(tuple(column.upper() for column in columns), cells))
    return 0


def _row(home: Home) -> dict[str, Any]:
    record, runs = home.record(), home.running()
    return {
        "name": home.title,
        "state": "running" if runs else "stopped",
        "age": age(time.time() - record.started) if runs and record else "",
        "url": record.url if runs and record else "",
        "kubeconfig": record.kubeconfig if record else "",
        "pid": record.pid if runs and record else None,
        "data": record.data if record else "",
        "dashboard": record.dashboard if runs and record else "",
    }


@click.command(short_help="Say whether a local cluster runs, where, and what is in it.")
@local_cluster(argument=True)
@output_option()
def status(cluster: str, data: str, output: str) -> int:
    """Say whether a local cluster runs, how to reach it and what is in it.

    Exit code 0: it runs and is ready, 1: it does not run or is not ready, 2: there never was one.

    \b
    Examples:
      phalanx status
      phalanx status team-a -o json
    """
    home, record = known_cluster(cluster, data)
    row = _row(home)
    counts: dict[str, int] = {}
    if home.running():
        row["ready"], counts = _count_objects(record)
    if for_programs(output):
        click.echo(encoded({**row, "counts": counts}, output))
    elif not home.running():
        click.echo(f"{home.title} does not run; start it with: phalanx up {_address(home.name, data)}")
    else:
        click.echo(
            f"{home.title} runs since {row['age']} as process {record.pid}{'' if row['ready'] else ', not ready'}"
        )
        click.echo(f"  server      {record.url}")
        click.echo(f"  kubeconfig  {record.kubeconfig}")
        if record.dashboard:
            click.echo(f"  dashboard   {record.dashboard}")
        if output == "wide":
            click.echo(f"  data        {record.data}")
        if counts:
            click.echo("  holds       " + ", ".join(f"{count} {what}" for what, count in counts.items()))
    return 0 if row.get("ready") else STOPPED


def _count_objects(record: ClusterRecord) -> tuple[bool, dict[str, int]]:
    """Return whether the cluster answers, and how many nodes, pods and groups it has."""
    import asyncio

    from phalanx.base.errors import ApiProblem
    from phalanx.kube.client import HttpClient
    from phalanx.kube.config import load

    kinds = (
        NODES,
        PODS,
        POD_GROUPS,
    )

    async def count_objects() -> tuple[bool, dict[str, int]]:
        counts = {}
        try:
            async with HttpClient(load(record.kubeconfig, ""), user_agent="phalanx-cli") as client:
                await client.request("GET", "/readyz", plain=True)
                for kind in kinds:
                    page = json.loads(await client.list(kind, "", limit=1))
                    left = page["metadata"].get("remainingItemCount") or 0
                    counts[kind.plural] = len(page["items"]) + left
        except (ApiProblem, ConfigProblem):
            return False, counts
        return True, counts

    return asyncio.run(count_objects())


@click.command(short_help="Stop a local cluster, or forget it for good.")
@local_cluster(argument=True)
@click.option("--delete", is_flag=True, help="Also delete all that a cluster with a NAME keeps: data, kubeconfig, log.")
@output_option()
def down(cluster: str, data: str, delete: bool, output: str) -> int:
    """Stop a cluster that runs in the background (or in another terminal). What it stored stays, unless --delete.

    \b
    Examples:
      phalanx down
      phalanx down team-a --delete
    """
    from phalanx.serve.clusters import home_of, stop

    if delete and not cluster:
        raise click.UsageError("--delete takes a NAME; delete the data directory of a cluster without one yourself")
    home = home_of(cluster, data)
    if not (delete and home.path.exists()):  # a cluster that never started can still be deleted
        home, _ = known_cluster(cluster, data)
    ran = home.running()
    if not stop(home, PATIENCE):
        record = home.record()
        end = f"; end it with: kill -9 {record.pid}" if record is not None else ""
        click.echo(f"error: {home.title} still runs after {PATIENCE:.0f} s{end}", err=True)
        return 1
    if delete:
        shutil.rmtree(home.path)
    then = "" if delete else f"; start it again with: phalanx up {_address(home.name, data)}".rstrip()
    text = f"{home.title} {'stopped' if ran else 'did not run'}{' and is deleted' if delete else ''}{then}"
    notify({"name": home.name, "ran": ran, "deleted": delete}, text, output)
    return 0


@click.command(short_help="Print a local cluster's kubeconfig, or merge it into yours.")
@local_cluster(argument=True)
@click.option(
    "--merge", is_flag=True, help="Put it into $KUBECONFIG or ~/.kube/config and make it the current context."
)
@output_option()
def kubeconfig(cluster: str, data: str, merge: bool, output: str) -> int:
    """Print the kubeconfig of a local cluster, or merge it into your own.

    \b
    Examples:
      phalanx kubeconfig team-a > team-a.kubeconfig
      phalanx kubeconfig team-a --merge && kubectl --context phalanx-team-a get nodes
    """
    import os

    from phalanx.serve.clusters import merge_kubeconfig

    home, record = known_cluster(cluster, data)
    source = Path(record.kubeconfig) if record.kubeconfig else None
    if source is None or not source.exists():
        raise ConfigProblem(home.title, "has written no kubeconfig; start it with --kubeconfig FILE")
    if not merge:
        import yaml

        text = source.read_text()
        notify(yaml.safe_load(text), text.rstrip("\n"), output)
        return 0
    first = os.environ.get("KUBECONFIG", "").split(os.pathsep)[0]
    into = Path(first) if first else Path.home() / ".kube" / "config"
    if into.absolute() == source.absolute():
        raise ConfigProblem("KUBECONFIG", f"{into} is the cluster's own kubeconfig: there is nothing to merge")
    context = merge_kubeconfig(source, into)
    text = f"{into}: current context is now {context}; try: kubectl get nodes"
    notify({"file": str(into), "context": context}, text, output)
    return 0


def known_cluster(name: str, data: str) -> tuple[Home, ClusterRecord]:
    from phalanx.serve.clusters import all_homes, home_with

    home = home_with(name, data)
    record = home.record()
    if record is None:
        known = ", ".join(other.name for other in all_homes())
        hint = f"clusters with names: {known}" if known else f"start one with: phalanx up {_address(name, data)}"
        raise ConfigProblem(home.title, f"there is no cluster here; {hint}")
    return home, record


def _address(name: str, data: str) -> str:
    return f"--name {name}" if name else "" if data == "data" else f"--data {data}"
