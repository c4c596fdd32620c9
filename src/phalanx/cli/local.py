"""Starts the local cluster for `up` and `apiserver`, and says where it is."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import click

from phalanx.cli.messages import print_line
from phalanx.cli.progress import Progress
from phalanx.serve.apiserver import ApiServer
from phalanx.serve.cluster import ClusterSettings, ServedCluster
from phalanx.serve.clusters import ClusterRecord
from phalanx.serve.demo_table import DemoTable
from phalanx.serve.parts import parts_of
from phalanx.serve.process import configure_logging, run
from phalanx.serve.queries.diagnostics import Diagnostics
from phalanx.serve.queries.engine_view import EngineReader
from phalanx.serve.scheduler import SchedulerService
from phalanx.serve.settings import MEMORY
from phalanx.web.dashboard import Dashboard


def start_cluster(
    settings: ClusterSettings,
    log_level: str,
    *,
    demo: bool = False,
    dashboard: Dashboard | None = None,
    notify: Callable[[int, int], None] | None = None,
) -> int:
    """Run a cluster until a signal and return the exit code.

    With `demo`, sample workloads are created and shown in a live table. `notify` gets how many nodes exist and how many
    there will be; without it this process shows them itself.
    """
    configure_logging(log_level)
    for note in settings.server.notes():
        click.echo(f"note: {note}", err=True)
    started = time.monotonic()
    starting = Progress("starting", "nodes")
    readers: list[EngineReader] = []  # of the scheduler that runs now, for the live table
    rows = DemoTable(lambda: readers[0])

    def follow(server: ApiServer, service: SchedulerService, diagnostics: Diagnostics) -> None:
        readers[:] = [EngineReader(service.engine, server.context.clock.now)]
        service.on_step.append(rows.touch)
        if dashboard is not None:
            dashboard.follow(server, service, diagnostics)

    parts = parts_of(settings, follow, notify or starting.notify)
    cluster = ServedCluster(settings, [*parts, dashboard.part] if dashboard is not None else parts)
    home, kubeconfig = settings.server.home, settings.server.kubeconfig_path

    def ready() -> str:
        if announce is not None:
            announce(
                ClusterRecord(
                    settings.server.name,
                    os.getpid(),
                    cluster.server.url,
                    str(kubeconfig or ""),
                    str(settings.server.data.absolute()) if settings.server.data is not None else MEMORY,
                    time.time(),
                    dashboard.url if dashboard is not None else "",
                )
            )
        where = f" KUBECONFIG={kubeconfig}" if kubeconfig is not None else ""
        line = f"ready {cluster.server.url}{where} ({time.monotonic() - started:.1f} s)"
        if dashboard is not None:
            line += f"\ndashboard {dashboard.link()}"
        if demo and kubeconfig is not None:
            line += f"\n\n{_guide(kubeconfig)}\n"
        return line

    def say(text: str) -> None:
        starting.stop()
        print_line(text)

    async def show_demo() -> None:
        from phalanx.cli.live import LiveTable
        from phalanx.serve.demo import apply_demo, start_over

        table = LiveTable()
        following = asyncio.ensure_future(rows.run(table.show))
        try:
            client = cluster.server.client("phalanx-demo")
            if await start_over(client):
                say("The demo ran here before; it starts again from the beginning.\n")
            table.start()
            await apply_demo(client)
            await following
        finally:
            following.cancel()
            table.stop()

    with home.held() if home is not None else nullcontext() as announce:
        starting.start()
        try:
            return run(cluster, ready, say, show_demo if demo else None, serving=True)
        finally:
            starting.stop()


def _guide(kubeconfig: Path) -> str:
    """Return the commands to type in another terminal; write the manifest that they use if it is missing."""
    from phalanx.serve.demo import GUIDE, write_manifest

    write_manifest()
    bin_ = Path(sys.executable).parent
    path = "" if shutil.which("phalanx") else f'  export PATH="{bin_}:$PATH"\n'
    width = max(len(command) for _, command in GUIDE)
    lines = "\n".join(f"  {command:<{width}}  # {why}" for why, command in GUIDE)
    return f"In another terminal, in this directory:\n{path}  export KUBECONFIG={kubeconfig}\n{lines}"
