"""`--color auto|always|never`, before or after the name of any command: the same as NO_COLOR and FORCE_COLOR."""

from __future__ import annotations

import os
from typing import Any

import click

CHOICES = ("auto", "always", "never")


def choose(context: click.Context, _option: click.Parameter, chosen: str) -> str:
    """Set the environment variables that this process and its children respect, and what `click.echo` strips."""
    if chosen != "auto":
        wanted, other = ("FORCE_COLOR", "NO_COLOR") if chosen == "always" else ("NO_COLOR", "FORCE_COLOR")
        os.environ[wanted] = "1"
        os.environ.pop(other, None)
    if os.environ.get("NO_COLOR"):
        context.color = False
    elif os.environ.get("FORCE_COLOR"):
        context.color = True  # otherwise colours are removed where the output is no terminal
    return chosen


def color_option(**more: Any) -> click.Option:
    return click.Option(
        ["--color"],
        type=click.Choice(CHOICES),
        default="auto",
        show_default=True,
        expose_value=False,
        is_eager=True,
        callback=choose,
        help="Colours: auto is on a terminal, and not with NO_COLOR.",
        **more,
    )
