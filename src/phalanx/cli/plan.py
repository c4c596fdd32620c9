"""`phalanx plan`: what would be evicted for a pod or group, and why each. Evicts nothing."""

from __future__ import annotations

from collections import Counter

import click
import msgspec

from phalanx.cli.completion import complete_target
from phalanx.cli.messages import plural
from phalanx.cli.output import CommandResult, print_answers, watch_option
from phalanx.cli.owners import each_root
from phalanx.cli.scheduler_client import SchedulerClient, Where, asking_options, joined, run
from phalanx.engine.explain.values import PlanAnswer, Price
from phalanx.engine.preemption.cost import NO_VICTIMS, Cost
from phalanx.engine.preemption.result import describe, proof
from phalanx.serve.queries.repair import Move

REPAIRED = ("PodGroup", "CompositePodGroup")


@click.command(short_help="Print what would be evicted for a pod or group, without doing it.")
@click.argument("what", metavar="KIND/NAME", nargs=-1, required=True, shell_complete=complete_target)
@click.option("--repair", "repairing", is_flag=True, help="How a gang that lost nodes is repaired.")
@asking_options
@watch_option
def plan(
    what: tuple[str, ...],
    repairing: bool,
    namespace: str,
    kubeconfig: str,
    context: str,
    scheduler: str,
    output: str,
    watch: bool,
) -> int:
    """Print the preemption plan that the scheduler would make now: victims, why each is needed, cost and bound.

    With --repair: which pods of a PodGroup or CompositePodGroup would move because their nodes failed or are cordoned:
    only those if its domain has spare room, else the whole gang to another domain, else what is missing.

    Nothing is evicted. Exit code 0: it fits or there is a plan, 1: there is none, 2: not found or no scheduler to ask.

    \b
    Examples:
      phalanx plan podgroup/urgent
      phalanx plan job/evaluation                     # every group of a Job, JobSet, LeaderWorkerSet, …
      phalanx plan pod/web-0 -o json
      phalanx plan --repair podgroup/train            # after a node failed or was cordoned
    """
    where, asked = Where(namespace, kubeconfig, context, scheduler), joined(what)

    async def ask_one(kind: str, name: str) -> CommandResult:
        if repairing and kind not in REPAIRED:
            raise click.UsageError(f"--repair is about a podgroup or compositepodgroup, not a {kind.lower()}")
        return await (_repair if repairing else _plan)(kind, name, where)

    return run(print_answers(lambda: each_root(ask_one, asked, where), output, watch))


async def _plan(kind: str, name: str, where: Where) -> CommandResult:
    connection = where.connection()
    async with SchedulerClient(connection, where.scheduler) as asker:
        query = {"kind": kind, "namespace": where.namespace or connection.namespace, "name": name}
        body = await asker.ask("GET", "plan", query)
    answer = msgspec.json.decode(body, type=PlanAnswer)
    good = answer.result in ("fits", "plan", "underWay")
    about = f"{kind.lower()}/{name} -n {query['namespace']}"
    then = f"phalanx why {about} --watch" if good else f"phalanx why {about}    # what would help instead"
    return CommandResult(0 if good else 1, msgspec.json.decode(body), render(answer), next=then)


async def _repair(kind: str, name: str, where: Where) -> CommandResult:
    connection = where.connection()
    async with SchedulerClient(connection, where.scheduler) as asker:
        query = {"kind": kind, "namespace": where.namespace or connection.namespace, "name": name, "repair": "true"}
        body = await asker.ask("GET", "plan", query)
    move = msgspec.json.decode(body, type=Move)
    done = move.placed == move.moved and not move.message
    return CommandResult(0 if done else 1, msgspec.json.decode(body), render_repair(move))


def render_repair(move: Move) -> str:
    if not move.moved and move.message:
        return f"{move.group}: {move.message}"
    if not move.moved:
        return f"{move.group}: no repair is needed, its {plural(move.pods, 'pod')} are on usable nodes"
    if move.placed < move.moved:
        text = f"{move.placed} of {plural(move.moved, 'pod')} to move would find a node: {move.message}"
        return f"{move.group}: no repair now, {text}"
    how = "move the whole gang" if move.whole else f"move {move.moved} of {plural(move.pods, 'pod')}"
    lines = [f"{move.group}: {how}", f"  to {nodes_in_words(move.nodes)}"]
    if move.evicts:
        lines.append(f"  by evicting {', '.join(move.evicts)}")
    return "\n".join(lines)


MOST_DEVICES = 8  # named in one line


def some_of(names: list[str], most: int) -> str:
    """Return the first names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"


def nodes_in_words(nodes: list[str]) -> str:
    counts = Counter(nodes)
    return ", ".join(f"{node}{f' x{count}' if count > 1 else ''}" for node, count in sorted(counts.items()))


def render(answer: PlanAnswer) -> str:
    lines = [f"{answer.root.rstrip('/')}: {answer.summary}"]
    for victim in answer.victims:
        priority = f"priority {victim.priority}, " if victim.priority is not None else ""
        frees = f"; frees {some_of(victim.devices, MOST_DEVICES)}" if victim.devices else ""
        lines.append(f"  {victim.name}: {priority}{plural(victim.pods, 'pod')}; {victim.why}{frees}")
    waits = [f"  not yet: {answer.waits}"] if answer.waits else []
    return "\n".join([*lines, *waits, *cost_lines(answer), *place_lines(answer)])


def place_lines(answer: PlanAnswer) -> list[str]:
    """Return lines that say where the pods would go, with which devices and at what ring cost."""
    lines = []
    if answer.places:
        nodes = [f"{share.node}{f' x{share.pods}' if share.pods > 1 else ''}" for share in answer.places]
        lines.append(f"  would then go to {', '.join(nodes)}")
    if answer.devices:
        lines.append(f"  devices: {some_of(answer.devices, MOST_DEVICES)}")
    if answer.ring_cost is not None:
        lines.append(f"  ring cost: {plural(answer.ring_cost, 'hop')} between consecutive ranks")
    return lines


def cost_lines(answer: PlanAnswer) -> list[str]:
    """Return lines that say what a plan costs, and how much of that is proved."""
    if answer.cost is None or not answer.victims:
        return []
    proved = [] if answer.lower_bound is None else [f"  {proof(answer.proved, _cost(answer.lower_bound))}"]
    return [f"  cost: {describe(_cost(answer.cost))}", *proved]


def _cost(price: Price) -> Cost:
    priority = NO_VICTIMS if price.highest_priority is None else price.highest_priority
    return Cost(
        price.budget_violations,
        priority,
        price.stopped_pods,
        price.pods,
        price.broken_gangs,
        price.workloads,
        work=price.lost_seconds,
    )
