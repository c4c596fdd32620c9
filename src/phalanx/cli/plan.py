"""`phalanx plan`: what would be evicted for a pod or group, and why each. Evicts nothing."""

from __future__ import annotations

import click
import msgspec

from phalanx.cli.asking import Asker, asking_options, connection_of, joined, run
from phalanx.cli.owners import each_root
from phalanx.engine.explain.values import PlanAnswer, Price
from phalanx.engine.preemption.cost import NOBODY, Cost
from phalanx.engine.preemption.result import describe, proof


@click.command(short_help="Print what would be evicted for a pod or group, without doing it.")
@click.argument("what", metavar="KIND/NAME", nargs=-1, required=True)
@asking_options
def plan(what: tuple[str, ...], namespace: str, kubeconfig: str, context: str, scheduler: str, output: str) -> int:
    """Print the preemption plan that the scheduler would make now: victims, why each is needed, cost and bound.

    Nothing is evicted. Exit code 0: it fits or there is a plan, 1: there is none, 2: not found or nobody to ask.

    \b
    Examples:
      phalanx plan podgroup/urgent
      phalanx plan job/evaluation                     # every group of a Job, JobSet, LeaderWorkerSet, …
      phalanx plan pod/web-0 -o json
    """
    return run(each_root(_plan, joined(what), namespace, kubeconfig, context, scheduler, output))


async def _plan(
    kind: str, name: str, namespace: str, kubeconfig: str, context: str, scheduler: str, output: str
) -> int:
    connection = connection_of(kubeconfig, context)
    async with Asker(connection, scheduler) as asker:
        query = {"kind": kind, "namespace": namespace or connection.namespace, "name": name}
        body = await asker.ask("GET", "plan", query)
    answer = msgspec.json.decode(body, type=PlanAnswer)
    if output == "json":
        click.echo(msgspec.json.format(body, indent=2).decode())
    else:
        click.echo(render(answer))
    return 0 if answer.result in ("fits", "plan", "underWay") else 1


def render(answer: PlanAnswer) -> str:
    lines = [f"{answer.root}: {answer.summary}"]
    for victim in answer.victims:
        pods = f"{victim.pods} pod{'s' if victim.pods != 1 else ''}"
        lines.append(f"  {victim.name}: priority {victim.priority}, {pods}; {victim.why}")
    if answer.cost is not None and answer.victims:
        lines.append(f"  cost: {describe(_cost(answer.cost))}")
        if answer.lower_bound is not None:
            lines.append(f"  {proof(answer.proved, _cost(answer.lower_bound))}")
    if answer.places:
        nodes = [f"{share.node}{f' x{share.pods}' if share.pods > 1 else ''}" for share in answer.places]
        lines.append(f"  would then go to {', '.join(nodes)}")
    return "\n".join(lines)


def _cost(price: Price) -> Cost:
    priority = NOBODY if price.highest_priority is None else price.highest_priority
    return Cost(price.budget_violations, priority, price.pods, price.broken_gangs, price.workloads, price.lost_seconds)
