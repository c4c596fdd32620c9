"""`phalanx bench`: runs the benchmarks of a checkout. They are scripts in bench/, not part of the installed package."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click


def _scripts() -> dict[str, Path]:
    folder = Path("bench")
    if not folder.is_dir():
        raise click.UsageError("no bench folder here; run this in a checkout of Phalanx")
    return {path.stem: path for path in sorted(folder.glob("*.py"))}


@click.command(
    short_help="Run benchmarks of a checkout.",
    context_settings={"ignore_unknown_options": True, "help_option_names": ["-h", "--help"]},
)
@click.argument("suite", required=False, default="engine")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def bench(suite: str, arguments: tuple[str, ...]) -> int:
    """Run a benchmark: `engine` (the default), or another script of bench/, or one suite of the engine by its name.

    Prints pods per second and scale curves; nothing is asserted. Run it on a quiet machine.

    \b
    Examples:
      phalanx bench                          # all engine suites
      phalanx bench SchedulingBasic          # one of them
      phalanx bench engine --latency         # next pod of a known shape, 100 to 50,000 nodes
      phalanx bench e2e up --pods 10000      # through the API server over TLS
      phalanx bench list                     # what there is
    """
    scripts = _scripts()
    if suite == "list":
        for name, path in scripts.items():
            first = path.read_text().partition("\n")[0].strip('" ')
            click.echo(f"{name:12} {first}")
        return 0
    command = [str(scripts[suite])] if suite in scripts else [str(scripts["engine"]), suite]
    command += arguments
    return subprocess.run([sys.executable, *command], check=False).returncode
