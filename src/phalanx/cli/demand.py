"""`phalanx demand`: which waiting groups lack nodes, and which nodes would be enough. Read-only."""

from __future__ import annotations

import click
import msgspec

from phalanx.cli.output import CommandResult, print_answers, table, watch_option
from phalanx.cli.scheduler_client import SchedulerClient, Where, asking_options, run
from phalanx.engine.explain.values import GroupDemand, NodeDemand
from phalanx.engine.placement.outcome import amount_word, plural

_HEADS = ("GROUP", "PODS", "ASKS FOR", "NODES", "SHAPE", "DOMAIN")
NOTHING = "no group lacks nodes"


@click.command(short_help="List the groups that lack nodes, and which nodes would be enough.")
@watch_option
@asking_options
def demand(watch: bool, namespace: str, kubeconfig: str, context: str, scheduler: str, output: str) -> int:
    """List the pods and groups that wait for nodes, with the number and shape of nodes that each of them lacks.

    What is free is used first, and nodes counted for one group are not counted again for the next. Groups that wait
    for members, gates, a promised start or for victims to end lack no nodes and are not listed. A group that no
    number of nodes of a known shape could hold asks for none and says so. Without -n all namespaces are listed.
    Exit code 0: no group lacks nodes, 1: some do, 2: no scheduler to ask.

    \b
    Examples:
      phalanx demand
      phalanx demand -n research -o json
      phalanx demand --watch
    """
    where = Where(namespace, kubeconfig, context, scheduler)
    return run(print_answers(lambda: _demand(where, wide=output == "wide"), output, watch))


async def _demand(where: Where, *, wide: bool) -> list[CommandResult]:
    async with SchedulerClient(where.connection(), where.scheduler) as asker:
        body = await asker.ask_listing("demand", where.namespace)
    found = msgspec.json.decode(body, type=NodeDemand)
    return [
        CommandResult(1 if found.groups else 0, msgspec.json.decode(body), render(found, wide=wide), tuple(found.notes))
    ]


def render(found: NodeDemand, *, wide: bool = False) -> str:
    if not found.groups:
        return NOTHING
    lines = [table(_HEADS, [row for group in found.groups for row in _rows(group)])]
    for group in found.groups:
        if group.message:
            lines.append(f"{_name(group)}: {group.message if wide else _short(group.message)}")
    return "\n".join(lines)


def _rows(group: GroupDemand) -> list[tuple[str, ...]]:
    asks = "; ".join(
        ", ".join(
            [
                *(f"{name}={_quantity(name, amount)}" for name, amount in each.requests.items()),
                *(f"{name}={plural(count, 'device')}" for name, count in each.devices.items()),
                *(f"{key}={value}" for key, value in each.node_selector.items()),
            ]
        )
        or "-"
        for each in group.requests
    )
    first = (_name(group), str(group.pods), asks or "-")
    anywhere = group.topology_key and f"one {group.topology_key}"
    places = [
        (str(nodes.count), nodes.shape, f"{group.topology_key}={nodes.domain}" if nodes.domain else "any")
        for nodes in group.nodes
    ] or [("0", "none fits", anywhere or "any")]
    return [(*(first if n == 0 else ("", "", "")), *place) for n, place in enumerate(places)]


def _quantity(resource: str, amount: str) -> str:
    """Return bytes with a unit; other amounts as they are."""
    return amount_word(resource, float(amount)) if resource != "cpu" and amount.isdigit() else amount


def _name(group: GroupDemand) -> str:
    return f"{group.kind}/{group.namespace}/{group.name}".rstrip("/")


def _short(message: str) -> str:
    return message if len(message) <= 240 else f"{message[:240]}… (-o wide shows all of it)"
