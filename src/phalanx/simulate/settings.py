"""Read the scheduler configuration of a simulation."""

from __future__ import annotations

from pathlib import Path

import yaml

from phalanx.base.errors import ConfigProblem
from phalanx.engine.plugins.config import SchedulerConfig, default_config, read_config


def read_settings(path: str | None) -> SchedulerConfig:
    """Return the configuration of a file; None: the defaults."""
    if path is None:
        return default_config()
    try:
        document = yaml.safe_load(Path(path).read_text())
    except OSError as problem:
        raise ConfigProblem(path, f"cannot be read: {problem.strerror or problem}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as problem:
        raise ConfigProblem(path, f"is not YAML: {problem}") from None
    try:
        return read_config(document)
    except ConfigProblem as problem:
        raise ConfigProblem(path, str(problem)) from None
