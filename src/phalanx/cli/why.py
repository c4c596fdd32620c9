"""`phalanx why`: what a pod, a group or a Workload waits for, from the scheduler's own state."""

from __future__ import annotations

import re
import time

import click
import msgspec

from phalanx.base.errors import NotFound
from phalanx.cli.completion import complete_target
from phalanx.cli.messages import age, plural
from phalanx.cli.output import CommandError, CommandResult, print_answers, watch_option
from phalanx.cli.owners import claims_not_created, each_root, not_started, not_waiting
from phalanx.cli.scheduler_client import (
    Colours,
    SchedulerClient,
    SchedulerUnavailable,
    Where,
    asking_options,
    joined,
    run,
)
from phalanx.engine.explain.values import HistoryEntry, Level, PodLine, QueuePlace, Report, Why
from phalanx.engine.placement.plain import sentence_case

MOST_PODS = 10  # listed; `-o wide` and JSON have them all
MOST_REASONS = 5
NAMED_REASONS = 3  # reasons of nodes that the headline has in plain words
DEVICES = "DynamicResources"  # the plugin that holds pods until their claims exist
_FILTERED = re.compile(r"0/\d+ nodes are available:")  # kube-scheduler's text, for -o wide


@click.command(short_help="Say why a pod or group is pending, and what would help.")
@click.argument("what", metavar="KIND/NAME", nargs=-1, required=True, shell_complete=complete_target)
@click.option("--story", is_flag=True, help="Also show how it got here: what happened to it, oldest first.")
@asking_options
@watch_option
def why(
    what: tuple[str, ...],
    story: bool,
    namespace: str,
    kubeconfig: str,
    context: str,
    scheduler: str,
    output: str,
    watch: bool,
) -> int:
    """Say why a pod, PodGroup, CompositePodGroup or Workload is pending, and what would make it fit.

    The answer comes from the scheduler's own state; changes that would help are tried by the same search and taken
    back. Without a scheduler that answers, conditions and events of the object are shown. Exit code 0: scheduled,
    1: pending, 2: not found or no scheduler to ask.

    \b
    Examples:
      phalanx why podgroup/training
      phalanx why job/evaluation                      # every group of a Job, JobSet, LeaderWorkerSet, …
      phalanx why pod/training-0 -n team-a -o json
      phalanx why workload/train/workers/0            # one implicit group of KEP-4671
      phalanx why podgroup/training --story           # how it got here
      phalanx why podgroup/training --watch           # again whenever the answer changes
      phalanx why compositepodgroup/tree --scheduler http://127.0.0.1:10259
    """
    where, asked = Where(namespace, kubeconfig, context, scheduler), joined(what)
    wide = output == "wide"

    async def ask_one(kind: str, name: str) -> CommandResult:
        return await _why(kind, name, where, wide, story)

    return run(print_answers(lambda: each_root(ask_one, asked, where), output, watch))


async def _why(kind: str, name: str, where: Where, wide: bool, story: bool) -> CommandResult:
    connection = where.connection()
    namespace = where.namespace or connection.namespace
    async with SchedulerClient(connection, where.scheduler) as asker:
        try:
            query = {"kind": kind, "namespace": namespace, "name": name}
            body = await asker.ask("GET", "why", query)
        except NotFound:
            if kind == "Pod" and (instead := await not_waiting(asker.client, namespace, name)):
                raise CommandError(instead) from None
            raise
        except SchedulerUnavailable as problem:
            from phalanx.cli.conditions import from_conditions

            return await from_conditions(asker.client, kind, namespace, name, str(problem))
        report = msgspec.json.decode(body, type=Report)
        claimless = [item for item in report.items if item.queue is not None and item.queue.gate == DEVICES]
        waiting = {pod.name for item in claimless for pod in item.pods}
        notes = await claims_not_created(asker.client, namespace, waiting) if waiting else ()
        placed = {pod.name for item in report.items if item.scheduled for pod in item.pods if pod.node}
        stuck = await not_started(asker.client, namespace, placed) if placed else []
    text = "\n\n".join(render(item, Colours(), story=story, wide=wide) for item in report.items)
    text += "".join(f"\n{line}" for line in _section("starting", stuck))
    text = text or f"{kind.lower()}/{name} in {namespace}: no pod refers to it yet"
    waits = next((item for item in report.items if not item.scheduled and not item.blockers), None)
    then = (
        f"phalanx plan {kind.lower()}/{name} -n {namespace}    # which pods it could preempt"
        if waits is not None
        else ""
    )
    return CommandResult(
        0 if report.scheduled and report.items else 1, msgspec.json.decode(body), text, notes, next=then
    )


