"""Name generated scheduling objects: deterministic for a workload, short enough, and without collisions."""

from __future__ import annotations

import hashlib

from phalanx.base.ids import fnv1a_32, safe_encode

LABEL, SUBDOMAIN = 63, 253  # longest DNS label and DNS subdomain


def _fnv(text: str) -> str:
    return safe_encode(str(fnv1a_32(text.encode())))


def _sha(text: str) -> str:
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()[:10]


# -- Kubernetes 1.37, Job controller ---------------------------------------------------------------------------------


def by_uid(name: str, uid: str) -> str:
    """Name the Workload of one object: a recreated object gets another Workload."""
    suffix = _fnv(f"(types.UID){uid}")
    return f"{name[: SUBDOMAIN - len(suffix) - 1]}-{suffix}"


def of_template(workload: str, template: str) -> str:
    """Name a PodGroup of a Workload's template. If both parts are long, each keeps half of the length."""
    suffix = _fnv(workload + template)
    room = SUBDOMAIN - len(suffix) - 2
    if len(workload) + len(template) > room:
        half = room // 2
        if len(workload) <= half:
            template = template[: room - len(workload)]
        elif len(template) <= half:
            workload = workload[: room - len(template)]
        else:
            workload, template = workload[: room - half], template[:half]
    return f"{workload}-{template}-{suffix}"


# -- JobSet, KEP-969 -------------------------------------------------------------------------------------------------


def hashed(prefix: str, kind: str, namespace: str, identity: str) -> str:
    """Return a readable prefix and ten hex digits of the identity, at most a DNS label long."""
    digits = _sha(f"{kind}/{namespace}/{identity}")
    return f"{prefix[: LABEL - 11]}-{digits}"


def joined(owner: str, template: str) -> str:
    """Return `<owner>-<template>`, or a hash in place of the template where that exceeds a DNS label."""
    name = f"{owner}-{template}"
    return name if len(name) <= LABEL else f"{owner[: LABEL - 11]}-{_sha(f'{owner}/{template}')}"


def fitting(name: str, limit: int = LABEL) -> str:
    """Return the name, or its beginning and a hash if it is too long."""
    return name if len(name) <= limit else f"{name[: limit - 11]}-{_sha(name)}"
