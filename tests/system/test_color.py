"""--color, before or after the command: what NO_COLOR and FORCE_COLOR say, and stronger than both."""

from __future__ import annotations

import os

import click
import pytest
from click.testing import CliRunner

from phalanx.cli.main import COMMANDS, cli
from phalanx.cli.options import color_option
from phalanx.cli.scheduler_client import Colours


@pytest.mark.parametrize(
    ("arguments", "environment", "painted"),
    [
        (["--color", "always", "list"], {}, True),
        (["list", "--color", "always"], {"NO_COLOR": "1"}, True),
        (["list", "--color", "never"], {"FORCE_COLOR": "1"}, False),
        (["list"], {"FORCE_COLOR": "1"}, True),
        (["list", "--color", "auto"], {}, False),  # no terminal here
    ],
)
def test_variables_and_options_choose_the_colours(
    arguments: list[str], environment: dict[str, str], painted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.setenv(name, "")  # put back afterwards
        monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("XDG_STATE_HOME", os.devnull)
    assert CliRunner().invoke(cli, arguments).exit_code == 0
    assert (Colours()("text", "green") != "text") is painted


@pytest.mark.parametrize(
    ("arguments", "environment", "painted"),
    [
        (["--color", "always", "shown"], {}, True),
        (["shown", "--color", "always"], {}, True),
        (["shown"], {"FORCE_COLOR": "1"}, True),
        (["shown"], {}, False),
        (["shown", "--color", "never"], {"FORCE_COLOR": "1"}, False),
    ],
)
def test_colours_that_are_asked_for_reach_a_pipe(
    arguments: list[str], environment: dict[str, str], painted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    @click.command()
    def shown() -> None:
        click.echo(Colours()("text", "green"))

    shown.params.append(color_option(hidden=True))
    group = click.Group(commands={"shown": shown})
    group.params.append(color_option())
    assert ("\x1b[32m" in CliRunner().invoke(group, arguments).output) is painted


def test_every_command_takes_it() -> None:
    context = click.Context(cli)
    for name in COMMANDS:
        command = cli.get_command(context, name)
        assert command is not None
        for each in (command, *(command.commands.values() if isinstance(command, click.Group) else ())):
            assert any(option.name == "color" for option in each.params), each.name
