"""`phalanx group`: what would be generated for the workloads of a file, without any cluster."""

from __future__ import annotations

from typing import Any

import click

from phalanx.cli.documents import Unreadable, read_documents
from phalanx.cli.messages import short
from phalanx.cli.output import CommandError, output_option, table
from phalanx.model.annotation_values import unknown
from phalanx.model.kinds import Json

_BY_HAND = {"Workload", "CompositePodGroup", "PodGroup"}  # these are the groups themselves; nothing is generated


@click.command(short_help="Print the scheduling groups that workloads would get.")
@click.option(
    "-f", "--filename", "files", multiple=True, required=True, metavar="FILE", help="YAML or JSON; - is stdin."
)
@output_option("yaml")
@click.option("-n", "--namespace", default="default", show_default=True, help="For workloads that name none.")
def group(files: tuple[str, ...], output: str, namespace: str) -> int:
    """Print the Workloads, CompositePodGroups and PodGroups that the workloads in FILE would get.

    Nothing is read from or written to a cluster, so it works for workloads that do not exist yet or are suspended.
    Names that end in a hash of the workload's uid get another one in the cluster, unless metadata.uid is given.

    \b
    Examples:
      phalanx group -f examples/jobset-gang.yaml
      kubectl get jobset training -o yaml | phalanx group -f -
      phalanx group -f job.yaml -o json | jq '.links'
    """
    documents = [document for name in files for document in _read_objects(name)]
    for document in documents:
        meta = document.setdefault("metadata", {})
        meta.setdefault("namespace", namespace)
    results, failures = [], 0
    for document in documents:
        try:
            found = _group(document, documents)
        except _Problem as problem:
            click.echo(f"error: {_title(document)}: {problem}", err=True)
            failures += 1
            continue
        for text in unknown(document["metadata"].get("annotations")):
            click.echo(f"note: {_title(document)}: {text}", err=True)
        for _, text in found.notes if found is not None else ():
            click.echo(f"note: {_title(document)}: {text}", err=True)
        if found is not None:
            results.append((document, found))
    if not results and not failures and not _BY_HAND & {document["kind"] for document in documents}:
        from phalanx.controllers.workloads.registry import KINDS

        kinds = ", ".join(sorted({kind.resource.kind for kind in KINDS}))
        found = ", ".join(sorted({document["kind"] for document in documents})) or "empty documents"
        raise CommandError(f"there is no workload in {', '.join(files)}, only {found}; workloads are {kinds}")
    if output == "json":
        _print_json(results)
    elif output == "yaml":
        _print_yaml(results)
    else:
        _print_table(results, output == "wide")
    return 1 if failures else 0


class _Problem(Exception):
    pass


def _read_objects(name: str) -> list[Json]:
    try:
        found = read_documents(name)
    except Unreadable as problem:
        raise CommandError(str(problem)) from None
    every: list[Json] = []
    for document in found:
        if not isinstance(document, dict) or not document.get("kind") or not document.get("apiVersion"):
            raise CommandError(f"{name}: every document needs apiVersion and kind")
        every += document["items"] if document["kind"].endswith("List") and "items" in document else [document]
    return every


def _group(document: Json, related: list[Json]) -> Any:
    from phalanx.controllers.grouping import GroupingRefused
    from phalanx.controllers.workloads.registry import kind_of

    kind = kind_of(document)
    if kind is None:
        return None
    problems = _complete(document)
    if problems:
        raise _Problem("; ".join(problems))
    try:
        others = kind.provider_groups(document) if kind.provider_groups is not None else None
        return others or kind.group(document, [other for other in related if other is not document])
    except GroupingRefused as refused:
        raise _Problem(str(refused)) from None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _Problem(f"a field is missing or has the wrong type ({error!r})") from None


def _complete(document: Json) -> list[str]:
    """Default and validate a document as the API server does, if it knows the kind; return the errors."""
    from phalanx.model import builtin
    from phalanx.model.gates import Gates

    own = document["apiVersion"].rpartition("/")[0]
    meta = document["metadata"]
    uid = meta.get("uid", "")
    for kind in builtin.registry(Gates()).all():
        if (kind.group, kind.kind) == (own, document["kind"]) and not kind.stored_as:
            try:
                meta["uid"] = uid or "unknown"  # the server sets it before validation
                if kind.default is not None:
                    kind.default(document)
                if kind.prepare_create is not None:
                    kind.prepare_create(document)
                found = kind.new_object_errors(document)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                return [f"a field has the wrong type ({error!r})"]
            finally:
                meta["uid"] = uid
            return [str(error) for error in found]
    return []


def _title(document: Json) -> str:
    meta = document["metadata"]
    return f"{document['kind']} {meta['namespace']}/{meta.get('name') or meta.get('generateName') or '?'}"


def _print_yaml(results: list[tuple[Json, Any]]) -> None:
    import yaml

    first = True
    for document, grouping in results:
        for obj in grouping.objects:
            if not first:
                click.echo("---")
            first = False
            click.echo(yaml.safe_dump(obj, sort_keys=False), nl=False)
        click.echo(
            f"# {_title(document)}: " + ("pods join like this" if grouping.links else "its pods are not grouped")
        )
        for part, link in grouping.links.items():
            click.echo(f"#   {part or 'all pods'}: {_link(link)}")


def _print_json(results: list[tuple[Json, Any]]) -> None:
    import json

    items = [obj for _, grouping in results for obj in grouping.objects]
    links = {_title(document): {part: _link(link) for part, link in g.links.items()} for document, g in results}
    click.echo(json.dumps({"apiVersion": "v1", "kind": "List", "items": items, "links": links}, indent=2))


def _print_table(results: list[tuple[Json, Any]], wide: bool) -> None:
    rows: list[tuple[str, ...]] = []
    for document, grouping in results:
        for obj in grouping.objects:
            spec = obj["spec"]
            gang = (spec.get("schedulingPolicy") or {}).get("gang")
            least = "" if gang is None else f"gang {gang.get('minCount') or gang.get('minGroupCount') or ''}".strip()
            topology = [each["key"] for each in (spec.get("schedulingConstraints") or {}).get("topology") or ()]
            parent = spec.get("parentCompositePodGroupName") or ""
            if "minMember" in spec:  # a PodGroup of another scheduler
                least = f"gang {spec['minMember']}"
            policy = least or ("basic" if "schedulingPolicy" in spec else "")
            where = ",".join(topology if wide else map(short, topology))
            cells = (obj["kind"], obj["metadata"]["name"], policy, where, parent)
            rows.append((*cells, _title(document)) if wide else cells)
    heads = ("KIND", "NAME", "POLICY", "TOPOLOGY", "PARENT", *(("FOR",) if wide else ()))
    click.echo(table(heads, rows) if rows else "no groups: the pods are placed one by one")


def _link(link: Any) -> Json:
    spec: Json = {}
    link.put_on(spec)
    return {"metadata": link.metadata} if link.metadata else spec
