"""`phalanx scheduler` and `phalanx replay`."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import click

from phalanx.cli.messages import print_line
from phalanx.cli.options import connection_options, deciding_options, log_level_option
from phalanx.cli.output import CommandError, encoded, for_programs, output_option
from phalanx.cli.progress import progress


def _lease(text: str) -> str:
    if text and (text.count("/") != 1 or not all(text.split("/"))):
        raise CommandError(f"--placement-lease: {text!r} is not NAMESPACE/NAME")
    return text


@click.command(short_help="Run the scheduler against an API server.")
@connection_options
@click.option("--scheduler-name", default="", metavar="NAME", help="Pods with this spec.schedulerName are ours.")
@click.option(
    "--config", default="", metavar="FILE", help="KubeSchedulerConfiguration (kubescheduler.config.k8s.io/v1)."
)
@click.option("--feature-gates", default="", metavar="A=true,B=false", help="Switch feature gates on or off.")
@click.option(
    "--leader-elect/--no-leader-elect", default=True, show_default=True, help="Act only while holding the lease."
)
@click.option(
    "--lease-name",
    default="",
    show_default="leaderElection.resourceName of --config, else phalanx-scheduler",
    metavar="NAME",
    help="The lease's name.",
)
@click.option(
    "--lease-namespace",
    default="",
    show_default="leaderElection.resourceNamespace of --config, else kube-system",
    metavar="NS",
    help="The lease's namespace.",
)
@click.option(
    "--placement-lease",
    default="kube-system/phalanx-placement",
    show_default=True,
    metavar="NS/NAME",
    help="The lease with which several Phalanx schedulers take turns; empty: do not.",
)
@click.option(
    "--health",
    default="127.0.0.1:10259",
    show_default=True,
    metavar="HOST:PORT",
    help="/livez /readyz; /metrics on loopback.",
)
@click.option(
    "--secure",
    default="",
    metavar="HOST:PORT",
    help="TLS: /livez /readyz; /metrics and questions for tokens the API server allows.",
)
@click.option(
    "--secure-tls-dir",
    default="",
    metavar="DIR",
    help="tls.crt and tls.key for --secure, read again when they change.  [default: generated]",
)
@click.option(
    "--dashboard/--no-dashboard",
    default=True,
    show_default=True,
    help="The dashboard at /dashboard/ of the health address, for tokens the API server allows.",
)
@click.option(
    "--cluster-name",
    default="",
    metavar="NAME",
    show_default="that of the kubeconfig; none in a cluster",
    help="Name of the cluster in the header and the tab of the dashboard.",
)
@deciding_options
@log_level_option("info")
def scheduler(
    kubeconfig: str,
    context: str,
    scheduler_name: str,
    config: str,
    feature_gates: str,
    leader_elect: bool,
    lease_name: str,
    lease_namespace: str,
    placement_lease: str,
    health: str,
    secure: str,
    secure_tls_dir: str,
    dashboard: bool,
    cluster_name: str,
    record: str | None,
    slow_plugin: int,
    provisioning: str,
    dialects: tuple[str, ...],
    kueue: bool,
    log_level: str,
) -> int:
    """Run the scheduler alone, against any kube-apiserver or `phalanx apiserver`.

    \b
    Examples:
      phalanx scheduler --kubeconfig data/kubeconfig
      phalanx scheduler --kubeconfig ~/.kube/config --scheduler-name phalanx
      phalanx scheduler --kubeconfig data/kubeconfig --config scheduler.yaml --record run.jsonl
    """
    from phalanx.controllers.cluster_mode.provisioning_requests import class_name
    from phalanx.kube.config import load
    from phalanx.model.gates import Gates
    from phalanx.serve.process import configure_logging, run
    from phalanx.serve.scheduler_config import load_config
    from phalanx.serve.scheduler_process import SchedulerProcess, SchedulerSettings
    from phalanx.serve.settings import Listen
    from phalanx.web.in_cluster import InClusterDashboard

    configure_logging(log_level)
    parsed, document = load_config(config, scheduler_name)
    where = Listen.parse(health, "--health")
    path = kubeconfig or parsed.client_connection.kubeconfig
    name = cluster_name or (load(path, context).cluster if path else "")
    process = SchedulerProcess(
        SchedulerSettings(
            kubeconfig=kubeconfig,
            context=context,
            config=parsed,
            document=document,
            gates=Gates.parse(feature_gates),
            leader_elect=leader_elect and parsed.leader_election.enabled,
            lease_name=lease_name,
            lease_namespace=lease_namespace,
            placement_lease=_lease(placement_lease),
            health_host=where.host,
            health_port=where.port,
            secure=Listen.parse(secure, "--secure") if secure else None,
            secure_tls_dir=Path(secure_tls_dir) if secure_tls_dir else None,
            record=Path(record) if record else None,
            slow_plugin=slow_plugin / 1000,
            provisioning=class_name(provisioning) if provisioning else "",
            dialects=dialects,
            kueue=kueue,
        ),
        dashboard=partial(InClusterDashboard, name=name) if dashboard else None,
    )

    def ready() -> str:
        name, served = parsed.profiles[0].scheduler_name, process.health
        line = f"ready scheduler {name} health=http://{where.host}:{served.port if served is not None else 0}"
        if served is not None and served.secure_port:
            line += f" secure=https://{Listen.parse(secure).host}:{served.secure_port}"
        return line

    return run(process, ready, print_line)


@click.command(short_help="Replay a recording and compare every decision.")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@output_option()
def replay(file: Path, output: str) -> int:
    """Feed a recording made with --record to a fresh engine; fail loudly at the first decision that differs.

    \b
    Example:
      phalanx replay run.jsonl
    """
    from phalanx.engine.engine import Engine
    from phalanx.engine.plugins.config import read_config
    from phalanx.model.gates import Gates
    from phalanx.serve.recording import ReplayProblem, read_head
    from phalanx.serve.recording import replay as play
    from phalanx.serve.scheduler_config import installed_plugins

    try:
        head = read_head(file)
    except ReplayProblem as problem:
        raise CommandError(f"{problem}; make a recording with: phalanx up --record FILE") from None
    try:
        config = read_config(head["config"], installed_plugins())
        # Recordings of 0.1.0 name no slice: searches ran to their end in one step.
        settings = replace(config.engine(), search_slice=head.get("slice", 0))
        with progress(f"replaying {file.name}") as notify:
            counts = play(file, Engine(settings, Gates(head.get("gates"))), notify)
    except ReplayProblem as problem:
        if for_programs(output):
            click.echo(encoded({"same": False, "problem": str(problem)}, output))
        click.echo(f"error: {problem}", err=True)
        return 1
    if for_programs(output):
        click.echo(encoded({"same": True, **counts}, output))
        return 0
    click.echo(f"same: {counts['events']} events, {counts['steps']} steps, {counts['decisions']} decisions")
    return 0
