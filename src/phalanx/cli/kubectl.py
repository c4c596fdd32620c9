"""`kubectl phalanx`: the questions of the command line as a kubectl plugin (the executable `kubectl-phalanx`)."""

from __future__ import annotations

from typing import NoReturn

import click

from phalanx import __version__
from phalanx.cli.main import COMMANDS, LazyGroup, run_command

VERBS = ("why", "whatif", "plan", "demand", "top", "group", "check-cluster")


class PluginGroup(LazyGroup):
    """The commands that make sense on any cluster that kubectl reaches."""

    names = tuple(name for name in VERBS if name in COMMANDS)


@click.group(cls=PluginGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="kubectl phalanx")
def plugin() -> None:
    """Ask the Phalanx scheduler of this cluster, through the API server and without port-forward.

    \b
    Examples:
      kubectl phalanx why podgroup/training -n team-a
      kubectl phalanx whatif -f jobset.yaml
      kubectl phalanx plan podgroup/urgent --context production
      kubectl phalanx top -n team-a
    """


def main() -> NoReturn:
    run_command(plugin, "kubectl phalanx")


if __name__ == "__main__":
    main()
