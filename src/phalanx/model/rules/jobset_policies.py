"""Policies of a JobSet, and its other references to ReplicatedJobs: coordinator and shared volume claims."""

from __future__ import annotations

import re
from collections.abc import Callable

from phalanx.model import names
from phalanx.model.fieldpath import (
    all_invalid,
    duplicate,
    forbidden,
    invalid,
    not_supported,
    required,
    too_long,
    too_many,
)
from phalanx.model.kinds import FieldError, Json
from phalanx.model.rules import podspec
from phalanx.model.rules.apps import template_of
from phalanx.model.rules.assembly import not_negative

_STRATEGIES = ("BlockingRecreate", "InPlaceRestart", "Recreate")
_ACTIONS = (
    "FailJobSet",
    "RestartJob",
    "RestartJobAndIgnoreMaxRestarts",
    "RestartJobSet",
    "RestartJobSetAndIgnoreMaxRestarts",
)
_REASONS = (
    "BackoffLimitExceeded",
    "DeadlineExceeded",
    "FailedIndexes",
    "MaxFailedIndexesExceeded",
    "PodFailurePolicy",
)
_RESTARTS_OF_ONE_JOB = ("RestartJob", "RestartJobAndIgnoreMaxRestarts")
_PATH = re.compile(r"[A-Za-z0-9/\-._~%!$&'()*+,;=:]+")  # of a URL, RFC 3986
_MAX_MANAGER = 63  # characters of managedBy
_MAX_CLAIM_POLICIES = 50
_MAX_CLAIM_NAME = 63
_MAX_RESTARTED_REPLICAS = 1024  # entries of status.replicatedJobsStatus[].jobRestarts


def policy_errors(spec: Json) -> list[FieldError]:
    errors: list[FieldError] = []
    known = {item.get("name") for item in spec.get("replicatedJobs") or ()}
    success: Json = spec.get("successPolicy") or {}
    if success.get("operator") not in ("All", "Any"):
        errors.append(not_supported("spec.successPolicy.operator", success.get("operator") or "", ("All", "Any")))
    errors += _targets(success, known, "spec.successPolicy")
    order = (spec.get("startupPolicy") or {}).get("startupPolicyOrder")
    if order not in ("AnyOrder", "InOrder"):
        errors.append(not_supported("spec.startupPolicy.startupPolicyOrder", order or "", ("AnyOrder", "InOrder")))
    failure: Json = spec.get("failurePolicy") or {}
    errors += not_negative(failure, "spec.failurePolicy", "maxRestarts")
    strategy = failure.get("restartStrategy")
    if strategy is not None and strategy not in _STRATEGIES:
        errors.append(not_supported("spec.failurePolicy.restartStrategy", strategy, _STRATEGIES))
    seen: set[str] = set()
    for index, rule in enumerate(failure.get("rules") or ()):
        at = f"spec.failurePolicy.rules[{index}]"
        name = rule.get("name") or ""
        if len(name) > 128 or names.condition_reason(name):
            text = "must match ^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$ and have 1 to 128 characters"
            errors.append(invalid(f"{at}.name", name, text))
        if name in seen:
            errors.append(duplicate(f"{at}.name", name))
        seen.add(name)
        if rule.get("action") not in _ACTIONS:
            errors.append(not_supported(f"{at}.action", rule.get("action") or "", _ACTIONS))
        for number, reason in enumerate(rule.get("onJobFailureReasons") or ()):
            if reason not in _REASONS:
                errors.append(not_supported(f"{at}.onJobFailureReasons[{number}]", reason, _REASONS))
        errors += _targets(rule, known, at)
    return errors


def _targets(holder: Json, known: set[str | None], path: str) -> list[FieldError]:
    return [
        invalid(f"{path}.targetReplicatedJobs[{index}]", target, "must be the name of a replicatedJob")
        for index, target in enumerate(holder.get("targetReplicatedJobs") or ())
        if target not in known
    ]


