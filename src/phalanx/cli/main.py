"""`phalanx`: the command line. Knows which commands exist and imports one only when it is used: --help is quick."""

from __future__ import annotations

import errno
import importlib
import os
import sys
from io import TextIOWrapper
from pathlib import Path
from typing import NoReturn

import click

from phalanx import __version__
from phalanx.base.errors import ConfigProblem
from phalanx.cli.options import color_option

# name -> (module, attribute, the line in --help)
COMMANDS: dict[str, tuple[str, str, str]] = {
    "up": ("phalanx.cli.up", "up", "Start a whole local cluster: API server, nodes, controllers, scheduler."),
    "list": ("phalanx.cli.clusters", "list_clusters", "List local clusters and whether they run."),
    "status": ("phalanx.cli.clusters", "status", "Say whether a local cluster runs, where, and what is in it."),
    "down": ("phalanx.cli.clusters", "down", "Stop a local cluster, or forget it for good."),
    "kubeconfig": ("phalanx.cli.clusters", "kubeconfig", "Print a local cluster's kubeconfig, or merge it into yours."),
    "user": ("phalanx.cli.user", "user", "Add, list and remove users of a local cluster."),
    "apiserver": ("phalanx.cli.apiserver", "apiserver", "Start the API server alone."),
    "scheduler": ("phalanx.cli.scheduler", "scheduler", "Run the scheduler against any API server."),
    "controllers": ("phalanx.cli.parts", "controllers", "Run the workload controllers against an API server."),
    "nodes": ("phalanx.cli.parts", "nodes", "Simulate nodes and their kubelets against an API server."),
    "dashboard": ("phalanx.cli.dashboard", "dashboard", "Print a link that opens the dashboard of a local cluster."),
    "group": ("phalanx.cli.group", "group", "Print the scheduling groups that workloads in a file would get."),
    "why": ("phalanx.cli.why", "why", "Say why a pod or group is pending, and what would help."),
    "whatif": ("phalanx.cli.whatif", "whatif", "Say whether manifests would fit now, without creating them."),
    "plan": ("phalanx.cli.plan", "plan", "Print what would be evicted for a pod or group, without doing it."),
    "demand": ("phalanx.cli.demand", "demand", "List the groups that lack nodes, and which nodes would be enough."),
    "top": ("phalanx.cli.top", "top", "Show queue, groups and racks of a cluster in the terminal."),
    "check-cluster": (
        "phalanx.cli.check_cluster",
        "check_cluster",
        "Say what works on a cluster, what does not, and what to do.",
    ),
    "backup": ("phalanx.cli.backup", "backup", "Write the objects of a local cluster into one file."),
    "restore": ("phalanx.cli.backup", "restore", "Create a local cluster's store from a backup."),
    "completion": ("phalanx.cli.completion", "completion", "Print the script that makes a shell complete commands."),
    "bench": ("phalanx.cli.bench", "bench", "Run benchmarks of a checkout."),
    "simulate": (
        "phalanx.cli.simulate",
        "simulate",
        "Play a trace of jobs in virtual time and report waits and promises.",
    ),
    "replay": ("phalanx.cli.scheduler", "replay", "Replay a recording and compare every decision."),
}

# What every command's exit code means; docs/commands.md has the same.
EXIT_CODES = (
    (0, "done; what was asked about is scheduled, fits, runs or is the same"),
    (1, "an answer that is no: pending, does not fit, stopped, differs; or a part failed while running"),
    (2, "nothing was done: bad input, not found, cannot be reached; the message says what to do"),
    (130, "ended by Ctrl-C"),
)


class LazyGroup(click.Group):
    names: tuple[str, ...] = tuple(COMMANDS)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.names)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.names:
            return None
        module, attribute, _ = COMMANDS[cmd_name]
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        for each in (command, *(command.commands.values() if isinstance(command, click.Group) else ())):
            if not any(option.name == "color" for option in each.params):
                each.params.append(color_option(hidden=True))  # documented once, understood everywhere
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Suggest the closest command for a misspelt one."""
        if args and args[0] not in self.names and not args[0].startswith("-"):
            import difflib

            near = difflib.get_close_matches(args[0], self.names, n=1)
            program = ctx.find_root().info_name or "phalanx"
            meant = f"did you mean: {program} {near[0]}" if near else f"see what there is with: {program} --help"
            raise click.UsageError(f"there is no command {args[0]!r}; {meant}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][2]) for name in self.names])
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(code), meaning) for code, meaning in EXIT_CODES])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="phalanx")
def cli() -> None:
    """Phalanx places groups of pods together, or not at all.

    \b
    Examples:
      phalanx up --demo
      phalanx up --nodes 100 --topology zones=2,racks=8
      phalanx top --kubeconfig data/kubeconfig
      KUBECONFIG=data/kubeconfig kubectl get nodes
      phalanx up --data :memory: --kubeconfig ./kubeconfig
      phalanx apiserver --listen 127.0.0.1:7443
    """


cli.params.append(color_option())


def main() -> NoReturn:
    run_command(cli, "phalanx")


def _open_streams() -> None:
    """Discard what is printed to a stream that the caller closed (`>&-`); else a file of ours would get its number.

    Characters that the locale cannot print become question marks.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115 (open until the process ends)
        elif mode == "w" and isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")


def run_command(command: click.Group, program: str) -> NoReturn:
    """Run the command that the arguments of this process name, and end with its exit code."""
    _open_streams()
    try:
        code = command.main(prog_name=program, standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as problem:
        problem.show()
        code = problem.exit_code
    except click.exceptions.Abort:
        code = 130
    except ConfigProblem as problem:
        click.echo(f"error: {problem}", err=True)
        code = 2
    except OSError as problem:
        if problem.errno not in (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 (what is left is not written at the end either)
        code = 1  # the reader has gone
        if problem.errno != errno.EPIPE:
            click.echo(f"error: cannot write: {problem.strerror}", err=True)
            code = 2
    raise SystemExit(code if isinstance(code, int) else 0)
