"""Options that several commands share, declared once with one meaning and one help text."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import reduce
from math import isfinite
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from phalanx.base.errors import ConfigProblem

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

DIALECT_NAMES = ("coscheduling", "volcano", "kai")
_COLOUR_CHOICES = ("auto", "always", "never")
_LEVELS = click.Choice(["debug", "info", "warning", "error"])


def log_level_option(default: str) -> Decorator:
    return click.option("--log-level", default=default, show_default=True, type=_LEVELS, help="How much to log.")


def _dialects(_context: click.Context, _option: click.Parameter, text: str) -> tuple[str, ...]:
    """Read a list of dialects. The names are known without importing them, because `--help` must be fast."""
    names = tuple(dict.fromkeys(name for name in (part.strip() for part in text.split(",")) if name))
    for name in names:
        if name not in DIALECT_NAMES:
            raise click.BadParameter(f"{name!r} is not one of {', '.join(DIALECT_NAMES)}")
    return names


def deciding_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of every command that runs a scheduler."""
    slow = click.option(
        "--slow-plugin",
        type=click.IntRange(min=0),
        default=100,
        show_default=True,
        metavar="MS",
        help="Name a plugin that takes longer in one step, in the log and as a metric; 0: never.",
    )
    record = click.option(
        "--record", default=None, metavar="FILE", help="Write every event and decision, for `phalanx replay`."
    )
    provisioning = click.option(
        "--provisioning-requests",
        "provisioning",
        default="",
        metavar="CLASS",
        help="Make a ProvisioningRequest of this class for every group that lacks nodes: "
        "best-effort-atomic-scale-up or check-capacity, or the full name of another class.",
    )
    dialects = click.option(
        "--dialects",
        default="",
        metavar="NAMES",
        callback=_dialects,
        help="Schedule by PodGroups of other schedulers too: coscheduling, volcano, kai, separated by commas.",
    )
    kueue = click.option(
        "--kueue",
        is_flag=True,
        help="Answer admission checks of Kueue with the controller name scheduling.phalanx.dev/placement.",
    )
    return record(slow(provisioning(dialects(kueue(command)))))


_SERVER: tuple[Decorator, ...] = (
    click.option(
        "--data",
        default="",
        metavar="DIR",
        help="Where everything is kept; :memory: keeps nothing.  [default: data]",
    ),
    click.option(
        "--listen",
        default="",
        metavar="HOST:PORT",
        help="Address to serve on; port 0 chooses a free one.  [default: 127.0.0.1:7443]",
    ),
    click.option(
        "--kubeconfig",
        default=None,
        metavar="FILE",
        help="Where to write the kubeconfig (mode 600).  [default: DIR/kubeconfig]",
    ),
    click.option("--plain-http", is_flag=True, help="Serve without TLS and without a token; loopback addresses only."),
    click.option(
        "--event-ttl",
        default="",
        metavar="DURATION",
        help="How long events are kept, e.g. 30m; 0 keeps them.  [default: 1h]",
    ),
    click.option("--feature-gates", default="", metavar="A=true,B=false", help="Switch feature gates on or off."),
    click.option(
        "--authorization-mode",
        default="AlwaysAllow",
        show_default=True,
        type=click.Choice(["AlwaysAllow", "RBAC"]),
        help="RBAC: users and service accounts may do what roles are bound to them; see `phalanx user`.",
    ),
    click.option("--audit-log", default=None, metavar="FILE", help="Append a JSON line for every request (mode 600)."),
    log_level_option("warning"),
)


def server_options(command: Callable[..., Any]) -> Callable[..., Any]:
    return reduce(lambda inner, option: option(inner), reversed(_SERVER), command)


MAX_NODES = 100_000  # simulated nodes of one cluster; more do not fit into the memory of one machine


def check_directory_of(option: str, target: Path) -> None:
    """Check that a file can be written there, before anything else is done. Raises ConfigProblem."""
    if not target.parent.is_dir():
        raise ConfigProblem(option, f"there is no directory {target.parent}: create it first, or choose another place")
    if not os.access(target.parent, os.W_OK):
        raise ConfigProblem(option, f"{target.parent} may not be written to: choose another place")
    if target.is_dir():
        raise ConfigProblem(option, f"{target} is a directory: name a file in it")


