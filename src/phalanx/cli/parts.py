"""`phalanx nodes` and `phalanx controllers`: parts of a local cluster as processes of their own."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import click

from phalanx.cli.options import connection_options, log_level_option


def _run(kubeconfig: str, context: str, log_level: str, name: str, make: Callable[[Any], Any]) -> int:
    from phalanx.serve.process import configure_logging, run
    from phalanx.serve.remote import Remote

    configure_logging(log_level)

    def say(text: str) -> None:
        click.echo(text, file=sys.stderr if text.startswith("error") else sys.stdout)
        sys.stdout.flush()

    return run(Remote(kubeconfig, context, make, name=f"phalanx-{name}"), lambda: f"ready {name}", say)


@click.command(short_help="Simulate nodes and their kubelets.")
@connection_options
@click.option("--nodes", "count", default=0, show_default=True, type=click.IntRange(min=0), help="Nodes to create.")
@click.option("--topology", default="", metavar="SPEC", help="Where the nodes stand, such as zones=2,blocks=4,racks=8.")
@log_level_option("info")
def nodes(kubeconfig: str, context: str, count: int, topology: str, log_level: str) -> int:
    """Create simulated nodes and run the kubelets of all simulated nodes.

    \b
    Example:
      phalanx nodes --kubeconfig data/kubeconfig --nodes 100 --topology zones=2,racks=8
    """
    from phalanx.local.nodes.simulation import SimulatedNodes
    from phalanx.local.nodes.topology import parse_topology
    from phalanx.serve.component import Loop

    parsed = parse_topology(topology)

    def make(client: Any) -> Loop:
        simulated = SimulatedNodes(client, count, parsed)
        return Loop("nodes", simulated.run, ready=simulated.ready.wait)

    return _run(kubeconfig, context, log_level, "nodes", make)


@click.command(short_help="Run the workload controllers.")
@connection_options
@log_level_option("info")
def controllers(kubeconfig: str, context: str, log_level: str) -> int:
    """Run the workload and disruption controllers of a local cluster against an API server.

    \b
    Example:
      phalanx controllers --kubeconfig data/kubeconfig
    """
    from phalanx.base.clock import SystemClock
    from phalanx.serve.component import Loop
    from phalanx.serve.controllers import ControllersService

    def make(client: Any) -> Loop:
        service = ControllersService(client, SystemClock())
        return Loop("controllers", service.run, ready=service.ready.wait)

    return _run(kubeconfig, context, log_level, "controllers", make)
