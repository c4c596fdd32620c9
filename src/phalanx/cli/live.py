"""A table of groups that redraws itself on a terminal, and one line per change elsewhere."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.live import Live
from rich.table import Table

from phalanx.serve.board import Row

STYLE = {"Scheduled": "green", "Unschedulable": "yellow", "WaitingForMembers": "cyan", "Invalid": "red"}


class LiveTable:
    """`show` takes rows; nothing is drawn before `start` (the ready line comes first)."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console()
        self._live: Live | None = None
        self._seen: dict[tuple[str, str, str], tuple[str, int]] = {}
        self._rows: list[Row] = []
        self._started = False

    def start(self) -> None:
        self._started = True
        if self._console.is_terminal:
            self._live = Live(table(self._rows), console=self._console, auto_refresh=False)
            self._live.start()
        else:
            self.show(self._rows)

    def stop(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def show(self, rows: list[Row]) -> None:
        self._rows = rows
        if not self._started:
            return
        if self._live is not None:
            self._live.update(table(rows), refresh=True)
            return
        for row in rows:
            key, state = (row.namespace, row.name, row.kind), (row.status, row.placed)
            if self._seen.get(key) != state:
                self._seen[key] = state
                where = f" on {row.where}" if row.where else ""
                text = f": {row.message}" if row.message and row.status != "Scheduled" else ""
                self._console.print(
                    f"{row.kind.lower()}/{row.name} {row.status} {row.placed}/{row.pods} placed{where}{text}",
                    soft_wrap=True,
                    highlight=False,
                )
                sys.stdout.flush()


def table(rows: list[Row]) -> Table:
    drawn = Table(title="Groups (Ctrl-C stops the cluster)", title_justify="left", expand=False)
    for name in ("NAMESPACE", "GROUP", "POLICY", "PLACED", "RUNNING", "WHERE", "STATUS", "WHY"):
        drawn.add_column(name, overflow="fold", no_wrap=name != "WHY")
    for row in rows:
        style = STYLE.get(row.status, "")
        drawn.add_row(
            row.namespace,
            row.name if row.kind == "PodGroup" else f"{row.name} (composite)",
            row.policy,
            f"{row.placed}/{row.pods}",
            str(row.running),
            row.where,
            f"[{style}]{row.status}[/]" if style else row.status,
            "" if row.status == "Scheduled" else row.message,
        )
    return drawn
