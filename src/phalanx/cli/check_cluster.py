"""`phalanx check-cluster`: what of a cluster works for Phalanx, what does not, and what to do. Changes nothing."""

from __future__ import annotations

import click
import msgspec

from phalanx.base.clock import SystemClock
from phalanx.cli.options import asked_cluster
from phalanx.cli.output import CommandResult, output_option, print_answers
from phalanx.cli.scheduler_client import Colours, connection_of, run
from phalanx.kube.client import HttpClient
from phalanx.serve.cluster_check import FAILS, UNKNOWN, WORKS, Check, ClusterCheck

_COLOURS = {WORKS: "green", FAILS: "red", UNKNOWN: "yellow"}


@click.command(short_help="Say what works on a cluster, what does not, and what to do.")
@asked_cluster
@click.option("-n", "--namespace", default="phalanx-system", show_default=True, help="Where Phalanx is, or shall be.")
@output_option()
def check_cluster(kubeconfig: str, context: str, namespace: str, output: str) -> int:
    """Look at a cluster before or after Phalanx is installed: version, clock, group kinds, feature gates, rights,
    webhook, leader election, questions through the service proxy, and other schedulers. Changes nothing.

    One line for each check: it works, does not work, is not installed, or could not be looked at, and what to do.
    Exit code 0: nothing fails, 1: something does, 2: the cluster cannot be reached.

    \b
    Examples:
      phalanx check-cluster
      phalanx check-cluster --context production -o json
      kubectl phalanx check-cluster
    """
    return run(print_answers(lambda: _check_cluster(kubeconfig, context, namespace), output, watch=False))


async def _check_cluster(kubeconfig: str, context: str, namespace: str) -> list[CommandResult]:
    connection = connection_of(kubeconfig, context)
    async with HttpClient(connection, user_agent="phalanx-cli", timeout=15) as client:
        checks = await ClusterCheck(client, SystemClock(), namespace).run()
    failed = any(check.state == FAILS for check in checks)
    data = {"server": connection.server, "works": not failed, "checks": msgspec.to_builtins(checks)}
    return [CommandResult(1 if failed else 0, data, render(checks, Colours()))]


def render(checks: list[Check], paint: Colours) -> str:
    width = max(len(check.name) for check in checks)
    states = max(len(check.state) for check in checks)
    lines = []
    for check in checks:
        state = paint(f"{check.state:<{states}}", _COLOURS.get(check.state, "blue"))
        lines.append(f"{check.name:<{width}}  {state}  {check.found}")
        if check.todo:
            lines.append(f"{'':<{width + states + 4}}-> {check.todo}")
    return "\n".join(lines)