def no_empty_name(context: click.Context, option: click.Parameter, value: str) -> str:
    """Refuse `--name ""`: what a script meant was a name, and another cluster must not be taken for it."""
    if not value and context.get_parameter_source(option.name or "") is ParameterSource.COMMANDLINE:
        raise click.BadParameter("an empty name; leave it out for the cluster in ./data", context, option)
    return value


class Seconds(click.FloatRange):
    """A number of seconds. FloatRange alone accepts nan, which is neither too small nor too large."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        seconds = float(super().convert(value, param, ctx))
        if not isfinite(seconds):
            self.fail(f"{value} is not a number of seconds", param, ctx)
        return seconds


_CHOSEN = "phalanx.cluster"  # in the meta of a context: (the option that chose the cluster, its kubeconfig)


def _choose_cluster(context: click.Context, option: click.Parameter, value: str) -> str:
    """Let --name, --data or --kubeconfig choose the cluster: the value of --kubeconfig becomes that of the cluster."""
    chosen, kubeconfig = context.meta.get(_CHOSEN, ("", ""))
    if option.name == "local_cluster":
        no_empty_name(context, option, value)
    if not value:
        return str(kubeconfig)
    if chosen:
        raise click.UsageError(f"give {chosen} or {option.opts[0]}, not both: each says which cluster")
    if option.name != "kubeconfig":
        from phalanx.cli.clusters import known_cluster

        name, data = (value, "") if option.name == "local_cluster" else ("", value)
        home, record = known_cluster(name, data)
        if not record.kubeconfig:
            raise ConfigProblem(home.title, "has written no kubeconfig; start it with --kubeconfig FILE")
        kubeconfig = record.kubeconfig
    context.meta[_CHOSEN] = (option.opts[0], kubeconfig)
    return value


def cluster_options(default: str) -> Decorator:
    """Add the options that every command which talks to a cluster has: --name, --data, --kubeconfig and --context.

    default: which cluster it is without them, for --help
    """
    options = (
        click.option(
            "--name",
            "local_cluster",  # not `cluster_name`, which `phalanx scheduler --cluster-name` has
            default="",
            metavar="CLUSTER",
            expose_value=False,
            callback=_choose_cluster,
            help="A local cluster by its name, instead of --kubeconfig.",
        ),
        click.option(
            "--data",
            "cluster_data",
            default="",
            metavar="DIR",
            expose_value=False,
            callback=_choose_cluster,
            help="A local cluster by its data directory, instead of --kubeconfig.",
        ),
        click.option(
            "--kubeconfig", default="", metavar="FILE", callback=_choose_cluster, help=f"[default: {default}]"
        ),
        click.option("--context", default="", metavar="NAME", help="Context in it.  [default: its current one]"),
    )
    return lambda command: reduce(lambda inner, option: option(inner), reversed(options), command)


connection_options = cluster_options("in-cluster")
asked_cluster = cluster_options("$KUBECONFIG, ~/.kube/config, else in-cluster")


def _choose_colours(context: click.Context, _option: click.Parameter, chosen: str) -> str:
    """Set the environment variables that this process and its children respect, and what `click.echo` strips."""
    if chosen != "auto":
        wanted, other = ("FORCE_COLOR", "NO_COLOR") if chosen == "always" else ("NO_COLOR", "FORCE_COLOR")
        os.environ[wanted] = "1"
        os.environ.pop(other, None)
    if os.environ.get("NO_COLOR"):
        context.color = False
    elif os.environ.get("FORCE_COLOR"):
        context.color = True  # otherwise colours are removed where the output is no terminal
    return chosen


def color_option(**more: Any) -> click.Option:
    """Return `--color auto|always|never`, for before or after a command: the same as NO_COLOR and FORCE_COLOR."""
    return click.Option(
        ["--color"],
        type=click.Choice(_COLOUR_CHOICES),
        default="auto",
        show_default=True,
        expose_value=False,
        is_eager=True,
        callback=_choose_colours,
        help="Colours: auto is on a terminal, and not with NO_COLOR.",
        **more,
    )
