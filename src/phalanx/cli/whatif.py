"""`phalanx whatif`: would these manifests fit now, where, and if not why. Creates nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click
import msgspec

from phalanx.base.client import Client
from phalanx.base.errors import ApiProblem
from phalanx.cli.documents import Unreadable, read_documents
from phalanx.cli.messages import plural
from phalanx.cli.output import CommandError, CommandResult, print_answers
from phalanx.cli.plan import cost_lines, nodes_in_words, place_lines, some_of
from phalanx.cli.scheduler_client import Colours, SchedulerClient, Where, asking_options, require_namespace, run
from phalanx.engine.explain.values import GroupPlace, WhatIfAnswer, WhatIfUnit
from phalanx.engine.placement.plain import sentence_case
from phalanx.serve.queries.repair import DrainAnswer, Move
from phalanx.serve.queries.variant import MOST_NODES as MOST_ADDED

MOST_NODES = 8
MOST_PODS = 8  # to be evicted, by name


@click.command(short_help="Say whether manifests would fit now, without creating them.")
@click.option("-f", "--filename", "files", multiple=True, metavar="FILE", help="YAML or JSON; - is stdin.")
@click.option("--drain", "drained", multiple=True, metavar="NODE", help="Which gangs a drain of the node would hit.")
@click.option("--drain-domain", "domain", default="", metavar="KEY=VALUE", help="The same of all nodes with a label.")
@click.option(
    "--add-nodes", type=click.IntRange(1, MOST_ADDED), metavar="N", help="As if there were N more nodes (see --like)."
)
@click.option("--like", default="", metavar="NODE", help="The node that those of --add-nodes are like; they are empty.")
@click.option(
    "--without-filter",
    "without",
    multiple=True,
    metavar="PLUGIN",
    help="As if this filter were switched off: TaintToleration, NodeAffinity, NodeUnschedulable (cordons), …",
)
@click.option("--when", is_flag=True, help="Also say when what does not fit now would start first.")
@asking_options
def whatif(
    files: tuple[str, ...],
    drained: tuple[str, ...],
    domain: str,
    add_nodes: int | None,
    like: str,
    without: tuple[str, ...],
    when: bool,
    namespace: str,
    kubeconfig: str,
    context: str,
    scheduler: str,
    output: str,
) -> int:
    """Ask the scheduler whether the pods, groups and workloads (Job, JobSet, LeaderWorkerSet, …) in FILE would fit now.

    Nothing is created. Roots are tried in the order of the queue, each after those before it have got their places.
    With --drain and --drain-domain the question is which gangs a drain would hit and where each would go.
    With --add-nodes and --without-filter the question is about a changed cluster.
    Exit code 0: every pod fits (with --drain: every evicted pod would find a node), 1: some pod does not, or only
    after evictions, 2: bad input, nothing to place, or no scheduler to ask. -o wide also shows the scheduler's message.

    \b
    Examples:
      phalanx whatif -f jobset.yaml
      kubectl get job train -o yaml | phalanx whatif -f - -o json
      phalanx whatif -f jobset.yaml --add-nodes 2 --like node-3
      phalanx whatif -f job.yaml --without-filter TaintToleration
      phalanx whatif -f jobset.yaml --when
      phalanx whatif --drain node-3
      phalanx whatif --drain-domain topology.kubernetes.io/zone=a
    """
    where = Where(namespace, kubeconfig, context, scheduler)
    if drained or domain:
        if files:
            raise click.UsageError("-f FILE and --drain are two questions: ask one at a time")
        return run(print_answers(lambda: _drain(drained, domain, where), output, watch=False))
    if not files:
        raise click.UsageError("Missing option '-f' / '--filename', or --drain NODE.")
    if bool(add_nodes) != bool(like):
        raise click.UsageError("--add-nodes N and --like NODE go together: which nodes, and how many of them?")
    cluster = {
        "addNodes": [{"count": add_nodes, "like": like}] if add_nodes else [],
        "withoutFilters": list(without),
    }
    documents = [document for name in files for document in read(name)]

    async def ask() -> list[CommandResult]:
        """Return the answer, with the command to run next."""
        given = " ".join(f"-f {name}" for name in files)
        answer, outlook = await _whatif(documents, cluster, where, output == "wide", when)
        if "-" in files or add_nodes or without:
            return [answer]
        then = f"kubectl apply {given}" if outlook.fits else _remedy(outlook, f"phalanx whatif {given}")
        return [replace(answer, next=then)]

    return run(print_answers(ask, output, watch=False))


async def _drain(nodes: tuple[str, ...], domain: str, where: Where) -> list[CommandResult]:
    connection = where.connection()
    question = msgspec.json.encode({"drain": {"nodes": list(nodes), "domain": domain}})
    async with SchedulerClient(connection, where.scheduler) as asker:
        body = await asker.ask("POST", "whatif", {}, question)
    answer = msgspec.json.decode(body, type=DrainAnswer)
    lines = [f"drain of {plural(len(answer.nodes), 'node')}: {', '.join(answer.nodes[:MOST_NODES])}"]
    lines += [render_move(move) for move in answer.moves] or ["  no pod is on them"]
    return [CommandResult(0 if answer.fits else 1, msgspec.json.decode(body), "\n".join(lines))]


def render_move(move: Move) -> str:
    if not move.group:
        return f"  {plural(move.moved, 'pod')} of no group"
    how = "evicted as a whole" if move.together else f"{move.moved} of {plural(move.pods, 'pod')} evicted"
    if move.placed < move.moved:
        return f"  {move.group}: {how}; {move.placed} of {move.moved} would find a node: {move.message}"
    evicts = f", by evicting {', '.join(move.evicts)}" if move.evicts else ""
    return f"  {move.group}: {how}; would go to {nodes_in_words(move.nodes)}{evicts}"


def read(name: str) -> list[Any]:
    """Read the documents of a file. Raises CommandError."""
    try:
        found = read_documents(name)
    except Unreadable as problem:
        raise CommandError(str(problem)) from None
    if not found:
        source = "standard input" if name == "-" else name
        raise CommandError(f"{source} has no documents: give manifests of pods, groups or workloads")
    for document in found:
        if not isinstance(document, dict) or not document.get("kind") or not document.get("apiVersion"):
            raise CommandError(f"{name}: every document needs apiVersion and kind")
    return found


def _remedy(outlook: WhatIfAnswer, command: str) -> str:
    """Return the command that asks the same about a cluster with a change that would help."""
    for relaxation in (each for item in outlook.items for each in item.relaxations if each.fits and each.to):
        if relaxation.change == "nodes":
            count, _, like = relaxation.to.partition(" ")
            return f"{command} --add-nodes {count} --like {like}"
        if relaxation.change == "filter":
            return f"{command} --without-filter {relaxation.to}"
    return ""


def _only_namespace(documents: list[Any]) -> str:
    """Return the namespace that all documents name, if it is one: a user may have no right in any other."""
    metadata = [each.get("metadata") for each in documents if each["kind"] not in ("Namespace", "PriorityClass")]
    named = {str(each.get("namespace") or "") if isinstance(each, dict) else "" for each in metadata}
    return named.pop() if len(named) == 1 else ""


async def _whatif(
    documents: list[Any], cluster: dict[str, Any], where: Where, wide: bool, when: bool
) -> tuple[CommandResult, WhatIfAnswer]:
    connection = where.connection()
    namespace = where.namespace or _only_namespace(documents) or connection.namespace
    question = msgspec.json.encode({"items": documents, "namespace": namespace, "cluster": cluster})
    query = {"namespace": namespace, **({"when": "true"} if when else {})}
    async with SchedulerClient(connection, where.scheduler) as asker:
        body = await asker.ask("POST", "whatif", query, question)
        missing = await _missing_namespace(asker.client, documents, namespace)
    outlook = msgspec.json.decode(body, type=WhatIfAnswer)
    text = "\n".join(render(item, Colours(), wide=wide) for item in outlook.items) or "nothing to place"
    notes = tuple(f"note: {note}" for note in (*outlook.notes, *missing))
    code = 2 if not outlook.items else 0 if outlook.fits else 1
    return CommandResult(code, msgspec.json.decode(body), text, notes), outlook


async def _missing_namespace(client: Client, documents: list[Any], namespace: str) -> list[str]:
    """Return what is wrong with the namespace, unless the documents make it."""
    if any(each["kind"] == "Namespace" for each in documents):
        return []
    try:
        await require_namespace(client, namespace)
    except CommandError as problem:
        return [f"{problem}, or create it first"]
    except ApiProblem:
        pass  # the scheduler answered; the API server need not
    return []


def render(item: WhatIfUnit, paint: Colours, *, wide: bool = False) -> str:
    state = paint("does not fit", "yellow")
    if item.fits:
        state = paint("fits", "green") if item.pods == item.wanted else paint("fits in part", "yellow")
    lines = [f"{item.root.rstrip('/')}: {state}", f"  {item.headline or item.summary}"]
    if wide and item.headline:
        lines.append(f"  message: {item.summary}")
    lines += [f"  also: {sentence_case(text)}" for text in item.blockers if sentence_case(text) != item.headline]
    most = len(item.evicts) if wide else MOST_PODS
    lines += [f"  {_place(place, wide)}" for place in item.places if item.root.partition("/")[0] != "pod"]
    if item.devices:
        lines.append(f"  devices: {some_of(item.devices, len(item.devices) if wide else MOST_NODES)}")
    if item.evicts:
        more = f" and {len(item.evicts) - most} more" if len(item.evicts) > most else ""
        lines.append(f"  would make room by evicting {', '.join(item.evicts[:most])}{more}")
    if item.plan is not None:
        lines += [*cost_lines(item.plan), *place_lines(item.plan)]
    lines += [f"  {r.nodes}/{item.nodes} nodes: {r.reason}" for r in item.node_reasons]
    lines += [f"  {hint}" for hint in item.hints]
    if item.when:
        lines.append(f"  {item.when}")
    for relaxation in item.relaxations:
        if relaxation.fits is not False:
            unchecked = "" if relaxation.checked else " (by counting, not checked by the filters)"
            lines.append(f"  would help: {relaxation.text}{unchecked}")
    return "\n".join(lines)


def _place(place: GroupPlace, wide: bool) -> str:
    """Word the nodes and the domain of one group."""
    where = f" in {place.key} {place.domain}" if place.domain else ""
    most = len(place.nodes) if wide else MOST_NODES
    nodes = ", ".join(f"{share.node}{f' x{share.pods}' if share.pods > 1 else ''}" for share in place.nodes[:most])
    more = f" and {len(place.nodes) - most} more nodes" if len(place.nodes) > most else ""
    ring = f"; ring cost {place.ring_cost}" if place.ring_cost is not None else ""
    return f"{place.group}: {plural(place.pods, 'pod')}{where}{': ' + nodes if nodes else ''}{more}{ring}"
