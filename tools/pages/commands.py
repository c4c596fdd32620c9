"""Write docs/commands.md from the commands themselves."""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Iterator

import click

from phalanx.cli.main import COMMANDS, EXIT_CODES, cli
from phalanx.cli.up import up

_HEAD = """# Commands

Every command and option, written from the code by `make docs`. Commands that print data take
`-o text|table|wide|json|yaml`: `table` is another word for `text`, `wide` shows everything, `json` and `yaml` are
for programs. Colours appear on terminals only, not with `NO_COLOR`, and with `FORCE_COLOR` elsewhere too;
`--color auto|always|never` has precedence over both. Progress is printed on a terminal's standard error after two
seconds. `phalanx completion bash|zsh|fish` prints a script for shell completion.

## Exit codes

| code | meaning |
|---|---|
"""
_COMMON_FROM = 4  # an option of at least so many commands, with the same words, is described once


def page() -> str:
    lines = [_HEAD + "\n".join(f"| {code} | {meaning} |" for code, meaning in EXIT_CODES), ""]
    context = click.Context(cli, info_name="phalanx")
    commands = [(name, command) for name in COMMANDS if (command := cli.get_command(context, name)) is not None]
    uses = Counter(row for name, command in commands for row in _all_rows(command, name, context))
    often = {row[0]: row for row, count in reversed(uses.most_common()) if count >= _COMMON_FROM}  # one row per flag
    common = [row for row in uses if often.get(row[0]) == row]
    lines += ["## Common options", "", *_table(common), ""]
    for name, command in commands:
        lines += _command(command, name, context, 2, common)
    return "\n".join(lines).rstrip() + "\n"


def _command(
    command: click.Command, name: str, parent: click.Context, level: int, common: list[tuple[str, str]]
) -> Iterator[str]:
    context = click.Context(command, info_name=name, parent=parent)
    yield f"{'#' * level} {context.command_path}"
    yield ""
    if arguments := [piece for piece in command.collect_usage_pieces(context) if piece != "[OPTIONS]"]:
        yield f"Arguments: `{' '.join(arguments)}`"
        yield ""
    yield from _words(command.help or "")
    rows = _rows(command, context)
    as_up = [] if name == "up" else [row for row in rows if row in _rows(up, parent) and row not in common]
    if own := [row for row in rows if row not in common and row not in as_up]:
        yield from _table(own)
        yield ""
    for title, shared in (("As for `phalanx up`", as_up), ("Common options", common)):
        flags = [f"`{row[0].split()[0].rstrip(',')}`" for row in rows if row in shared]
        if flags:
            yield from textwrap.wrap(f"{title}: {', '.join(flags)}.", 120, break_on_hyphens=False)
            yield ""
    if isinstance(command, click.Group):
        for inner in command.list_commands(context):
            below = command.get_command(context, inner)
            assert below is not None
            yield from _command(below, inner, context, level + 1, common)


def _all_rows(command: click.Command, name: str, parent: click.Context) -> Iterator[tuple[str, str]]:
    context = click.Context(command, info_name=name, parent=parent)
    yield from _rows(command, context)
    if isinstance(command, click.Group):
        for inner, below in command.commands.items():
            yield from _all_rows(below, inner, context)


def _rows(command: click.Command, context: click.Context) -> list[tuple[str, str]]:
    """Return the options of a command: how they are written, and what they mean."""
    records = [
        option.get_help_record(context)
        for option in command.params
        if isinstance(option, click.Option) and not option.hidden
    ]
    return [(_cell(record[0]), _cell(record[1])) for record in records if record is not None]


def _table(rows: list[tuple[str, str]]) -> Iterator[str]:
    yield "| option | meaning |"
    yield "|---|---|"
    for flags, meaning in rows:
        yield f"| `{flags}` | {meaning} |"


def _words(text: str) -> Iterator[str]:
    """Yield paragraphs as they are; a paragraph that click must not wrap (\\b) becomes a code block."""
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        lines = paragraph.splitlines()
        if lines and lines[0].strip() == "\b":
            title, *rest = lines[1:]
            yield title.strip()
            yield ""
            yield "```"
            yield textwrap.dedent("\n".join(rest))
            yield "```"
        else:
            yield from textwrap.wrap(" ".join(line.strip() for line in lines), 120, break_on_hyphens=False)
        yield ""


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", "\\|").strip()
