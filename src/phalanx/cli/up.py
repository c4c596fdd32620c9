"""`phalanx up`: a whole local cluster with one command."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click

from phalanx.cli.options import MAX_NODES, Seconds, deciding_options, no_empty_name, server_options


@click.command(short_help="Start a whole local cluster.")
@server_options
@click.option(
    "--nodes",
    default=None,
    type=click.IntRange(0, MAX_NODES),
    metavar="N",
    help="Simulated nodes to start with.  [default: those there are; in a new cluster 10, with --demo 32]",
)
@click.option("--topology", default="", metavar="SPEC", help="Topology of the nodes, such as zones=2,blocks=4,racks=8.")
@click.option(
    "--devices",
    default="",
    metavar="SPEC",
    help="Devices that simulated drivers publish for every node, such as gpu.example.com:8,nvlink=4 (DRA).",
)
@click.option(
    "--autoscale",
    multiple=True,
    metavar="SHAPE=MIN..MAX,delay=30s",
    help="A group of simulated nodes that follows the demand, such as gpus=8,racks=4=0..16,delay=30s,idle=60s.",
)
@click.option("--no-nodes", is_flag=True, help="Run no simulated kubelets at all.")
@click.option("--demo/--no-demo", default=False, help="Make sample workloads and follow them in a live table.")
@click.option("--no-controllers", is_flag=True, help="Run no workload, disruption or node controllers.")
@click.option("--config", default="", metavar="FILE", help="KubeSchedulerConfiguration of the scheduler.")
@click.option(
    "--name",
    default="",
    metavar="NAME",
    callback=no_empty_name,
    help="A cluster with data, port and kubeconfig of its own.",
)
@click.option("--detach", is_flag=True, help="Return when it is ready; it runs on until `phalanx down`.")
@click.option(
    "--wait",
    is_flag=False,
    flag_value=60.0,
    default=60.0,
    type=Seconds(0, 86_400),
    metavar="SECONDS",
    help="With --detach: how long to wait until it is ready.  [default: 60]",
)
@click.option(
    "--dashboard",
    default="",
    metavar="HOST:PORT|off",
    help="Where the dashboard listens, loopback only.  [default: 127.0.0.1:7480, or a free port if that is taken]",
)
@deciding_options
def up(
    data: str,
    listen: str,
    kubeconfig: str | None,
    plain_http: bool,
    event_ttl: str,
    feature_gates: str,
    authorization_mode: str,
    audit_log: str | None,
    log_level: str,
    nodes: int | None,
    topology: str,
    devices: str,
    autoscale: tuple[str, ...],
    no_nodes: bool,
    demo: bool,
    no_controllers: bool,
    config: str,
    name: str,
    detach: bool,
    wait: float,
    dashboard: str,
    record: str | None,
    slow_plugin: int,
    provisioning: str,
    dialects: tuple[str, ...],
    kueue: bool,
) -> int:
    """Start a whole local cluster: API server, simulated nodes, controllers and scheduler in one process.

    Prints a line starting with `ready` when everything answers, and one with a link to the dashboard that logs in one
    browser once (`phalanx dashboard` prints another); Ctrl-C stops it. Nodes made through the API are left
    alone and usable as they are.

    \b
    Examples:
      phalanx up
      phalanx up --demo
      phalanx up --nodes 5000 --topology zones=2,blocks=4,racks=8
      phalanx up --devices gpu.example.com:8,nvlink=4    # devices for resource claims
      phalanx up --nodes 0 --autoscale gpus=8,racks=4=0..16,delay=5s    # nodes come and go with the demand
      phalanx up --name team-a --detach && phalanx status team-a && phalanx down team-a
      phalanx up --nodes 0 --no-nodes --no-controllers    # API server and scheduler only
      KUBECONFIG=data/kubeconfig kubectl get nodes
    """
    from phalanx.cli.local import start_cluster
    from phalanx.controllers.cluster_mode.provisioning_requests import class_name
    from phalanx.serve.cluster import ClusterSettings
    from phalanx.serve.scheduler_config import load_config
    from phalanx.serve.settings import DEFAULT_DATA, ServerSettings
    from phalanx.web.dashboard import Dashboard

    server = ServerSettings.of(
        data, listen, kubeconfig, plain_http, feature_gates, name, event_ttl, authorization_mode, audit_log
    )
    home = server.home
    if detach and home is None:
        raise click.UsageError(
            "--detach with --data :memory: needs --name: otherwise no command could find the cluster again"
        )
    scheduler, document = load_config(config)
    usual_nodes, usual_topology = 10, ""
    if demo:
        from phalanx.serve import demo as sample

        if no_nodes or no_controllers:
            raise click.UsageError("--demo needs nodes and controllers: leave out --no-nodes and --no-controllers")
        usual_nodes, usual_topology = sample.NODES, sample.TOPOLOGY if nodes is None else ""
    if autoscale and no_nodes:
        raise click.UsageError("--autoscale makes simulated nodes: leave out --no-nodes")
    settings = ClusterSettings(
        server=server,
        nodes=nodes,
        topology=topology,
        devices=devices,
        autoscale=autoscale,
        usual_nodes=usual_nodes,
        usual_topology=usual_topology,
        run_nodes=not no_nodes,
        run_controllers=not no_controllers,
        config=scheduler,
        document=document,
        record=Path(record) if record else None,
        slow_plugin=slow_plugin / 1000,
        dialects=dialects,
        kueue=kueue,
        provisioning=class_name(provisioning) if provisioning else "",
    )
    shown = None if dashboard == "off" else Dashboard(dashboard)

    def start(notify: Callable[[int, int], None] | None = None) -> int:
        return start_cluster(settings, log_level, demo=demo, dashboard=shown, notify=notify)

    if not detach or home is None:
        return start()
    from phalanx.cli.detach import detached

    where = name or f"--data {data or DEFAULT_DATA}"
    return detached(start, home.log, wait, f"Stop it with: phalanx down {where}")
