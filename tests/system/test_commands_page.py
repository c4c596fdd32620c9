"""docs/commands.md is what the commands say about themselves; every command says what it is for and how it ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from phalanx.base.errors import ConfigProblem
from phalanx.cli.main import COMMANDS, EXIT_CODES, cli


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_command_and_option_says_what_it_is_for(name: str) -> None:
    context = click.Context(cli, info_name="phalanx")
    command = cli.get_command(context, name)
    assert command is not None and command.help
    for each in command.commands.values() if isinstance(command, click.Group) else [command]:
        assert "Example" in (each.help or ""), f"{each.name}: one example at least"
        for option in each.params:
            if isinstance(option, click.Option):
                assert option.help, f"{name} {option.opts}"


def test_help_has_the_exit_codes_and_is_narrow() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "phalanx", "--help"], text=True, capture_output=True, timeout=60, check=True,
        env={**os.environ, "COLUMNS": "80"},
    )  # fmt: skip
    assert "Exit codes:" in done.stdout and all(f"  {code}" in done.stdout for code, _ in EXIT_CODES)
    assert all(len(line) <= 80 for line in done.stdout.splitlines())


RUNNING = {"up", "apiserver", "scheduler", "controllers", "nodes"}  # until they are stopped: they print `ready`
SCRIPTS = {"completion", "bench"}  # a shell's script; whatever a script of a checkout prints


@pytest.mark.parametrize("name", sorted(set(COMMANDS) - RUNNING - SCRIPTS))
def test_whatever_answers_answers_programs_too(name: str) -> None:
    command = cli.get_command(click.Context(cli, info_name="phalanx"), name)
    assert command is not None
    for each in command.commands.values() if isinstance(command, click.Group) else (command,):
        chosen = next(option for option in each.params if option.name == "output")
        assert isinstance(chosen.type, click.Choice) and {"json", "yaml", "table", "wide"} <= set(chosen.type.choices)


TALKING = {"why", "whatif", "plan", "demand", "top", "check-cluster", "dashboard", "backup", "scheduler", "controllers"}
LOCAL = {
    "status": [],
    "down": [],
    "kubeconfig": [],
    "restore": ["--as-is"],
    "user list": [],
    "user add": ["jane"],
    "user remove": ["jane"],
}


@pytest.mark.parametrize("name", sorted(TALKING | {"nodes"}))
def test_every_command_that_talks_to_a_cluster_names_it_in_the_same_ways(name: str, tmp_path: Path) -> None:
    command = cli.get_command(click.Context(cli, info_name="phalanx"), name)
    assert command is not None
    named = {opt for option in command.params for opt in option.opts}
    assert {"--name", "--data", "--kubeconfig", "--context"} <= named
    rest = {"why": ["pod/x"], "plan": ["pod/x"], "whatif": ["-f", "x"], "backup": [str(tmp_path / "x")]}.get(name, [])
    home = {**os.environ, "HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path)}
    run = CliRunner(env=home).invoke
    missing = run(cli, [name, *rest, "--name", "ghost"])
    assert isinstance(missing.exception, ConfigProblem) and "ghost: there is no cluster here" in str(missing.exception)
    both = run(cli, [name, *rest, "--kubeconfig", "a", "--data", "b"])
    assert "each says which cluster" in both.output + str(both.exception)


@pytest.mark.parametrize("name", sorted(LOCAL))
def test_every_command_about_a_local_cluster_names_it_in_the_same_ways(name: str, tmp_path: Path) -> None:
    run = CliRunner(env={**os.environ, "HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path)}).invoke
    words = [*name.split(), *LOCAL[name]]
    for option, value in (("--name", "ghost"), ("--data", str(tmp_path)), ("--kubeconfig", str(tmp_path / "none"))):
        missing = run(cli, [*words, option, value])
        assert isinstance(missing.exception, ConfigProblem), missing.output
    both = run(cli, [*words, "--context", "a", "--data", "b"])
    assert both.exit_code == 2 and "each says which cluster" in both.output
    empty = run(cli, [*words, "--name", ""])
    assert empty.exit_code == 2 and "an empty name" in empty.output


@pytest.mark.parametrize("name", COMMANDS)
def test_no_two_options_of_a_command_share_a_parameter(name: str) -> None:
    """Otherwise the value of one is taken for the other: `--cluster-name` of the scheduler was read as `--name`."""
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    for each in (command, *(command.commands.values() if isinstance(command, click.Group) else ())):
        names = [option.name for option in each.params]
        assert len(names) == len(set(names)), sorted(names)
