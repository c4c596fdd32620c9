"""`phalanx bench`: runs the benchmarks of a checkout. They are scripts in bench/, not part of the installed package."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import click

from phalanx.cli.output import for_programs, notify, output_option
from phalanx.cli.progress import Progress

DESCRIPTOR = "PHALANX_BENCH_PROGRESS"  # bench/progress.py writes to it how far a script is


PARTS = ("stage", "progress")  # used by the scripts, no benchmarks themselves


def _scripts() -> dict[str, Path]:
    folder = Path("bench")
    if not folder.is_dir():
        raise click.UsageError("no bench folder here; run this in a checkout of Phalanx")
    return {path.stem: path for path in sorted(folder.glob("*.py")) if path.stem not in PARTS}


def _suites() -> list[str]:
    """Return the names of the engine's own suites."""
    import yaml

    return [
        suite["name"]
        for path in sorted(Path("bench", "suites").glob("*.yaml"))
        for suite in yaml.safe_load(path.read_text())
    ]


@click.command(
    short_help="Run benchmarks of a checkout.",
    context_settings={"ignore_unknown_options": True, "help_option_names": ["-h", "--help"]},
)
@click.argument("suite", required=False, default="engine")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@output_option()
def bench(suite: str, arguments: tuple[str, ...], output: str) -> int:
    """Run a benchmark: `engine` (the default), or another script of bench/, or one suite of the engine by its name.

    Prints pods per second and scale curves as text; nothing is asserted. Run it on a quiet machine. -o is for `list`.

    \b
    Examples:
      phalanx bench                          # all engine suites
      phalanx bench SchedulingBasic          # one of them
      phalanx bench engine --latency         # next pod of a known shape, 100 to 50,000 nodes
      phalanx bench e2e up --pods 10000      # through the API server over TLS
      phalanx bench list -o json             # what there is
    """
    scripts = _scripts()
    if suite == "list":
        first = {name: path.read_text().partition("\n")[0].strip('" ') for name, path in scripts.items()}
        lines = [f"{name:12} {line}" for name, line in first.items()]
        text = "\n".join([*lines, f"suites of the engine: {', '.join(_suites())}"])
        notify({"scripts": first, "suites": _suites()}, text, output)
        return 0
    if for_programs(output):
        raise click.UsageError("-o is for `phalanx bench list`: a benchmark prints its figures as text")
    if suite not in scripts and suite not in _suites():
        raise click.UsageError(f"there is no benchmark {suite!r}; see what there is with: phalanx bench list")
    command = [str(scripts[suite])] if suite in scripts else [str(scripts["engine"]), suite]
    return watched([sys.executable, *command, *arguments], f"bench {suite}")


def watched(command: list[str], title: str) -> int:
    """Run a script, print its output as it comes, and return its exit code.

    A terminal also shows progress where the script reports it (bench/progress.py).
    """
    if not sys.stderr.isatty():
        return subprocess.run(command, check=False).returncode
    shown = Progress(title, "parts")
    ours, theirs = os.pipe()
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", DESCRIPTOR: str(theirs)}
    shown.start()
    try:
        running = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, pass_fds=(theirs,))
        os.close(theirs)
        announced = threading.Thread(target=_listen, args=(ours, shown), daemon=True, name="bench-progress")
        announced.start()
        with running:
            assert running.stdout is not None
            for line in running.stdout:
                shown.say(line)
        return running.returncode
    finally:
        shown.stop()


def _listen(descriptor: int, shown: Progress) -> None:
    with os.fdopen(descriptor) as lines:
        for line in lines:
            done, _, total = line.partition(" ")
            shown.notify(int(done), int(total))
