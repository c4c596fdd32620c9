"""Commands that pages tell people to type exist, with the options they are typed with."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import pytest

from phalanx.cli.kubectl import VERBS
from phalanx.cli.main import cli

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "examples" / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
SEPARATORS = {"|", "||", "&&", ";", ">", ">>", "<", "&", "2>", "(", ")", "<<"}


def typed(page: Path) -> Iterator[tuple[str, list[str]]]:
    """Lines of blocks and `code` in sentences, word by word, cut where the shell would begin another command."""
    fenced = False
    lines: list[str] = []
    for line in page.read_text().splitlines():
        if line.startswith("```"):
            fenced = not fenced
        elif fenced or line.startswith("    "):
            lines.append(line)
        else:
            lines += re.findall(r"`((?:phalanx|kubectl) [a-z][^`]*)`", line)
    for line in lines:
        if "[OPTIONS]" in line:  # how a command is used, not one
            continue
        text = line.strip().removeprefix("$ ").removeprefix("- run: ").removeprefix("run: ")
        if not re.search(r"(?:^|&& |\| |; |\$\()(?:[A-Z]+=\S+ )*(?:\S*bin/)?(phalanx|kubectl) [a-z-]", text):
            continue
        lexer = shlex.shlex(text.replace("$(", " ; ").replace("…", "x"), posix=True, punctuation_chars="|&;<>()")
        lexer.whitespace_split = True
        try:
            words = list(lexer)
        except ValueError:  # a quote that goes on in the next line
            words = text.split()
        command: list[str] = []
        for word in [*words, ";"]:
            if word in SEPARATORS or set(word) <= set("|&;<>()"):
                while command and re.fullmatch(r"[A-Z_]+=\S*", command[0]):
                    command.pop(0)
                if len(command) > 1 and command[0].rpartition("/")[2] in ("phalanx", "kubectl"):
                    yield text, [command[0].rpartition("/")[2], *command[1:]]
                command = []
            else:
                command.append(word)


def commands(program: str) -> list[tuple[str, str, tuple[str, ...]]]:
    found = {}
    for page in PAGES:
        for line, words in typed(page):
            if words[0] == program:
                found[page.name, tuple(words)] = (page.name, line, tuple(words[1:]))
    return list(found.values())


def problem(command: click.Command, name: str, words: list[str], parent: click.Context) -> str:
    """ "" if the words can be read as this command's."""
    context = click.Context(command, info_name=name, parent=parent, **command.context_settings)
    if isinstance(command, click.Group):
        while words and words[0].startswith("-"):
            words = words[2:] if words[0] == "--color" else words[1:]
        below = command.get_command(context, words[0]) if words else None
        if below is None:
            return f"there is no {context.command_path} {' '.join(words[:1])}" if words else ""
        return problem(below, words[0], words[1:], context)
    try:
        given, _, _ = command.make_parser(context).parse_args(words)
        for parameter in command.params:
            if isinstance(parameter.type, click.Choice) and isinstance(value := given.get(parameter.name or ""), str):
                parameter.type.convert(value, parameter, context)
    except click.UsageError as wrong:
        return wrong.format_message()
    return ""


def test_there_are_commands_to_check() -> None:
    assert len(commands("phalanx")) > 60 and len(commands("kubectl")) > 30


def test_phalanx_commands_of_the_pages_exist() -> None:
    wrong = []
    for page, line, words in commands("phalanx"):
        announced = problem(cli, "phalanx", list(words), click.Context(cli))
        if announced:
            wrong.append(f"{page}: {line}\n    {announced}")
    assert not wrong, "\n".join(wrong)


@cache
def help_of(verbs: tuple[str, ...]) -> str:
    done = subprocess.run(["kubectl", *verbs, "--help"], capture_output=True, text=True, check=False, timeout=30)
    return done.stdout if done.returncode == 0 else ""


@cache
def general_options() -> str:
    return subprocess.run(["kubectl", "options"], capture_output=True, text=True, check=True, timeout=30).stdout


def test_kubectl_commands_of_the_pages_exist() -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    wrong = []
    for page, line, words in commands("kubectl"):
        rest = list(words)
        while rest and rest[0].startswith("-"):  # -n NAMESPACE, --context NAME before the verb
            rest = rest[1:] if "=" in rest[0] else rest[2:]
        if rest[0] == "phalanx":  # the plugin
            asked = rest[1].split("|") if len(rest) > 1 else []
            wrong += [f"{page}: {line}\n    kubectl phalanx has no {verb}" for verb in asked if verb not in VERBS]
            continue
        verbs = tuple(rest[: 2 if rest[0] in ("create", "rollout", "config", "auth", "top") else 1])
        if len(verbs) == 2 and verbs[1].startswith("-"):
            verbs = verbs[:1]
        text = help_of(verbs)
        if not text or "Unknown help topic" in text:
            wrong.append(f"{page}: {line}\n    kubectl has no {' '.join(verbs)}")
            continue
        for word in words:
            option = re.match(r"(--[a-z][a-z-]*|-[a-zA-Z])(?:=|$)", word)
            if option and not re.search(rf"(?<!\S){re.escape(option[1])}[=,:\s]", text + general_options()):
                wrong.append(f"{page}: {line}\n    kubectl {' '.join(verbs)} has no {option[1]}")
    assert not wrong, "\n".join(wrong)
