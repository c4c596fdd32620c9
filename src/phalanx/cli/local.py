"""Starts the local cluster for `up` and `apiserver`, and says where it is."""

from __future__ import annotations

import sys
import time

import click

from phalanx.serve.cluster import Cluster, ClusterSettings
from phalanx.serve.parts import parts_of
from phalanx.serve.process import configure_logging, run


def start_cluster(settings: ClusterSettings, log_level: str) -> int:
    """Runs until a signal; the exit code."""
    configure_logging(log_level)
    started = time.monotonic()
    cluster = Cluster(settings, parts_of(settings))

    def ready() -> str:
        kubeconfig = settings.server.kubeconfig_path
        where = f" KUBECONFIG={kubeconfig}" if kubeconfig is not None else ""
        return f"ready {cluster.server.url}{where} ({time.monotonic() - started:.1f} s)"

    def say(text: str) -> None:
        click.echo(text, file=sys.stderr if text.startswith("error") else sys.stdout)
        sys.stdout.flush()

    return run(cluster, ready, say)
