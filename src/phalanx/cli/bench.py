"""`phalanx bench`: runs the benchmarks of a checkout. They are scripts in bench/, not part of the installed package."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click

from phalanx.cli.progress import Progress


def _scripts() -> dict[str, Path]:
    folder = Path("bench")
    if not folder.is_dir():
        raise click.UsageError("no bench folder here; run this in a checkout of Phalanx")
    return {path.stem: path for path in sorted(folder.glob("*.py"))}


def _suites() -> dict[str, list[str]]:
    """The engine's own suites: the names of their workloads."""
    import yaml

    return {
        suite["name"]: [workload["name"] for workload in suite["workloads"]]
        for path in sorted(Path("bench", "suites").glob("*.yaml"))
        for suite in yaml.safe_load(path.read_text())
    }


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
        click.echo(f"suites of the engine: {', '.join(_suites())}")
        return 0
    if suite not in scripts and suite not in _suites():
        raise click.UsageError(f"there is no benchmark {suite!r}; see what there is with: phalanx bench list")
    command = [str(scripts[suite])] if suite in scripts else [str(scripts["engine"]), suite]
    command += arguments
    chosen = {name: each for name, each in _suites().items() if name in {suite, *arguments}}
    rows = {(name, workload) for name, workloads in (chosen or _suites()).items() for workload in workloads}
    counted = suite not in scripts or (suite == "engine" and not any(word.startswith("--") for word in arguments))
    return _watched([sys.executable, *command], suite, rows if counted else set())


def how_far(line: str, rows: set[tuple[str, str]], done: set[tuple[str, str]]) -> tuple[int, int]:
    """So many workloads of so many have a row in what was printed; notes the one of this line."""
    row = tuple(line.split()[:2])
    done |= {each for each in rows if each == row}
    return len(done), len(rows)


def _watched(command: list[str], suite: str, rows: set[tuple[str, str]]) -> int:
    """The script prints as it goes; a terminal also sees that it runs and, where its rows are known, how far it is."""
    if not sys.stderr.isatty():
        return subprocess.run(command, check=False).returncode
    shown, done = Progress(f"bench {suite}", "workloads"), set[tuple[str, str]]()
    shown.start()
    try:
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as running:
            assert running.stdout is not None
            for line in running.stdout:
                shown.say(line)
                shown.tell(*how_far(line, rows, done))
        return running.returncode
    finally:
        shown.stop()
