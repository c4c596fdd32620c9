"""`phalanx apiserver`: the API server alone, with its background controllers."""

from __future__ import annotations

import click

from phalanx.cli.options import server_options


@click.command(short_help="Start the API server alone.")
@server_options
def apiserver(
    data: str,
    listen: str,
    kubeconfig: str | None,
    plain_http: bool,
    event_ttl: str,
    feature_gates: str,
    authorization_mode: str,
    audit_log: str | None,
    log_level: str,
) -> int:
    """Start the Kubernetes-compatible API server alone: no nodes, no scheduler, no controllers.

    \b
    Examples:
      phalanx apiserver
      phalanx apiserver --data :memory: --listen 127.0.0.1:0 --kubeconfig ./kubeconfig
      phalanx apiserver --feature-gates CompositePodGroup=false
    """
    from phalanx.cli.local import start_cluster
    from phalanx.serve.cluster import ClusterSettings
    from phalanx.serve.settings import ServerSettings

    server = ServerSettings.of(
        data,
        listen,
        kubeconfig,
        plain_http,
        feature_gates,
        event_ttl=event_ttl,
        authorization_mode=authorization_mode,
        audit_log=audit_log,
    )
    return start_cluster(
        ClusterSettings(server=server, run_nodes=False, run_controllers=False, run_scheduler=False), log_level
    )
