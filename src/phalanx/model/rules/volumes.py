"""The volumes of a pod: one source each, and what the common sources must say. Sources of storage vendors are taken as
they come, since nothing mounts them here.
"""

from __future__ import annotations

from collections.abc import Callable

from phalanx.model import names
from phalanx.model.fieldpath import all_invalid, duplicate, forbidden, invalid, not_supported, required
from phalanx.model.kinds import FieldError, Json

_HOST_PATH_TYPES = ("", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket")
_FILE_MODE = "must be a number between 0 and 0777 (octal), both inclusive"
_SHORTEST_TOKEN = 600  # seconds


def errors_of(volumes: list[Json], path: str) -> list[FieldError]:
    """Check that volumes have unique DNS labels as names and one valid source each."""
    errors: list[FieldError] = []
    seen: set[str] = set()
    for index, volume in enumerate(volumes):
        at = f"{path}[{index}]"
        found = False
        for source, value in volume.items():
            if source == "name" or value is None:
                continue
            if found:
                errors.append(forbidden(f"{at}.{source}", "may not specify more than 1 volume type"))
                continue
            found = True
            rule = _SOURCES.get(source)
            if rule is not None:
                errors += rule(value, f"{at}.{source}")
        if not found:
            errors.append(required(at, "must specify a volume type"))
        name = volume.get("name") or ""
        if not name:
            errors.append(required(f"{at}.name"))
        else:
            errors += all_invalid(f"{at}.name", name, names.dns_label(name))
            if name in seen:
                errors.append(duplicate(f"{at}.name", name))
        seen.add(name)
    return errors


def no_back_steps(value: str, path: str) -> list[FieldError]:
    return [invalid(path, value, "must not contain '..'")] if ".." in value.split("/") else []


def descending(value: str, path: str) -> list[FieldError]:
    """Check that a path is relative and does not contain `..` steps."""
    errors = [invalid(path, value, "must be a relative path")] if value.startswith("/") else []
    return errors + no_back_steps(value, path)


def _own_path(value: str, path: str) -> list[FieldError]:
    errors = descending(value, path)
    if value.startswith("..") and not value.startswith("../"):
        errors.append(invalid(path, value, "must not start with '..'"))
    return errors


def _mode(value: int | None, path: str) -> list[FieldError]:
    return [] if value is None or 0 <= value <= 0o777 else [invalid(path, value, _FILE_MODE)]


def _items(items: list[Json] | None, path: str) -> list[FieldError]:
    errors: list[FieldError] = []
    for index, item in enumerate(items or ()):
        at, target = f"{path}[{index}]", item.get("path") or ""
        if not item.get("key"):
            errors.append(required(f"{at}.key"))
        if not target:
            errors.append(required(f"{at}.path"))
        errors += _own_path(target, f"{at}.path") + _mode(item.get("mode"), f"{at}.mode")
    return errors


def _named_files(field: str) -> Callable[[Json, str], list[FieldError]]:
    """Return a check of a volume with files of a ConfigMap or a Secret."""

    def rule(source: Json, path: str) -> list[FieldError]:
        errors = [] if source.get(field) else [required(f"{path}.{field}")]
        errors += _mode(source.get("defaultMode"), f"{path}.defaultMode")
        return errors + _items(source.get("items"), f"{path}.items")

    return rule


def _wanted(*fields: str) -> Callable[[Json, str], list[FieldError]]:
    def rule(source: Json, path: str) -> list[FieldError]:
        return [required(f"{path}.{field}") for field in fields if not source.get(field)]

    return rule


def _host_path(source: Json, path: str) -> list[FieldError]:
    place, kind = source.get("path") or "", source.get("type") or ""
    if not place:
        return [required(f"{path}.path")]
    errors = no_back_steps(place, f"{path}.path")
    if kind not in _HOST_PATH_TYPES:
        errors.append(not_supported(f"{path}.type", kind, _HOST_PATH_TYPES))
    return errors


def _nfs(source: Json, path: str) -> list[FieldError]:
    errors = _wanted("server", "path")(source, path)
    if not str(source.get("path") or "").startswith("/"):
        errors.append(invalid(f"{path}.path", source.get("path") or "", "must be an absolute path"))
    return errors


def _projected(source: Json, path: str) -> list[FieldError]:
    errors = _mode(source.get("defaultMode"), f"{path}.defaultMode")
    for index, part in enumerate(source.get("sources") or ()):
        at = f"{path}.sources[{index}]"
        for kind in ("secret", "configMap"):
            files = part.get(kind)
            if files is not None:
                errors += [] if files.get("name") else [required(f"{at}.{kind}.name")]
                errors += _items(files.get("items"), f"{at}.{kind}.items")
        token = part.get("serviceAccountToken")
        if token is not None:
            seconds = token.get("expirationSeconds")
            if seconds is not None and not _SHORTEST_TOKEN <= seconds <= 1 << 32:
                text = "may not specify a duration less than 10 minutes"
                if seconds > _SHORTEST_TOKEN:
                    text = "may not specify a duration larger than 2^32 seconds"
                errors.append(invalid(f"{at}.serviceAccountToken.expirationSeconds", seconds, text))
            if not token.get("path"):
                errors.append(required(f"{path}.path"))
        if len(part) > 1 and sum(value is not None for value in part.values()) > 1:
            errors.append(forbidden(at, "may not specify more than 1 volume type per source"))
    return errors


_SOURCES: dict[str, Callable[[Json, str], list[FieldError]]] = {
    "configMap": _named_files("name"),
    "csi": _wanted("driver"),
    "hostPath": _host_path,
    "nfs": _nfs,
    "persistentVolumeClaim": _wanted("claimName"),
    "projected": _projected,
    "secret": _named_files("secretName"),
}
