"""A table of groups that redraws itself on a terminal, and one line per change elsewhere."""

from __future__ import annotations

import sys
import textwrap

from rich.console import Console
from rich.live import Live
from rich.text import Text

from phalanx.cli.messages import short_names
from phalanx.serve.demo_table import GOOD, DemoRow

STYLE = {"Running": "green", "Completed": "green", "Scheduling": "yellow", "Waiting": "cyan", "Preempting": "magenta",
         "Preempted": "magenta", "Degraded": "red", "TimedOut": "red", "Invalid": "red"}  # fmt: skip
TITLES = ("GROUP", "PLACED", "POLICY", "STATUS", "WHERE")
WHERE = 12  # columns kept for it where names are long
REASON_LINES = 3


class LiveTable:
    """`show` takes rows; nothing is drawn before `start` (the ready line comes first)."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console()
        self._live: Live | None = None
        self._seen: dict[tuple[str, str, str], tuple[str, int, bool]] = {}
        self._rows: list[DemoRow] = []
        self._started = False

    def start(self) -> None:
        self._started = True
        if self._console.is_terminal:
            self._live = Live(self._draw(), console=self._console, auto_refresh=False)
            self._live.start()
        else:
            self.show(self._rows)

    def stop(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _draw(self) -> Text:
        return draw_table(self._rows, self._console.width, self._console.height)

    def show(self, rows: list[DemoRow]) -> None:
        self._rows = rows
        if not self._started:
            return
        if self._live is not None:
            self._live.update(self._draw(), refresh=True)
            return
        for row in rows:
            key, state = (row.namespace, row.name, row.kind), (row.status, row.placed, bool(row.message))
            if self._seen.get(key) not in (state, (row.status, row.placed, True)):
                self._seen[key] = state
                where = f" on {row.where}" if row.where else ""
                text = f": {row.message}" if row.message and row.status not in GOOD else ""
                self._console.print(
                    f"{row.kind.lower()}/{row.name} {row.status} {row.placed}/{row.pods} placed{where}{text}",
                    soft_wrap=True,
                    highlight=False,
                )
                sys.stdout.flush()


def draw_table(rows: list[DemoRow], width: int, height: int) -> Text:
    """Draw waiting groups first, each with its reason on its own line; say how many rows do not fit the screen."""
    rows = sorted(rows, key=lambda row: (row.status in GOOD, row.namespace, row.name, row.kind))
    namespaces = {row.namespace for row in rows}
    shown = short_names((row.namespace, row.name) for row in rows)
    names = [_name(row, shown[row.namespace, row.name], len(namespaces) > 1) for row in rows]
    cells = [
        (name, f"{row.placed}/{row.pods}", row.policy, row.status, row.where)
        for name, row in zip(names, rows, strict=True)
    ]
    widths = [
        max(len(title), *(len(cell[n]) for cell in cells)) if cells else len(title) for n, title in enumerate(TITLES)
    ]
    widths[0] = min(widths[0], max(16, width - sum(widths[1:4]) - 8 - WHERE))
    drawn = Text(no_wrap=True, overflow="ellipsis")
    drawn.append("Groups (Ctrl-C stops the cluster)\n", style="bold")
    drawn.append(_line(TITLES, widths, width) + "\n", style="dim")
    room = height - 4  # title, column heads, the line with the number of omitted rows, the prompt
    for number, (row, cell) in enumerate(zip(rows, cells, strict=True)):
        reason = _reason(row, width)
        if room < 1 + len(reason):
            drawn.append(f"and {len(rows) - number} more: kubectl get podgroups -A\n", style="dim")
            break
        room -= 1 + len(reason)
        drawn.append(_line(cell, widths, width) + "\n", style=STYLE.get(row.status, ""))
        for line in reason:
            drawn.append(f"    {line}\n", style="dim")
    return drawn


def _name(row: DemoRow, name: str, several: bool) -> str:
    kind = "" if row.kind == "PodGroup" else " (tree)"
    return f"{row.namespace}/{name}{kind}" if several else f"{name}{kind}"


def _line(cells: tuple[str, ...], widths: list[int], width: int) -> str:
    cut = [cell if len(cell) <= size else cell[: size - 1] + "…" for cell, size in zip(cells, widths, strict=True)]
    line = "  ".join(f"{cell:<{size}}" for cell, size in zip(cut, widths, strict=True)).rstrip()
    return line if len(line) <= width else line[: width - 1] + "…"


def _reason(row: DemoRow, width: int) -> list[str]:
    if row.status in GOOD or not row.message:
        return []
    lines = textwrap.wrap(row.message, max(20, width - 5))
    return (
        lines
        if len(lines) <= REASON_LINES
        else [*lines[: REASON_LINES - 1], lines[REASON_LINES - 1][: width - 6] + "…"]
    )
