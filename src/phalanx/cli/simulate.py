"""`phalanx simulate`: plays a trace of jobs against the engine's planner in virtual time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from phalanx.base.errors import ConfigProblem
from phalanx.cli.output import CommandError, encoded, for_programs, output_option
from phalanx.cli.progress import progress
from phalanx.simulate.estimates import MODES


@click.command(short_help="Play a trace of jobs in virtual time and report waits and promises.")
@click.argument("trace", type=click.Path(dir_okay=False))
@click.option("--cluster", required=True, metavar="FILE", help="Nodes, domains and rules of the cluster, JSON.")
@click.option("--out", default=None, metavar="FILE", help="Write the schedule as JSON lines.")
@click.option("--config", default=None, metavar="FILE", help="Scheduler configuration; its first profile counts.")
@click.option("--compare", nargs=2, default=None, metavar="A B", help="Play under two configurations and compare.")
@click.option("--estimates", default="given", show_default=True, type=click.Choice(MODES), help="Expected durations.")
@click.option("--seed", default=1, show_default=True, help="For estimates that the trace does not have.")
@click.option("--report", default=None, metavar="FILE", help="Write the report: .html, .json, or text.")
@output_option()
def simulate(
    trace: str,
    cluster: str,
    out: str | None,
    config: str | None,
    compare: tuple[str, str] | None,
    estimates: str,
    seed: int,
    report: str | None,
    output: str,
) -> int:
    """Play TRACE, a CSV file of jobs, and print how long jobs waited and whether promised starts were kept.

    The planner hears of a job when it is submitted and of its end when it ends. The same seed gives the same bytes.

    \b
    Examples:
      phalanx simulate jobs.csv --cluster cluster.json --out schedule.jsonl
      phalanx simulate jobs.csv --cluster cluster.json --estimates noisy --seed 7 --report report.html
      phalanx simulate jobs.csv --cluster cluster.json --compare today.yaml strict.yaml
    """
    if compare and (config or out):
        raise click.UsageError("--compare takes its configurations itself; leave out --config and --out")
    from phalanx.simulate import measure, page
    from phalanx.simulate import report as reports
    from phalanx.simulate.play import Player
    from phalanx.simulate.settings import read_settings
    from phalanx.simulate.trace import read_cluster, read_trace

    try:
        jobs, nodes = read_trace(trace), read_cluster(cluster)
        names = list(compare) if compare else [config or "default configuration"]
        settings = [read_settings(name if compare or config else None) for name in names]
    except ConfigProblem as problem:
        raise CommandError(str(problem)) from None
    played = []
    for name, chosen in zip(names, settings, strict=True):
        with progress(f"simulate {name}", "jobs") as notify:
            played.append(Player(jobs, nodes, chosen, estimates, seed).play(notify))
    results = [measure.measure(run) for run in played]
    if out:
        _write(out, "".join(json.dumps(line) + "\n" for line in played[0].lines))
    data: Any = results[0]
    said = reports.text(results[0])
    if compare:
        data = reports.compare((names[0], names[1]), (results[0], results[1]), (played[0], played[1]))
        said = reports.compare_text(data)
    if report:
        made = said + "\n"
        if report.endswith(".html"):
            made = page.page(list(zip(names, results, strict=True)), said if compare else "")
        elif report.endswith(".json"):
            made = encoded(data, "json")
        _write(report, made)
    click.echo(encoded(data, output) if for_programs(output) else said)
    return 1 if any(result["never_started"] for result in results) else 0


def _write(path: str, content: str) -> None:
    try:
        Path(path).write_text(content)
    except OSError as problem:
        raise CommandError(f"{path}: cannot be written: {problem.strerror or problem}") from None
