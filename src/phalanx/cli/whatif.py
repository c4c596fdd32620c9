"""`phalanx whatif`: would these manifests fit now, where, and if not why. Creates nothing."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from phalanx.cli.asking import Asker, Paint, Where, asking_options, run
from phalanx.cli.documents import Unreadable, read_documents
from phalanx.cli.output import Answer, Wrong, say
from phalanx.cli.plan import cost_lines
from phalanx.cli.words import plural
from phalanx.engine.explain.values import GroupPlace, Outlook, Would

MOST_NODES = 8
MOST_PODS = 8  # to be evicted, by name


@click.command(short_help="Say whether manifests would fit now, without creating them.")
@click.option(
    "-f", "--filename", "files", multiple=True, required=True, metavar="FILE", help="YAML or JSON; - is stdin."
)
@asking_options
def whatif(files: tuple[str, ...], namespace: str, kubeconfig: str, context: str, scheduler: str, output: str) -> int:
    """Ask the scheduler whether the pods, groups and workloads (Job, JobSet, LeaderWorkerSet, …) in FILE would fit now.

    Nothing is created. Roots are tried in the order of the queue, each after those before it have got their places.
    Exit code 0: everything fits, 1: something does not, 2: bad input or nobody to ask.

    \b
    Examples:
      phalanx whatif -f jobset.yaml
      kubectl get job train -o yaml | phalanx whatif -f - -o json
    """
    documents = [document for name in files for document in read(name)]
    where = Where(namespace, kubeconfig, context, scheduler)

    async def ask() -> list[Answer]:
        given = " ".join(f"-f {name}" for name in files)
        return [await _whatif(documents, where, output == "wide", "" if "-" in files else f"kubectl apply {given}")]

    return run(say(ask, output, watch=False))


def read(name: str) -> list[Any]:
    """Documents of a file. Raises Wrong."""
    try:
        found = read_documents(name)
    except Unreadable as problem:
        raise Wrong(str(problem)) from None
    if not found:
        raise Wrong(f"{name} has no documents: give manifests of pods, groups or workloads")
    for document in found:
        if not isinstance(document, dict):
            raise Wrong(f"{name}: every document needs apiVersion and kind")
    return found


async def _whatif(documents: list[Any], where: Where, wide: bool, then: str) -> Answer:
    connection = where.connection()
    question = msgspec.json.encode({"items": documents, "namespace": where.namespace or connection.namespace})
    async with Asker(connection, where.scheduler) as asker:
        body = await asker.ask("POST", "whatif", {}, question)
    outlook = msgspec.json.decode(body, type=Outlook)
    text = "\n".join(render(item, Paint(), wide=wide) for item in outlook.items) or "nothing to place"
    notes = tuple(f"note: {note}" for note in outlook.notes)
    return Answer(0 if outlook.fits else 1, msgspec.json.decode(body), text, notes, then if outlook.fits else "")


def render(item: Would, paint: Paint, *, wide: bool = False) -> str:
    state = paint("fits", "green") if item.fits else paint("does not fit", "yellow")
    lines = [f"{item.root}: {state}", f"  {item.summary}"]
    most = len(item.evicts) if wide else MOST_PODS
    lines += [f"  {_place(place, wide)}" for place in item.places if item.root.partition("/")[0] != "pod"]
    if item.evicts:
        more = f" and {len(item.evicts) - most} more" if len(item.evicts) > most else ""
        lines.append(f"  would make room by evicting {', '.join(item.evicts[:most])}{more}")
    if item.plan is not None:
        lines += cost_lines(item.plan)
    lines += [f"  {r.nodes}/{item.nodes} nodes: {r.reason}" for r in item.node_reasons]
    for relaxation in item.relaxations:
        if relaxation.fits is not False:
            unsure = "" if relaxation.checked else " (by counting, not checked by the filters)"
            lines.append(f"  would help: {relaxation.text}{unsure}")
    return "\n".join(lines)


def _place(place: GroupPlace, wide: bool) -> str:
    where = f" in {place.key} {place.domain}" if place.domain else ""
    most = len(place.nodes) if wide else MOST_NODES
    nodes = ", ".join(f"{share.node}{f' x{share.pods}' if share.pods > 1 else ''}" for share in place.nodes[:most])
    more = f" and {len(place.nodes) - most} more nodes" if len(place.nodes) > most else ""
    return f"{place.group}: {plural(place.pods, 'pod')}{where}{': ' + nodes if nodes else ''}{more}"
