"""Read how a simulation plans: `profiles[0].reservations` of a scheduler configuration."""

from __future__ import annotations

from pathlib import Path

import yaml

from phalanx.base.errors import ConfigProblem
from phalanx.engine.plugins.config import default_config, read_config
from phalanx.engine.reservations import PlanSettings


def read_settings(path: str | None) -> PlanSettings:
    """Return the planner's settings of a configuration file; None: the defaults."""
    if path is None:
        return PlanSettings.of(default_config().profiles[0].reservations)
    try:
        document = yaml.safe_load(Path(path).read_text())
    except OSError as problem:
        raise ConfigProblem(path, f"cannot be read: {problem.strerror or problem}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as problem:
        raise ConfigProblem(path, f"is not YAML: {problem}") from None
    try:
        config = read_config(document)
    except ConfigProblem as problem:
        raise ConfigProblem(path, str(problem)) from None
    return PlanSettings.of(config.profiles[0].reservations)
