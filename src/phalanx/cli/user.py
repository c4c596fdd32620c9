"""`phalanx user`: additional users of a local cluster, each with its own token."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from phalanx.base.errors import ConfigProblem
from phalanx.cli.clusters import local_cluster
from phalanx.cli.options import check_directory_of
from phalanx.cli.output import encoded, for_programs, notify, output_option, suggest, table

if TYPE_CHECKING:
    from phalanx.serve.clusters import Home


@click.group(short_help="Add, list and remove users of a local cluster.")
def user() -> None:
    """Additional users of a local cluster. Roles say what they may do (--authorization-mode RBAC).

    \b
    Examples:
      phalanx user add jane --group developers
      kubectl create rolebinding jane --clusterrole edit --user jane --namespace team-a
      KUBECONFIG=data/users/jane.kubeconfig kubectl auth can-i --list -n team-a
    """


@user.command(short_help="Make a user, or a new token for one.")
@click.argument("name")
@click.option("--group", "groups", multiple=True, metavar="GROUP", help="A group to be in; may be repeated.")
@click.option("--certificate", is_flag=True, help="A client certificate instead of a token; valid for a year.")
@click.option("--out", default="", metavar="FILE", help="Where to write it.  [default: in the data directory]")
@local_cluster(argument=False)
@output_option()
def add(name: str, groups: tuple[str, ...], certificate: bool, out: str, cluster: str, data: str, output: str) -> int:
    """Add a user with its own kubeconfig (mode 600). An existing user gets a new token and these groups.

    A running cluster notices at once.

    \b
    Examples:
      phalanx user add jane --group developers
      phalanx user add ci --name team-a --certificate --out ./ci.kubeconfig
    """
    import base64
    import datetime

    import yaml

    from phalanx.local.api.files import write_private
    from phalanx.local.api.tls import make_client
    from phalanx.local.api.users import FILE, add_user, check_names

    home, directory = _place(cluster, data)
    if out:
        check_directory_of("--out", Path(out))
    record = home.record()
    if record is None or not record.kubeconfig or not Path(record.kubeconfig).exists():
        raise ConfigProblem(
            home.title, "there is no kubeconfig to start from: start the cluster with --kubeconfig FILE"
        )
    config = yaml.safe_load(Path(record.kubeconfig).read_text())
    if certificate:
        check_names(name, groups)
        pair, serial = make_client(directory / "pki", name, groups, datetime.datetime.now(datetime.UTC))
        add_user(directory / FILE, name, groups, serial)
        secret = {
            "client-certificate-data": base64.b64encode(pair.certificate).decode(),
            "client-key-data": base64.b64encode(pair.key).decode(),
        }
    else:
        secret = {"token": add_user(directory / FILE, name, groups)}
    cluster_name = config["clusters"][0]["name"]
    context = f"{name}@{cluster_name}"
    config["users"] = [{"name": context, "user": secret}]
    config["contexts"] = [{"name": context, "context": {"cluster": cluster_name, "user": context}}]
    config["current-context"] = context
    target = Path(out) if out else directory / "users" / f"{name}.kubeconfig"
    try:
        write_private(target, yaml.safe_dump(config, sort_keys=False).encode())
    except OSError as problem:
        raise ConfigProblem("--out", f"cannot write {target}: {problem.strerror or problem}") from None
    found = {"name": name, "groups": list(groups), "kubeconfig": str(target.absolute())}
    notify(found, f"user {name} added: KUBECONFIG={target.absolute()}", output)
    suggest(f"kubectl create rolebinding {name} --clusterrole view --user {name}    # until then it may do nothing")
    return 0


@user.command("list", short_help="List the users and their groups.")
@local_cluster(argument=False)
@output_option()
def list_users(cluster: str, data: str, output: str) -> int:
    """List the users that were added, with their groups. Tokens are not shown.

    \b
    Examples:
      phalanx user list
      phalanx user list --name team-a -o json
    """
    from phalanx.local.api.users import FILE, read_users

    found = read_users(_place(cluster, data)[1] / FILE)
    if for_programs(output):
        click.echo(encoded([{"name": known.name, "groups": list(known.groups)} for known in found], output))
        return 0
    if not found:
        click.echo("no users but the administrator; add one with: phalanx user add NAME --group GROUP", err=True)
        return 0
    click.echo(table(("NAME", "GROUPS"), [(known.name, ",".join(known.groups)) for known in found]))
    return 0


@user.command(short_help="Remove a user: the token or certificate is no longer good.")
@click.argument("name")
@local_cluster(argument=False)
@output_option()
def remove(name: str, cluster: str, data: str, output: str) -> int:
    """Remove a user. Its token or certificate is refused from now on; role bindings that name it stay.

    \b
    Example:
      phalanx user remove jane
    """
    from phalanx.local.api.users import FILE, remove_user

    home, directory = _place(cluster, data)
    if not remove_user(directory / FILE, name):
        raise ConfigProblem(home.title, f"there is no user {name}; `phalanx user list` shows who is there")
    (directory / "users" / f"{name}.kubeconfig").unlink(missing_ok=True)
    notify({"name": name, "removed": True}, f"user {name} removed", output)
    return 0


def _place(cluster: str, data: str) -> tuple[Home, Path]:
    """Return the cluster and its data directory. Raises ConfigProblem."""
    from phalanx.serve.clusters import home_with
    from phalanx.serve.settings import MEMORY

    if not cluster and data == MEMORY:
        raise ConfigProblem("--data", "a cluster in memory keeps no users: start it with --data DIR")
    home = home_with(cluster, data)
    record = home.record()
    if record is None:
        raise ConfigProblem(
            home.title, "there is no cluster here; start one with: phalanx up --authorization-mode RBAC"
        )
    if record.data == MEMORY:
        raise ConfigProblem(home.title, "a cluster in memory keeps no users: start it with --data DIR")
    return home, Path(record.data)