def render(item: Why, paint: Colours, *, story: bool = False, wide: bool = False, now: float | None = None) -> str:
    """Format an answer in a few lines, the most important first.

    `now`: seconds since the epoch, for ages.
    """
    now = time.time() if now is None else now
    title = f"{item.kind.lower()}/{item.name.rstrip('/')}"
    state = paint("scheduled", "green") if item.scheduled else paint("pending", "yellow")
    lines = [f"{title} in {item.namespace}: {state}"]
    tried = f"when tried {age(now - item.last.at)} ago: " if item.last is not None and item.last.at else ""
    fresh = item.now is not None  # then the sentence is of a trial at the time of the query
    message = item.summary if item.scheduled else item.headline or item.summary
    lines += [f"  {'' if fresh or item.scheduled else tried}{message}"] if message else []
    lines += [f"  {item.headline}"] if item.scheduled and item.headline else []
    if wide and item.headline and item.summary and not item.scheduled:
        lines += _section("message", [f"{tried}{item.summary}"])
    others = [text for text in item.blockers if sentence_case(text) != item.headline]
    lines += _section("also", [sentence_case(text) for text in others])
    if item.queue is not None and not item.scheduled:
        lines += _section("queue", [_queue(item.queue)])
    lines += _section("run time", [item.run_time] if item.run_time else [])
    if len(item.levels) > 1 or (item.levels and item.kind != "Pod"):
        lines += _section("groups", [_level(level) for level in item.levels])
        lines += _section("lost", [item.levels[0].lost] if item.levels[0].lost else [])
    if item.now is not None and item.now.result == "placed" and item.kind != "Pod":
        lines += _section("now", ["a trial at this moment places it"])
    elif item.now is not None and item.kind != "Pod" and (wide or not item.headline):
        lines += _section("now", [item.now.message] if not item.summary.startswith(item.now.message) else [])
    reasons = [f"{r.nodes}/{item.nodes} nodes: {r.reason}" for r in item.node_reasons[: None if wide else MOST_REASONS]]
    lines += _section("nodes", reasons) if wide or not item.headline or len(reasons) > NAMED_REASONS else []
    if item.preemption is not None:
        gone = item.preemption.total - len(item.preemption.victims)
        first, *others = (item.preemption.text or "evicting").splitlines()
        text = f"{first}; {gone} of {item.preemption.total} victims gone"
        lines += _section("preemption", [text, *(line.strip() for line in others)])
    helps = [relaxation for relaxation in item.relaxations if relaxation.fits is not False]
    mark = {True: "", False: " (by counting, not checked by the filters)"}
    remedies = []
    for relaxation in helps:
        remedies.append(relaxation.text + mark[relaxation.checked])
        remedies += [f"  {relaxation.how}"] if relaxation.how else []
    lines += _section("would help", remedies)
    lines += _section("would not", [r.text for r in item.relaxations if r.fits is False])
    queued = item.queue.message if item.queue is not None else ""
    lines += _section("hint", [hint for hint in item.hints if hint != queued])
    shown = (item.summary, item.now.message) if item.now is not None else (item.summary,)
    pods = _pods(item.pods, shown, None if wide else MOST_PODS) if item.kind != "Pod" else []
    if pods and item.pod_count > len(item.pods):
        pods.append(f"and {item.pod_count - len(item.pods)} more: kubectl get pods -n {item.namespace}")
    lines += _section("pods", pods)
    if story:
        lines += _section("story", [_history_lines(line) for line in item.story] or ["nothing is remembered of it"])
    return "\n".join(lines)


def _history_lines(line: HistoryEntry) -> str:
    times = f" (x{line.times})" if line.times > 1 else ""
    of = f" [{line.of}]" if line.of else ""
    return f"{line.time} {line.what}{' ' + line.detail if line.detail else ''}{times}{of}"


def _section(title: str, lines: list[str]) -> list[str]:
    if not lines:
        return []
    return [f"  {title + ':':<12}{lines[0]}", *(" " * 14 + line for line in lines[1:])]


def _queue(queue: QueuePlace) -> str:
    tries = f"attempts: {queue.attempts}" + (f"; {queue.overtaken}" if queue.overtaken else "")
    match queue.place:
        case "active":
            return f"number {queue.position} in line; {tries}"
        case "backoff":
            return f"backs off, tried again at {queue.until}; {tries}"
        case "waiting":
            waits = ", or ".join(queue.waits_for[:3]) or "a change"
            return f"waits until {waits}; {tries}"
        case "gated":
            return f"held by {queue.gate}: {queue.message}"
        case "none":
            return "not queued"
    return queue.place


def _level(level: Level) -> str:
    what = "child groups" if level.kind == "CompositePodGroup" else "pods"
    parts = [f"{level.placed} placed"]
    if level.policy == "gang":
        parts = [f"{level.placed} of {level.minimum} {what} placed"]
        if level.placed > level.minimum:
            parts = [f"{level.placed} {what} placed, minimum {level.minimum}"]
    if not level.ready:
        parts.append(f"{level.known} known")
    if level.pending:
        parts.append(f"{plural(level.pending, 'pod')} pending")
    if level.gated:
        parts.append(f"{level.gated} gated")
    if level.topology:
        where = f" {', '.join(level.domains)}" if level.domains else ""
        parts.append(f"one {level.topology}{where}")
    parts += level.settings
    if level.state:
        parts.insert(0, level.state)
    if level.reason and level.status != "True":
        parts.append(level.reason)
    return f"{'  ' * level.depth}{level.kind} {level.name.rstrip('/')} ({level.policy}): {', '.join(parts)}"


def _pods(pods: list[PodLine], shown: tuple[str, ...], most: int | None) -> list[str]:
    """Return a line for each pod.

    Pods with the same message share a line unless `most` is None. `shown`: messages of the group.
    """
    by_text: dict[str, list[str]] = {}
    for pod in pods:
        where = f" on {pod.node}" if pod.node else f", promised {pod.nominated}" if pod.nominated else ""
        filtered = most is not None and _FILTERED.match(pod.message)
        repeats = filtered or any(
            text.startswith(pod.message) or (text and pod.message.startswith(text)) for text in shown
        )
        own = "" if repeats else f": {pod.message}"
        by_text.setdefault(f"{pod.state if pod.state != 'foreign' else 'waits'}{where}{own}", []).append(pod.name)
    lines = []
    for what, names in by_text.items():
        if most is None or len(names) < 3:
            lines += [f"{name} {what}" for name in names]
        else:
            lines.append(f"{names[0]} and {len(names) - 1} others {what}")
    if most is not None and len(lines) > most:
        lines[most:] = [f"and {len(lines) - most} more"]
    if most is not None and len(lines) < len(pods):
        lines[-1] += " (-o wide lists each)"
    return lines
