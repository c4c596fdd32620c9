"""`phalanx backup` and `phalanx restore`: write the objects of a local cluster to a file, and read them back."""

from __future__ import annotations

import asyncio
import shutil
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from phalanx.base.errors import ConfigProblem
from phalanx.cli.clusters import known_cluster, local_cluster
from phalanx.cli.messages import size
from phalanx.cli.options import check_directory_of, no_empty_name
from phalanx.cli.output import notify, output_option
from phalanx.cli.progress import progress
from phalanx.cli.scheduler_client import default_kubeconfig

if TYPE_CHECKING:
    from phalanx.serve.clusters import ClusterRecord

PATH = "/phalanx/v1/backup"


@click.command(short_help="Write the objects of a local cluster into one file.")
@click.argument("file", metavar="FILE")
@click.option("--name", default="", metavar="CLUSTER", callback=no_empty_name, help="A cluster with a name.")
@click.option("--data", default="", metavar="DIR", help="Its data directory, whether it runs or not.  [default: data]")
@click.option("--kubeconfig", default="", metavar="FILE", help="How to reach it instead, from anywhere.")
@click.option("--context", default="", metavar="NAME", help="Context in it.  [default: its current one]")
@output_option()
def backup(file: str, name: str, data: str, kubeconfig: str, context: str, output: str) -> int:
    """Write a consistent snapshot of a local cluster, which continues to serve.

    The file holds every object, Secrets too, and is readable by you alone. It is verified before it gets its name.

    \b
    Examples:
      phalanx backup monday.phalanx
      phalanx backup --name team-a monday.phalanx
      phalanx backup --data /var/lib/phalanx monday.phalanx
      phalanx backup --kubeconfig ./kubeconfig monday.phalanx
    """
    from phalanx.local.store import backup as backups

    if context and not (name or data or kubeconfig):
        kubeconfig = default_kubeconfig()
    if sum(map(bool, (name, data, kubeconfig))) > 1:
        raise ConfigProblem("--name", "give one of --name, --data and --kubeconfig: each says which cluster")
    known = known_cluster(name, "")[1] if name else None
    target = Path(file)
    part = _part(target)
    try:
        with progress(f"writing {target}", "objects") as count:
            if kubeconfig:
                _download(kubeconfig, context, part)
            else:
                _from_directory(known.data if known is not None else data or "data", known, part, count)
            rows, revision = backups.read_snapshot(part)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
    then = f"make a cluster of it with: phalanx restore {target} --data DIR"
    bytes_ = target.stat().st_size
    held = f"{len(rows)} objects at revision {revision} in {target} ({size(bytes_)})"
    found = {"file": str(target), "objects": len(rows), "revision": revision, "bytes": bytes_}
    notify(found, f"{held}; {then}", output)
    return 0


def _part(target: Path) -> Path:
    """Create the file that is written until the backup is whole. Raises ConfigProblem."""
    check_directory_of("FILE", target)
    if target.exists():
        raise ConfigProblem("FILE", f"{target} exists already: choose another name")
    part = Path(f"{target}.part")
    try:
        part.touch(mode=0o600)
    except OSError as problem:
        raise ConfigProblem("FILE", f"{part} cannot be written: {problem.strerror}; choose another place") from None
    return part


def _from_directory(data: str, known: ClusterRecord | None, part: Path, count: Callable[[int, int], None]) -> None:
    """Write the store of a data directory to a file: from disk, or from its server while that has it open.

    known: the record of the cluster, if it was named
    """
    from phalanx.local.store import backup as backups
    from phalanx.local.store.rows import StoreInUse
    from phalanx.serve.clusters import home_with
    from phalanx.serve.settings import MEMORY

    if data == MEMORY and known is not None:
        _download(known.kubeconfig, "", part)
        return
    store = Path(data) / "store.db"
    if not store.exists():
        raise ConfigProblem("--data", f"there is no store in {data}; `phalanx list` shows where clusters are")
    try:
        backups.write_rows(part, *backups.read_snapshot(store), count)
    except StoreInUse:
        record = known or home_with("", data).record()
        _download(record.kubeconfig if record is not None else str(Path(data) / "kubeconfig"), "", part)


def _database(file: Path) -> bool:
    with file.open("rb") as opened:
        return opened.read(16) == b"SQLite format 3\0"


def _download(kubeconfig: str, context: str, target: Path) -> None:
    from phalanx.kube.config import load

    connection = load(kubeconfig, context)
    request = urllib.request.Request(connection.server + PATH)
    token = asyncio.run(connection.bearer())
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with (
            urllib.request.urlopen(request, context=connection.ssl, timeout=60) as reply,
            target.open("wb") as out,
        ):
            shutil.copyfileobj(reply, out)
    except urllib.error.HTTPError as problem:
        why = "it is not a local cluster of this version" if problem.code == 404 else f"it answered {problem.code}"
        raise ConfigProblem("--kubeconfig", f"{connection.server} gives no backup: {why}") from None
    except OSError as problem:
        raise ConfigProblem(
            "--kubeconfig",
            f"{connection.server} cannot be reached: {problem}; if it is stopped: phalanx backup --data DIR FILE",
        ) from None


@click.command(short_help="Create a cluster's store from a backup.")
@click.argument("file", metavar="FILE", required=False)
@local_cluster(argument=False)
@click.option("--replace", is_flag=True, help="Move an existing store to *.before-restore.")
@click.option("--as-is", is_flag=True, help="Without FILE: accept the store in DIR as it is, though its mark does not.")
@output_option()
def restore(file: str | None, cluster: str, data: str, replace: bool, as_is: bool, output: str) -> int:
    """Create the store of a local cluster from a backup; start it with `phalanx up --data DIR` afterwards.

    The cluster must not run. Revisions go on far above those of the backup, so clients that remember later ones start
    over with a list. The token and the certificates are not in a backup: the directory keeps its own, or gets new ones.

    \b
    Examples:
      phalanx restore monday.phalanx --data ./again
      phalanx restore monday.phalanx --data data --replace
      phalanx restore --as-is --data data    # an older copy of the directory was put back on purpose
    """
    from phalanx.local.store import backup as backups
    from phalanx.serve.clusters import home_of

    data = str(home_of(cluster).path / "data") if cluster else data
    store = Path(data) / "store.db"
    if as_is == (file is not None):
        raise ConfigProblem("FILE", "say which backup, or --as-is to accept what is in --data")
    if file is None:
        with progress(f"verifying {store}"):
            objects, revision = backups.accept(store)
        text = f"accepted {store}: {objects} objects at revision {revision}"
    else:
        if Path(file).is_file() and not _database(Path(file)):
            raise ConfigProblem("FILE", f"{file} is not a backup; make one with: phalanx backup FILE")
        with progress(f"restoring {file}", "objects") as count:
            objects, revision = backups.restore(Path(file), store, replace=replace, notify=count)
        text = f"{objects} objects in {store}, at revision {revision}"
    found = {"store": str(store), "objects": objects, "revision": revision}
    start = f"--name {cluster}" if cluster else f"--data {data}"
    notify(found, f"{text}; start with: phalanx up {start}", output)
    return 0