def restart_errors(spec: Json) -> list[FieldError]:
    """Check what restarts of single Jobs and restarts in place require of the ReplicatedJobs."""
    failure: Json = spec.get("failurePolicy") or {}
    items = list(enumerate(spec.get("replicatedJobs") or ()))
    errors: list[FieldError] = []
    if any(rule.get("action") in _RESTARTS_OF_ONE_JOB for rule in failure.get("rules") or ()):
        text = f"must not exceed {_MAX_RESTARTED_REPLICAS} when a failure policy rule restarts single Jobs"
        errors += [
            invalid(f"spec.replicatedJobs[{index}].replicas", item["replicas"], text)
            for index, item in items
            if (item.get("replicas") or 0) > _MAX_RESTARTED_REPLICAS
        ]
    if failure.get("restartStrategy") != "InPlaceRestart":
        return errors
    for index, item in items:
        path = f"spec.replicatedJobs[{index}].template.spec"
        job: Json = (item.get("template") or {}).get("spec") or {}
        if job.get("backoffLimit") != podspec.MAX_INT32:
            text = f"must be {podspec.MAX_INT32} when restartStrategy is InPlaceRestart"
            errors.append(invalid(f"{path}.backoffLimit", job.get("backoffLimit"), text))
        if job.get("podReplacementPolicy") != "Failed":
            text = "must be Failed when restartStrategy is InPlaceRestart"
            errors.append(invalid(f"{path}.podReplacementPolicy", job.get("podReplacementPolicy"), text))
        if job.get("completions") is None or job.get("completions") != job.get("parallelism"):
            text = "must be set and equal to parallelism when restartStrategy is InPlaceRestart"
            errors.append(invalid(f"{path}.completions", job.get("completions"), text))
    return errors


def coordinator_errors(name: str, spec: Json) -> list[FieldError]:
    """Check that the coordinator is a pod of the set and that its address fits into a label."""
    wanted: Json | None = spec.get("coordinator")
    if wanted is None:
        return []
    path, part = "spec.coordinator", wanted.get("replicatedJob") or ""
    if not part:
        return [required(f"{path}.replicatedJob")]
    items = {item.get("name"): item for item in spec.get("replicatedJobs") or ()}
    if part not in items:
        return [invalid(f"{path}.replicatedJob", part, "must be the name of a replicatedJob")]
    job: Json = (items[part].get("template") or {}).get("spec") or {}
    index, pod = int(wanted.get("jobIndex") or 0), int(wanted.get("podIndex") or 0)
    replicas = items[part].get("replicas")
    if not 0 <= index < (1 if replicas is None else replicas):
        return [invalid(f"{path}.jobIndex", index, f"must be the index of a Job of replicatedJob {part}")]
    if job.get("completionMode") != "Indexed" or job.get("completions") is None:
        return [invalid(f"{path}.replicatedJob", part, "must be an Indexed Job that sets completions")]
    if not 0 <= pod < job["completions"]:
        return [invalid(f"{path}.podIndex", pod, f"must be a completion index of replicatedJob {part}")]
    domain = (spec.get("network") or {}).get("subdomain") or name
    address = f"{name}-{part}-{index}-{pod}.{domain}"
    text = f"its address {address!r} is no valid label value: "
    return [invalid(path, part, text + problem) for problem in names.label_value(address)[:1]]


def manager_errors(manager: str | None, path: str) -> list[FieldError]:
    """Check managedBy: a domain, a slash and a path, of at most 63 characters."""
    if manager is None:
        return []
    errors: list[FieldError] = []
    domain, slash, rest = manager.partition("/")
    if not manager:
        errors.append(required(path))
    elif not slash or not domain or not rest:
        errors.append(invalid(path, manager, 'must be a domain-prefixed path (such as "acme.io/foo")'))
    else:
        errors += all_invalid(path, domain, names.dns_subdomain(domain))
        if not _PATH.fullmatch(rest):
            errors.append(invalid(path, rest, f"must match {_PATH.pattern}"))
    if len(manager) > _MAX_MANAGER:
        errors.append(too_long(path, _MAX_MANAGER))
    return errors


