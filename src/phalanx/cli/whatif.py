"""`phalanx whatif`: would these manifests fit now, where, and if not why. Creates nothing."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from phalanx.cli.asking import Asker, Paint, asking_options, connection_of, run
from phalanx.cli.documents import Unreadable, read_documents
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
    return run(_whatif(documents, namespace, kubeconfig, context, scheduler, output))


def read(name: str) -> list[Any]:
    """Documents of a file. Raises UsageError."""
    try:
        found = read_documents(name)
    except Unreadable as problem:
        raise click.UsageError(str(problem)) from None
    if not found:
        raise click.UsageError(f"{name} has no documents")
    for document in found:
        if not isinstance(document, dict):
            raise click.UsageError(f"{name}: every document needs apiVersion and kind")
    return found


async def _whatif(
    documents: list[Any], namespace: str, kubeconfig: str, context: str, scheduler: str, output: str
) -> int:
    connection = connection_of(kubeconfig, context)
    question = msgspec.json.encode({"items": documents, "namespace": namespace or connection.namespace})
    async with Asker(connection, scheduler) as asker:
        body = await asker.ask("POST", "whatif", {}, question)
    outlook = msgspec.json.decode(body, type=Outlook)
    if output == "json":
        click.echo(msgspec.json.format(body, indent=2).decode())
    else:
        for note in outlook.notes:
            click.echo(f"note: {note}", err=True)
        click.echo("\n".join(render(item, Paint()) for item in outlook.items) or "nothing to place")
    return 0 if outlook.fits else 1


def render(item: Would, paint: Paint) -> str:
    state = paint("fits", "green") if item.fits else paint("does not fit", "yellow")
    lines = [f"{item.root}: {state}", f"  {item.summary}"]
    lines += [f"  {_place(place)}" for place in item.places if item.root.partition("/")[0] != "pod"]
    if item.evicts:
        more = f" and {len(item.evicts) - MOST_PODS} more" if len(item.evicts) > MOST_PODS else ""
        lines.append(f"  would make room by evicting {', '.join(item.evicts[:MOST_PODS])}{more}")
    lines += [f"  {r.nodes}/{item.nodes} nodes: {r.reason}" for r in item.node_reasons]
    for relaxation in item.relaxations:
        if relaxation.fits is not False:
            unsure = "" if relaxation.checked else " (by counting, not checked by the filters)"
            lines.append(f"  would help: {relaxation.text}{unsure}")
    return "\n".join(lines)


def _place(place: GroupPlace) -> str:
    where = f" in {place.key} {place.domain}" if place.domain else ""
    nodes = ", ".join(
        f"{share.node}{f' x{share.pods}' if share.pods > 1 else ''}" for share in place.nodes[:MOST_NODES]
    )
    more = f" and {len(place.nodes) - MOST_NODES} more nodes" if len(place.nodes) > MOST_NODES else ""
    return f"{place.group}: {place.pods} pods{where}{': ' + nodes if nodes else ''}{more}"
