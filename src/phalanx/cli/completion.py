"""`phalanx completion`: complete commands, options, kinds and names of objects in a shell.

Completion must neither hang nor print: a server that does not answer at once gives no suggestions.
"""

from __future__ import annotations

import asyncio
from typing import Any

import click
from click.shell_completion import BashComplete, CompletionItem, ZshComplete, get_completion_class

SECONDS = 1.5
MOST = 200  # names offered
VARIABLE = "_PHALANX_COMPLETE"


@click.command(short_help="Print what makes a shell complete phalanx commands.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> int:
    """Print the script that makes bash, zsh or fish complete commands, options, kinds, objects and clusters.

    \b
    Examples:
      source <(phalanx completion bash)                                    # this shell; in ~/.bashrc: all
      source <(phalanx completion zsh)                                     # ~/.zshrc
      phalanx completion fish > ~/.config/fish/completions/phalanx.fish
    """
    from phalanx.cli.main import cli

    kind = {"bash": _Bash, "zsh": _Zsh}.get(shell) or get_completion_class(shell)
    assert kind is not None
    click.echo(kind(cli, {}, "phalanx", VARIABLE).source())
    return 0


class _Bash(BashComplete):
    """Add no space after `podgroup/`: a name follows."""

    source_template = BashComplete.source_template.replace(
        "COMPREPLY+=($value)", "COMPREPLY+=($value)\n            [[ $value == */ ]] && compopt -o nospace"
    )

    @staticmethod
    def _check_version() -> None:
        """Do not check the version of bash: the script may be used on another machine."""


class _Zsh(ZshComplete):
    """Add no space after a suggestion that ends with a slash."""

    source_template = ZshComplete.source_template.replace(
        'if [[ "$descr" == "_" ]]; then',
        'if [[ "$key" == */ ]]; then\n                beginnings+=("$key")\n'
        '            elif [[ "$descr" == "_" ]]; then',
    ).replace(
        '    if [ -n "$completions" ]; then',
        '    if [ -n "$beginnings" ]; then\n        compadd -S "" -U -V unsorted -a beginnings\n    fi\n\n'
        '    if [ -n "$completions" ]; then',
    ).replace("local -a completions\n", "local -a completions\n    local -a beginnings\n", 1)  # fmt: skip


def complete_cluster(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from phalanx.serve.clusters import all_homes

    return [CompletionItem(home.name) for home in all_homes() if home.name.startswith(incomplete)]


def complete_target(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete KIND/NAME, or KIND and then NAME."""
    before: tuple[str, ...] = context.params.get("what") or ()
    kind, slash, start = incomplete.partition("/")
    if before and "/" not in before[-1]:
        kind, slash, start, lead = before[-1], "/", incomplete, ""
    else:
        lead = f"{kind}/"
    if not slash:
        return [CompletionItem(f"{name}/") for name in _kinds() if name.startswith(incomplete)]
    try:
        names = asyncio.run(asyncio.wait_for(_names(kind, context.params), SECONDS))
    except Exception:  # shell completion must not print errors
        return []
    return [CompletionItem(lead + name) for name in names if name.startswith(start)]


def _kinds() -> list[str]:
    from phalanx.controllers.workloads.registry import KINDS

    return ["pod", "podgroup", "compositepodgroup", "workload", *(kind.names[0] for kind in KINDS)]


async def _names(kind: str, options: dict[str, Any]) -> list[str]:
    import msgspec

    from phalanx.cli.conditions import RESOURCES
    from phalanx.cli.scheduler_client import connection_of
    from phalanx.controllers.workloads.registry import BY_NAME
    from phalanx.kube.client import HttpClient
    from phalanx.serve.queries.paths import kind_of

    own = kind_of(kind)
    found = BY_NAME.get(kind.partition(".")[0].lower())
    resources = RESOURCES[own] if own is not None else (found.resource,) if found is not None else ()
    connection = connection_of(options.get("kubeconfig") or "", options.get("context") or "")
    namespace = options.get("namespace") or connection.namespace
    async with HttpClient(connection, user_agent="phalanx-cli") as client:
        for resource in resources[:1]:
            body = msgspec.json.decode(await client.list(resource, namespace, limit=MOST))
            return [item["metadata"]["name"] for item in body["items"]]
    return []
