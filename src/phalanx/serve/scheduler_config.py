"""Read the configuration of a scheduler (KubeSchedulerConfiguration) from a file."""

from __future__ import annotations

import logging
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from phalanx.base.errors import ApiProblem, ConfigProblem
from phalanx.engine.plugins.config import SchedulerConfig, read_config
from phalanx.model import yaml_body

log = logging.getLogger(__name__)


def installed_plugins() -> list[str]:
    """Return the names of plugins in installed packages."""
    return sorted({point.name for point in entry_points(group="phalanx.plugins")})


def load_config(path: str, scheduler_name: str = "") -> tuple[SchedulerConfig, dict[str, Any]]:
    """Read a KubeSchedulerConfiguration file. `scheduler_name`: replaces the name of the only profile."""
    document: dict[str, Any] = {}
    if path:
        try:
            text = Path(path).read_bytes()
        except OSError as error:
            raise ConfigProblem("--config", f"cannot read {path}: {error.strerror}") from error
        try:
            document = yaml_body.read(text) or {}
        except ApiProblem as error:
            raise ConfigProblem("--config", f"{path} cannot be used: {error}") from error
        if not isinstance(document, dict):
            raise ConfigProblem("--config", f"{path} is not a KubeSchedulerConfiguration")
    else:
        document = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
    if scheduler_name:
        profiles = document.setdefault("profiles", [{}])
        if not isinstance(profiles, list) or len(profiles) != 1 or not isinstance(profiles[0], dict):
            raise ConfigProblem("--scheduler-name", "needs a configuration with exactly one profile")
        profiles[0]["schedulerName"] = scheduler_name
    try:
        config = read_config(document, installed_plugins())
    except ConfigProblem as problem:
        raise ConfigProblem("--config", f"{path}: {problem}") from None
    for note in config.notes():
        log.warning("%s: %s", path, note)
    return config, document
