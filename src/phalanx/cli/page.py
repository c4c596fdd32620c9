"""Writes docs/commands.md from the commands themselves: `python -m phalanx.cli.page`. A test fails when it is stale."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator

import click

from phalanx.cli.main import COMMANDS, EXIT_CODES, cli

_HEAD = """# Commands

Every command and option, written from the code by `make docs`. Commands that print data take
`-o text|table|wide|json|yaml`: `table` is another word for `text`, `wide` leaves nothing out, `json` and `yaml` are
for programs. Colours appear on terminals only, not with `NO_COLOR`, and with `FORCE_COLOR` elsewhere too;
`--color auto|always|never`, before or after any command, is stronger than both. Progress is
on a terminal's standard error after two seconds. `phalanx completion bash|zsh|fish` prints what makes a shell complete
commands, kinds and names.

## Exit codes

| code | meaning |
|---|---|
"""


def page() -> str:
    lines = [_HEAD + "\n".join(f"| {code} | {meaning} |" for code, meaning in EXIT_CODES)]
    lines.append("")
    context = click.Context(cli, info_name="phalanx")
    for name in COMMANDS:
        command = cli.get_command(context, name)
        assert command is not None
        lines += _command(command, name, context, 2)
    return "\n".join(lines).rstrip() + "\n"


def _command(command: click.Command, name: str, parent: click.Context, level: int) -> Iterator[str]:
    context = click.Context(command, info_name=name, parent=parent)
    yield f"{'#' * level} {context.command_path}"
    yield ""
    yield "```"
    yield f"{context.command_path} {' '.join(command.collect_usage_pieces(context))}".rstrip()
    yield "```"
    yield ""
    yield from _words(command.help or "")
    options = [
        parameter for parameter in command.params if isinstance(parameter, click.Option) and not parameter.hidden
    ]
    if options:
        yield "| option | meaning |"
        yield "|---|---|"
        for option in options:
            record = option.get_help_record(context)
            assert record is not None
            flags, meaning = record
            yield f"| `{_cell(flags)}` | {_cell(meaning)} |"
        yield ""
    if isinstance(command, click.Group):
        for inner in command.list_commands(context):
            below = command.get_command(context, inner)
            assert below is not None
            yield from _command(below, inner, context, level + 1)


def _words(text: str) -> Iterator[str]:
    """Paragraphs as they are; what click must not wrap (\\b) becomes a block."""
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
            yield " ".join(line.strip() for line in lines)
        yield ""


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", "\\|").strip()


if __name__ == "__main__":
    click.echo(page(), nl=False)