def claim_errors(name: str, spec: Json) -> list[FieldError]:
    """Check the volume claims that the whole set shares."""
    path, policies = "spec.volumeClaimPolicies", spec.get("volumeClaimPolicies") or []
    errors: list[FieldError] = []
    if len(policies) > _MAX_CLAIM_POLICIES:
        errors.append(too_many(path, len(policies), _MAX_CLAIM_POLICIES))
    seen: set[str] = set()
    for index, policy in enumerate(policies):
        at, templates = f"{path}[{index}]", policy.get("templates") or []
        if len(templates) > _MAX_CLAIM_POLICIES:
            errors.append(too_many(f"{at}.templates", len(templates), _MAX_CLAIM_POLICIES))
        kept = (policy.get("retentionPolicy") or {}).get("whenDeleted")
        if kept not in ("Delete", "Retain"):
            errors.append(not_supported(f"{at}.retentionPolicy.whenDeleted", kept or "", ("Delete", "Retain")))
        for number, template in enumerate(templates):
            where, meta = f"{at}.templates[{number}].metadata", template.get("metadata") or {}
            claim = meta.get("name") or ""
            if claim in seen:
                errors.append(duplicate(f"{where}.name", claim))
            seen.add(claim)
            errors += all_invalid(f"{where}.name", claim, names.dns_subdomain(claim))
            if meta.get("namespace"):
                errors.append(forbidden(f"{where}.namespace", "claims are created in the namespace of the JobSet"))
            if len(f"{claim}-{name}") > _MAX_CLAIM_NAME:
                text = f"the claim's name {claim}-{name} must have at most {_MAX_CLAIM_NAME} characters"
                errors.append(invalid(f"{where}.name", claim, text))
            errors += _mount_errors(claim, spec, f"{where}.name")
    return errors


def _mount_errors(claim: str, spec: Json, path: str) -> list[FieldError]:
    errors: list[FieldError] = []
    mounted = False
    for index, item in enumerate(spec.get("replicatedJobs") or ()):
        pod = template_of((item.get("template") or {}).get("spec"))
        for number, volume in enumerate(pod.get("volumes") or ()):
            if volume.get("name") == claim:
                at = f"spec.replicatedJobs[{index}].template.spec.template.spec.volumes[{number}].name"
                errors.append(invalid(at, claim, "is the name of a shared claim in volumeClaimPolicies"))
        every = [*(pod.get("containers") or ()), *(pod.get("initContainers") or ())]
        mounted |= any(mount.get("name") == claim for each in every for mount in each.get("volumeMounts") or ())
    if not mounted:
        errors.append(invalid(path, claim, "must be mounted by a container of a replicatedJob"))
    return errors


def existing_claim_errors(obj: Json, known: Callable[[str], Json | None]) -> list[FieldError]:
    """Check shared claims that exist already; known: returns the claim of a name."""
    name = (obj.get("metadata") or {}).get("name") or ""
    errors: list[FieldError] = []
    for index, policy in enumerate((obj.get("spec") or {}).get("volumeClaimPolicies") or ()):
        for number, template in enumerate(policy.get("templates") or ()):
            claim = f"{(template.get('metadata') or {}).get('name') or ''}-{name}"
            found = known(claim)
            if found is None:
                continue
            at, there = f"spec.volumeClaimPolicies[{index}]", found.get("spec") or {}
            wanted: Json = template.get("spec") or {}
            if any(there.get(field) != value for field, value in wanted.items()):
                text = f"differs from that of PersistentVolumeClaim {claim}, which exists"
                errors.append(invalid(f"{at}.templates[{number}].spec", wanted, text))
            if (policy.get("retentionPolicy") or {}).get("whenDeleted") != "Retain":
                text = f"must be Retain: PersistentVolumeClaim {claim} exists"
                kept = (policy.get("retentionPolicy") or {}).get("whenDeleted")
                errors.append(invalid(f"{at}.retentionPolicy.whenDeleted", kept, text))
    return errors
