"""`phalanx top`: queue, groups and racks of a cluster in a terminal. Read-only."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys

import click
import msgspec
from rich.console import Console

from phalanx.base.errors import ApiProblem
from phalanx.cli.options import Seconds
from phalanx.cli.output import encoded, for_programs, output_option
from phalanx.cli.scheduler_client import Colours, SchedulerClient, SchedulerUnavailable, Where, place_options, run
from phalanx.cli.screen import Screen, nodes_text
from phalanx.engine.explain.values import PlanAnswer, Report


@click.command(short_help="Show queue, groups and racks in the terminal.")
@place_options
@click.option(
    "-n",
    "--namespace",
    default="",
    metavar="NS",
    help="Only its groups; others are counted.  [default: all that you may read]",
)
@click.option("--every", default=2.0, show_default=True, type=Seconds(0.2, 3600), metavar="SECONDS",
              help="How often to look again.")  # fmt: skip
@click.option("--once", is_flag=True, help="Print all views once and end: for scripts.")
@output_option()
def top(kubeconfig: str, context: str, scheduler: str, namespace: str, every: float, once: bool, output: str) -> int:
    """Show what waits and why, the groups, and the free room by rack; updated every two seconds.

    \b
    Keys:
      tab, 1 2 3 4    queue, groups, racks, devices
      arrows, j k     move; page up and down, g and G to the ends
      /               search; enter keeps what was found, escape shows everything
      s, r            sort by the next column; reverse the order
      enter, p        why the chosen one waits; what would be evicted for it; in a rack: its nodes
      ?               all keys, and what the columns mean
      q               back, or quit

    -o wide also shows the scheduler's message, as it stands in the condition.

    \b
    Examples:
      phalanx top
      phalanx top --kubeconfig data/kubeconfig
      phalanx top -n team-a              # the groups of one namespace
      phalanx top --once | head -20
      phalanx top -o json                # what it shows, once, for programs
    """
    once = once or for_programs(output)
    if not once and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.UsageError("this is not a terminal; for a script use: phalanx top --once")
    return run(_top(Where(namespace, kubeconfig, context, scheduler), every, once, output))


async def _top(where: Where, every: float, once: bool, output: str) -> int:
    connection = where.connection()
    screen = Screen(where.scheduler or connection.server, wide=output == "wide")
    async with SchedulerClient(connection, where.scheduler) as asker:
        state = await asker.ask_listing("state", where.namespace)
        screen.state = msgspec.json.decode(state)
        if for_programs(output):
            click.echo(encoded(screen.state, output))
            return 0
        if once:
            width = 1000 if output == "wide" else max(80, shutil.get_terminal_size((120, 24)).columns)
            console = Console(width=width, highlight=False)
            for view in range(screen.views):
                screen.view = view
                console.print(screen.draw(console.width, None))
                console.print("")
            return 0
        return await _live(asker, screen, every, where.namespace)


async def _live(asker: SchedulerClient, screen: Screen, every: float, namespace: str) -> int:
    from phalanx.cli.keys import Keys

    loop, here = asyncio.get_running_loop(), asyncio.current_task()
    assert here is not None
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, here.cancel)
    looking: asyncio.Task[None] | None = None
    try:
        with Keys() as keys:
            loop.add_signal_handler(signal.SIGWINCH, lambda: _draw(screen))
            looking = asyncio.create_task(_refresh(asker, screen, every, namespace))
            while True:
                _draw(screen)
                todo = screen.press(await keys.next())
                if todo == "quit":
                    return 0
                if todo:
                    await _open(asker, screen, *todo.split(" ", 1))
    except asyncio.CancelledError:
        return 130
    finally:
        if looking is not None:
            looking.cancel()


async def _refresh(asker: SchedulerClient, screen: Screen, every: float, namespace: str) -> None:
    while True:
        await asyncio.sleep(every)
        try:
            screen.state = msgspec.json.decode(await asker.ask_listing("state", namespace))
            screen.failure = ""
        except (ApiProblem, SchedulerUnavailable) as problem:
            screen.failure = f"no answer, trying again: {problem}"
        _draw(screen)


async def _open(asker: SchedulerClient, screen: Screen, what: str, key: str) -> None:
    """Open the answer of why or plan, or the nodes of a domain, as a text to scroll through."""
    if what == "nodes":
        try:
            text = nodes_text(msgspec.json.decode(await asker.ask("GET", "state", {"domain": key})))
        except (ApiProblem, SchedulerUnavailable) as problem:
            text = str(problem)
        screen.open(f" nodes of {key} ", text)
        return
    kind, namespace, name = key.split("/", 2)
    try:
        body = await asker.ask("GET", what, {"kind": kind, "namespace": namespace, "name": name})
    except (ApiProblem, SchedulerUnavailable) as problem:
        text = str(problem)
    else:
        from phalanx.cli import plan, why

        plain = Colours(on=False)
        if what == "why":
            items = msgspec.json.decode(body, type=Report).items
            text = "\n\n".join(why.render(item, plain) for item in items) or "no pod refers to it yet"
        else:
            text = plan.render(msgspec.json.decode(body, type=PlanAnswer))
    screen.open(f" phalanx {what} {kind}/{name} -n {namespace} ", text)


def _draw(screen: Screen) -> None:
    size = shutil.get_terminal_size((80, 24))
    console = Console(width=size.columns, height=size.lines, highlight=False, force_terminal=True)
    with console.capture() as drawn:
        console.print(screen.draw(size.columns, size.lines), end="")
    lines = drawn.get().split("\n")
    out = "\x1b[H" + "\x1b[K\n".join(lines) + "\x1b[K\x1b[J"
    with contextlib.suppress(BlockingIOError, OSError):  # a closed terminal is reported by a signal
        os.write(sys.stdout.fileno(), out.encode())
