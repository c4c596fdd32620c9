"""`phalanx simulate`: plays a trace of jobs against the scheduler, or its planner alone, in virtual time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from phalanx.base.errors import ConfigProblem
from phalanx.cli.output import CommandError, encoded, for_programs, output_option
from phalanx.cli.progress import progress
from phalanx.simulate.trace import LEVELS, MODES, Job, TraceCluster

if TYPE_CHECKING:
    from phalanx.engine.plugins.config import SchedulerConfig
    from phalanx.simulate.engine_play import EnginePlayer
    from phalanx.simulate.play import Player

PLAYERS = ("engine", "plan")


@click.command(short_help="Play a trace of jobs in virtual time and report waits and promises.")
@click.argument("trace", type=click.Path(dir_okay=False))
@click.option(
    "--cluster",
    default=None,
    metavar="FILE",
    help="Nodes, domains and rules, JSON; a recording has its own.",
)
@click.option("--gangs-in", default=None, type=click.Choice(LEVELS), help="Keep every gang in one domain.")
@click.option("--out", default=None, metavar="FILE", help="Write the schedule as JSON lines.")
@click.option("--config", default=None, metavar="FILE", help="Scheduler configuration; its first profile counts.")
@click.option("--compare", nargs=2, default=None, metavar="A B", help="Play under two configurations and compare.")
@click.option(
    "--play",
    default=None,
    type=click.Choice(PLAYERS),
    help="engine: the whole scheduler; plan: only starts and room.  [default: plan; with --compare: engine]",
)
@click.option("--estimates", default="given", show_default=True, type=click.Choice(MODES), help="Expected durations.")
@click.option("--seed", default=1, show_default=True, help="For estimates that the trace does not have.")
@click.option("--report", default=None, metavar="FILE", help="Write the report: .html, .json, or text.")
@output_option()
def simulate(
    trace: str,
    cluster: str | None,
    gangs_in: str | None,
    out: str | None,
    config: str | None,
    compare: tuple[str, str] | None,
    play: str | None,
    estimates: str,
    seed: int,
    report: str | None,
    output: str,
) -> int:
    """Play TRACE, a CSV file of jobs or a recording made with --record, and report waits and promised starts.

    The scheduler sees a job when it is submitted and its end when it ends. The same seed gives the same bytes.
    `--play plan` decides starts by time and room only; `--play engine` runs the whole scheduler, with filters, scores,
    preemption and every setting of the configuration.

    \b
    Examples:
      phalanx simulate jobs.csv --cluster cluster.json --out schedule.jsonl
      phalanx simulate jobs.csv --cluster cluster.json --estimates noisy --seed 7 --report report.html
      phalanx simulate jobs.csv --cluster cluster.json --play engine --config scheduler.yaml
      phalanx simulate jobs.csv --cluster cluster.json --compare today.yaml strict.yaml
      phalanx simulate run.jsonl --gangs-in rack
    """
    if compare and (config or out):
        raise click.UsageError("--compare names both configurations and writes no schedule: omit --config, --out")
    from phalanx.serve.scheduler_config import load_config
    from phalanx.simulate import measure, page
    from phalanx.simulate import report as reports

    try:
        jobs, nodes = _load(trace, cluster)
        nodes = nodes.with_gangs_in(gangs_in) if gangs_in else nodes
        names = list(compare) if compare else [config or "default configuration"]
        settings = [load_config(name if compare or config else "")[0] for name in names]
    except ConfigProblem as problem:
        raise CommandError(str(problem)) from None
    played = []
    for name, chosen in zip(names, settings, strict=True):
        with progress(f"simulate {name}", "jobs") as notify:
            played.append(
                _player(play or ("engine" if compare else "plan"), jobs, nodes, chosen, estimates, seed).play(notify)
            )
    results = [measure.measure(run) for run in played]
    if out:
        _write(out, "".join(json.dumps(line) + "\n" for line in played[0].lines))
    data: Any = results[0]
    text = reports.text(results[0])
    if compare:
        data = reports.compare((names[0], names[1]), (results[0], results[1]), (played[0], played[1]))
        text = reports.compare_text(data)
    if report:
        made = text + "\n"
        if report.endswith(".html"):
            made = page.page(list(zip(names, results, strict=True)), text if compare else "")
        elif report.endswith(".json"):
            made = encoded(data, "json")
        _write(report, made)
    click.echo(encoded(data, output) if for_programs(output) else text)
    return 1 if any(result["never_started"] for result in results) else 0


def _player(
    play: str, jobs: list[Job], cluster: TraceCluster, config: SchedulerConfig, estimates: str, seed: int
) -> Player | EnginePlayer:
    from phalanx.engine.reservations import PlanSettings
    from phalanx.simulate.engine_play import EnginePlayer
    from phalanx.simulate.play import Player

    if play == "engine":
        return EnginePlayer(jobs, cluster, config, estimates, seed)
    settings = PlanSettings.of(config.profiles[0].settings().reservations)
    return Player(jobs, cluster, settings, estimates, seed)


def _load(trace: str, cluster: str | None) -> tuple[list[Job], TraceCluster]:
    """Return the jobs and the cluster of a trace, or of a recording, which has its own cluster."""
    from phalanx.engine.placement.outcome import plural
    from phalanx.simulate.recording import is_recording, read_recording
    from phalanx.simulate.trace import read_cluster, read_trace

    if not is_recording(trace):
        if cluster is None:
            raise click.UsageError("a trace needs --cluster FILE; only a recording brings its own cluster")
        return read_trace(trace), read_cluster(cluster)
    recorded = read_recording(trace)
    if recorded.never_started:
        text = f"{plural(recorded.never_started, 'job')} of the recording never started; their durations are assumed"
        click.echo(text, err=True)
    return recorded.jobs, recorded.cluster if cluster is None else read_cluster(cluster)


def _write(path: str, content: str) -> None:
    try:
        Path(path).write_text(content)
    except OSError as problem:
        raise CommandError(f"{path}: cannot be written: {problem.strerror or problem}") from None
