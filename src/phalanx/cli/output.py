"""Print the results of commands: `-o` with kubectl's formats, one printer, and repeated printing on changes."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import click

from phalanx.base.errors import ApiProblem

FORMATS = ("text", "table", "wide", "json", "yaml")
WATCH_SECONDS = 1.0


def output_option(default: str = "text") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return click.option(
        "-o",
        "--output",
        default=default,
        show_default=True,
        type=click.Choice(FORMATS),
        help="text (or table) and wide are for reading, json and yaml for programs.",
    )


watch_option = click.option("-w", "--watch", is_flag=True, help="Print again when the answer changes, until Ctrl-C.")


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The result of a command: data for programs, text and notes for users, and an exit code."""

    code: int
    data: Any = None  # plain values
    text: str = ""
    notes: tuple[str, ...] = ()  # for users, on standard error
    next: str = ""  # a command that is useful next, for users at a terminal


class CommandError(click.ClickException):
    """What was asked about is not there, or cannot be read: the command itself was right, so no usage is shown."""

    exit_code = 2

    def show(self, file: Any = None) -> None:
        click.echo(f"error: {self.message}", err=True)


def for_programs(output: str) -> bool:
    return output in ("json", "yaml")


def encoded(data: Any, output: str) -> str:
    if output == "json":
        return json.dumps(data, indent=2, ensure_ascii=False)
    import yaml

    return str(yaml.safe_dump(data, sort_keys=False, allow_unicode=True)).rstrip("\n")


def notify(data: Any, text: str, output: str) -> None:
    """Print one answer: plain values for programs, a line for users."""
    click.echo(encoded(data, output) if for_programs(output) else text)


def shown(answers: list[CommandResult], output: str) -> str:
    """Format the answers one below the other; for programs as data, several as a List."""
    found = [answer for answer in answers if answer.data is not None]
    if for_programs(output):
        if not found:
            return ""
        data = found[0].data if len(found) == 1 else {"kind": "List", "items": [answer.data for answer in found]}
        return encoded(data, output)
    return "\n\n".join(answer.text for answer in found)


async def print_answers(ask: Callable[[], Awaitable[list[CommandResult]]], output: str, watch: bool) -> int:
    """Print what `ask` returns, with `watch` after every change; return the highest exit code of the answers."""
    from phalanx.cli.scheduler_client import SchedulerUnavailable

    before: tuple[Any, list[str]] | None = None
    while True:
        try:
            answers = await ask()
            text = shown(answers, output)
            # programs find the notes in the data
            for_users = [answer for answer in answers if answer.data is None or not for_programs(output)]
            notes = list(dict.fromkeys(note for answer in for_users for note in answer.notes))
        except (ApiProblem, SchedulerUnavailable) as problem:
            if not watch or before is None:
                raise
            answers, text, notes = [], "", [f"error: {problem}; trying again"]
        found = [answer.data for answer in answers]  # ages in the text change by themselves
        if (found, notes) != before:
            if before is not None and text:
                click.echo("---" if output == "yaml" else "")
            for note in notes:
                click.echo(note, err=True)
            if text:
                click.echo(text)
            before = (found, notes)
            if not watch and not for_programs(output):
                suggest(next((answer.next for answer in answers if answer.next), ""))
        if not watch:
            return max((answer.code for answer in answers), default=0)
        await asyncio.sleep(WATCH_SECONDS)


def suggest(command: str) -> None:
    """Print the next command to type, if the output is read at a terminal."""
    if command and sys.stdout.isatty() and sys.stderr.isatty():
        click.echo(f"next: {command}", err=True)


def table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Format a table whose columns are as wide as their content, as kubectl does."""
    widths = [max(len(cell) for cell in column) for column in zip(heads, *rows, strict=True)]
    lines = ["   ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
             for row in (heads, *rows)]  # fmt: skip
    return "\n".join(lines)
