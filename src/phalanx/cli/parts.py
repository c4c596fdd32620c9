"""`phalanx nodes` and `phalanx controllers`: parts of a local cluster as processes of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from phalanx.base.errors import ApiProblem, ConfigProblem
from phalanx.cli.messages import print_line
from phalanx.cli.options import MAX_NODES, connection_options, log_level_option
from phalanx.cli.progress import Progress

if TYPE_CHECKING:
    from phalanx.serve.cluster_mode import ClusterModeSettings


def _run_part(kubeconfig: str, context: str, log_level: str, name: str, make: Callable[[Any], Any]) -> int:
    from phalanx.serve.process import configure_logging, run
    from phalanx.serve.remote import Remote

    configure_logging(log_level)
    return run(Remote(kubeconfig, context, make, name=f"phalanx-{name}"), lambda: f"ready {name}", print_line)


@click.command(short_help="Simulate nodes and their kubelets.")
@connection_options
@click.option(
    "--nodes", "count", default=0, show_default=True, type=click.IntRange(0, MAX_NODES), help="Nodes to create."
)
@click.option("--topology", default="", metavar="SPEC", help="Topology of the nodes, such as zones=2,blocks=4,racks=8.")
@click.option("--like", default="", metavar="KUBECONFIG", help="Create a simulated copy of every node of that cluster.")
@click.option("--like-context", default="", metavar="NAME", help="Context in it.  [default: its current one]")
@log_level_option("info")
def nodes(
    kubeconfig: str, context: str, count: int, topology: str, like: str, like_context: str, log_level: str
) -> int:
    """Create simulated nodes and run the kubelets of all simulated nodes.

    \b
    Examples:
      phalanx nodes --kubeconfig data/kubeconfig --nodes 100 --topology zones=2,racks=8
      phalanx nodes --kubeconfig data/kubeconfig --like ~/.kube/config
    """
    from phalanx.local.nodes.fleet import Fleet
    from phalanx.local.nodes.simulation import SimulatedNodes
    from phalanx.local.nodes.topology import parse_topology
    from phalanx.serve.component import Loop

    if like and (count or topology):
        raise ConfigProblem(
            "--like", "cannot be used with --nodes or --topology: there are as many copies as that cluster has nodes"
        )
    parsed = parse_topology(topology) if topology else None
    originals = asyncio.run(_nodes_of(like, like_context, kubeconfig, context)) if like else []

    making = Progress("making", "nodes")

    async def made(simulated: SimulatedNodes) -> None:
        await simulated.ready.wait()
        making.stop()

    def make(client: Any) -> Loop:
        simulated = SimulatedNodes(client, Fleet(count, parsed, originals=originals), notify=making.notify)
        return Loop("nodes", simulated.run, ready=lambda: made(simulated))

    making.start()
    try:
        return _run_part(kubeconfig, context, log_level, "nodes", make)
    finally:
        making.stop()


async def _nodes_of(like: str, like_context: str, kubeconfig: str, context: str) -> list[dict[str, Any]]:
    """Return the nodes of the cluster that is copied; that cluster is only read."""
    import msgspec

    from phalanx.base.resources import NODES
    from phalanx.kube.client import HttpClient
    from phalanx.kube.config import load

    source = load(like, like_context)
    if kubeconfig and load(kubeconfig, context).server == source.server:
        raise ConfigProblem("--like", f"{source.server} is the same cluster; copies go to a local one (--kubeconfig)")
    async with HttpClient(source, user_agent="phalanx-nodes") as client:
        try:
            found: list[dict[str, Any]] = msgspec.json.decode(await client.list(NODES))["items"]
        except ApiProblem as problem:
            raise ConfigProblem("--like", f"cannot read the nodes of {source.server}: {problem}") from None
    return found


@click.command(short_help="Run the workload controllers.")
@connection_options
@click.option(
    "--mode",
    default="local",
    show_default=True,
    type=click.Choice(["local", "cluster"]),
    help="local: all controllers; cluster: only groups and links; the cluster's own controllers do the rest.",
)
@click.option("--scheduler-name", default="", metavar="NAME", help="cluster: grouped pods are sent to this scheduler.")
@click.option("--webhook-listen", default="", metavar="HOST:PORT", help="cluster: serve the webhook that links pods.")
@click.option(
    "--webhook-host", "hosts", multiple=True, metavar="NAME", help="cluster: a name in the webhook's certificate."
)
@click.option(
    "--webhook-configuration",
    default="phalanx",
    show_default=True,
    metavar="NAME",
    help="cluster: MutatingWebhookConfiguration that gets the CA bundle.",
)
@click.option("--tls-dir", default=None, metavar="DIR", help="cluster: tls.crt and tls.key.  [default: generated]")
@click.option(
    "--namespace",
    default="phalanx-system",
    show_default=True,
    metavar="NS",
    help="cluster: where the lease and the Secret of the certificate are.",
)
@click.option(
    "--leader-elect/--no-leader-elect", default=True, show_default=True, help="cluster: write only with the lease."
)
@click.option("--health", default="", metavar="HOST:PORT", help="cluster: /livez /readyz; /metrics on loopback.")
@click.option(
    "--secure",
    default="",
    metavar="HOST:PORT",
    help="cluster: TLS with the webhook's certificate: /livez /readyz; /metrics for tokens the API server allows.",
)
@click.option(
    "--gang-budgets/--no-gang-budgets",
    default=False,
    show_default=True,
    help="cluster: a PodDisruptionBudget for each gang that is only disrupted as a whole, so that a drain is refused.",
)
@log_level_option("info")
def controllers(
    kubeconfig: str,
    context: str,
    mode: str,
    scheduler_name: str,
    webhook_listen: str,
    hosts: tuple[str, ...],
    webhook_configuration: str,
    tls_dir: str | None,
    namespace: str,
    leader_elect: bool,
    health: str,
    secure: str,
    gang_budgets: bool,
    log_level: str,
) -> int:
    """Run the workload and disruption controllers of a local cluster, or make groups for the workloads of a real one.

    \b
    Examples:
      phalanx controllers --kubeconfig data/kubeconfig
      phalanx controllers --mode cluster --kubeconfig ~/.kube/config --scheduler-name phalanx
      phalanx controllers --mode cluster --webhook-listen 0.0.0.0:9443 \\
        --webhook-host phalanx-webhook.phalanx-system.svc --scheduler-name phalanx
    """
    if mode == "cluster":
        from pathlib import Path

        from phalanx.kube.lease import LeaseSettings
        from phalanx.serve.cluster_mode import ClusterModeSettings
        from phalanx.serve.settings import Listen

        return _run_cluster_mode(
            ClusterModeSettings(
                kubeconfig=kubeconfig,
                context=context,
                scheduler_name=scheduler_name,
                webhook=Listen.parse(webhook_listen, "--webhook-listen") if webhook_listen else None,
                tls_dir=Path(tls_dir) if tls_dir else None,
                webhook_hosts=hosts,
                configuration=webhook_configuration,
                namespace=namespace,
                leader_elect=leader_elect,
                lease=LeaseSettings("phalanx-controllers", namespace),
                health=Listen.parse(health, "--health") if health else None,
                secure=Listen.parse(secure, "--secure") if secure else None,
                gang_budgets=gang_budgets,
            ),
            log_level,
        )
    if scheduler_name or webhook_listen or hosts or tls_dir or health or secure or gang_budgets:
        options = "--scheduler-name, --webhook-*, --tls-dir, --health, --secure and --gang-budgets"
        raise ConfigProblem("--mode", f"{options} belong to --mode cluster; add it")
    from phalanx.base.clock import SystemClock
    from phalanx.serve.component import Loop
    from phalanx.serve.controllers import ControllersService

    def make(client: Any) -> Loop:
        service = ControllersService(client, SystemClock())
        return Loop("controllers", service.run, ready=service.ready.wait)

    return _run_part(kubeconfig, context, log_level, "controllers", make)


def _run_cluster_mode(settings: ClusterModeSettings, log_level: str) -> int:
    from phalanx.serve.cluster_mode import ClusterMode
    from phalanx.serve.process import configure_logging, run

    configure_logging(log_level)
    process = ClusterMode(settings)

    def ready() -> str:
        line = "ready controllers mode=cluster"
        if process.webhook is not None and settings.webhook is not None:
            line += f" webhook=https://{settings.webhook.host}:{process.webhook.port}"
        if process.health is not None and settings.health is not None:
            line += f" health=http://{settings.health.host}:{process.health.port}"
        if process.health is not None and settings.secure is not None:
            line += f" secure=https://{settings.secure.host}:{process.health.secure_port}"
        return line

    return run(process, ready, print_line)
