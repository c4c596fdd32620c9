"""Deployment, ReplicaSet, StatefulSet, DaemonSet: defaults, selectors that match their templates, fixed fields."""

from __future__ import annotations

from phalanx.model import names
from phalanx.model.annotation_values import natural
from phalanx.model.fieldpath import all_invalid, forbidden, invalid, not_supported, required
from phalanx.model.gates import Gates
from phalanx.model.kinds import FieldError, Json
from phalanx.model.rules import placement, podspec, podspec_defaults
from phalanx.model.rules.assembly import OwnRules, at_most_all, is_zero, number_or_percent, status_counts
from phalanx.model.rules.storage import volume_claim_errors
from phalanx.model.selectors import BadSelector, from_selector


def template_of(holder: Json | None) -> Json:
    return ((holder or {}).get("template") or {}).get("spec") or {}


def drop_from_template(gates: Gates, new: Json, old: Json | None) -> None:
    """Drop group membership from a pod template while its gate is off."""
    template = (new.get("spec") or {}).get("template") or {}
    podspec.drop_gated(gates, template.get("spec"), template_of((old or {}).get("spec")))


def selector_errors(spec: Json, kind: str, path: str = "spec") -> list[FieldError]:
    """Check that a selector exists, is not empty and matches the labels of its own template."""
    selector = spec.get("selector")
    labels = ((spec.get("template") or {}).get("metadata") or {}).get("labels")
    mismatch = invalid(f"{path}.template.metadata.labels", labels, "`selector` does not match template `labels`")
    if selector is None:
        return [required(f"{path}.selector"), mismatch]
    errors = placement.label_selector(selector, f"{path}.selector")
    if not selector.get("matchLabels") and not selector.get("matchExpressions"):
        errors.append(invalid(f"{path}.selector", selector, f"empty selector is invalid for {kind}"))
        return errors
    try:
        fits = from_selector(selector).matches(labels or {})
    except BadSelector:
        return [*errors, invalid(f"{path}.selector", selector, "invalid label selector")]
    return errors if fits or errors else [mismatch]


def long_running(spec: Json, kind: str) -> list[FieldError]:
    """Check the template of pods that run without end (restartPolicy Always, no deadline)."""
    path = "spec.template"
    errors = podspec.template_errors(_judged_template(spec), path)
    pod = template_of(spec)
    restart = pod.get("restartPolicy")
    if restart in ("OnFailure", "Never"):
        errors.append(not_supported(f"{path}.spec.restartPolicy", restart, ("Always",)))
    if pod.get("activeDeadlineSeconds") is not None:
        text = f"activeDeadlineSeconds in {kind} is not Supported"
        errors.append(forbidden(f"{path}.spec.activeDeadlineSeconds", text))
    return errors


def _judged_template(spec: Json) -> Json:
    """Return the template to validate, which for a StatefulSet is that of its pods.

    Every claim template replaces the volume of its name, and the set sets hostname and subdomain.
    """
    template: Json = spec.get("template") or {}
    if "serviceName" in spec or spec.get("volumeClaimTemplates"):
        named = {"hostname", "subdomain"}
        kept = {key: value for key, value in (template.get("spec") or {}).items() if key not in named}
        template = {**template, "spec": kept}
    claims = [(claim.get("metadata") or {}).get("name") or "" for claim in spec.get("volumeClaimTemplates") or ()]
    if not claims:
        return template
    pod: Json = template.get("spec") or {}
    volumes = [{"name": name, "persistentVolumeClaim": {"claimName": name}} for name in claims]
    volumes += [volume for volume in pod.get("volumes") or () if volume.get("name") not in claims]
    return {**template, "spec": {**pod, "volumes": volumes}}


# -- Deployment ------------------------------------------------------------------------------------------------------


def _deployment_default(obj: Json) -> None:
    spec: Json = obj.setdefault("spec", {})
    podspec_defaults.template(spec)
    if spec["strategy"]["type"] == "RollingUpdate":
        rolling: Json = spec["strategy"].setdefault("rollingUpdate", {})
        rolling.setdefault("maxUnavailable", "25%")
        rolling.setdefault("maxSurge", "25%")


def _strategy(strategy: Json) -> list[FieldError]:
    path = "spec.strategy"
    kind, rolling = strategy.get("type"), strategy.get("rollingUpdate")
    if kind == "Recreate":
        if rolling is not None:
            text = "may not be specified when strategy `type` is 'Recreate'"
            return [forbidden(f"{path}.rollingUpdate", text)]
        return []
    if kind != "RollingUpdate":
        return [not_supported(path, strategy, ("Recreate", "RollingUpdate"))]
    found: Json = rolling or {}
    at = f"{path}.rollingUpdate"
    errors = number_or_percent(found.get("maxUnavailable"), f"{at}.maxUnavailable")
    errors += number_or_percent(found.get("maxSurge"), f"{at}.maxSurge")
    if is_zero(found.get("maxUnavailable")) and is_zero(found.get("maxSurge")):
        text = "may not be 0 when `maxSurge` is 0"
        errors.append(invalid(f"{at}.maxUnavailable", found.get("maxUnavailable"), text))
    return errors + at_most_all(found.get("maxUnavailable"), f"{at}.maxUnavailable")


def _deployment_errors(obj: Json) -> list[FieldError]:
    spec: Json = obj.get("spec") or {}
    errors = selector_errors(spec, "deployment") + long_running(spec, "ReplicaSet")
    errors += _strategy(spec.get("strategy") or {})
    deadline = spec.get("progressDeadlineSeconds")
    if deadline is not None and deadline <= (spec.get("minReadySeconds") or 0):
        errors.append(invalid("spec.progressDeadlineSeconds", deadline, "must be greater than minReadySeconds"))
    return errors


def deployment(gates: Gates) -> OwnRules:
    return OwnRules(
        default=_deployment_default,
        errors=_deployment_errors,
        if_changed=True,
        status=status_counts,
        prepare=lambda new, old: drop_from_template(gates, new, old),
        declared_first=True,
    )


# -- ReplicaSet ------------------------------------------------------------------------------------------------------


def _template_default(obj: Json) -> None:
    podspec_defaults.template(obj["spec"])


def _replica_set_errors(obj: Json) -> list[FieldError]:
    spec: Json = obj.get("spec") or {}
    return selector_errors(spec, "replicaset") + long_running(spec, "ReplicaSet")


def replica_set(gates: Gates) -> OwnRules:
    return OwnRules(
        default=_template_default,
        errors=_replica_set_errors,
        if_changed=True,
        status=status_counts,
        prepare=lambda new, old: drop_from_template(gates, new, old),
    )


# -- ReplicationController ------------------------------------------------------------------------------------------


def _replication_controller_default(obj: Json) -> None:
    """Default a ReplicationController: selector and labels come from the labels of its template.

    ReplicaSet, which is newer, does not do this.
    """
    spec: Json = obj.setdefault("spec", {})
    if spec.get("template") is not None:
        podspec_defaults.template(spec)
        labels = ((spec["template"].get("metadata")) or {}).get("labels")
        if labels:
            if not spec.get("selector"):
                spec["selector"] = dict(labels)
            metadata: Json = obj.setdefault("metadata", {})
            if not metadata.get("labels"):
                metadata["labels"] = dict(labels)


def _replication_controller_errors(obj: Json) -> list[FieldError]:
    spec: Json = obj.get("spec") or {}
    errors: list[FieldError] = []
    selector: Json = spec.get("selector") or {}
    if not selector:
        errors.append(required("spec.selector"))
    if spec.get("template") is None:
        return [*errors, required("spec.template")]
    labels = ((spec["template"].get("metadata")) or {}).get("labels") or {}
    if not selector.items() <= labels.items():
        text = "`selector` does not match template `labels`"
        errors.append(invalid("spec.template.metadata.labels", labels, text))
    return errors + long_running(spec, "ReplicationController")


def replication_controller(gates: Gates) -> OwnRules:
    return OwnRules(
        default=_replication_controller_default,
        errors=_replication_controller_errors,
        if_changed=True,
        status=status_counts,
        prepare=lambda new, old: drop_from_template(gates, new, old),
    )


# -- StatefulSet -----------------------------------------------------------------------------------------------------


def _stateful_set_default(obj: Json) -> None:
    spec: Json = obj.setdefault("spec", {})
    podspec_defaults.template(spec)
    strategy: Json = spec.setdefault("updateStrategy", {})
    if not strategy.get("type"):
        strategy["type"] = "RollingUpdate"
        strategy.setdefault("rollingUpdate", {})
    rolling: Json | None = strategy.get("rollingUpdate")  # a manifest that sets only the type gets no more defaults
    if strategy["type"] == "RollingUpdate" and rolling is not None:
        rolling.setdefault("partition", 0)
        rolling.setdefault("maxUnavailable", 1)
    retention: Json = spec.setdefault("persistentVolumeClaimRetentionPolicy", {})
    retention.setdefault("whenDeleted", "Retain")
    retention.setdefault("whenScaled", "Retain")
    for claim in spec.get("volumeClaimTemplates") or ():
        claim.setdefault("apiVersion", "v1")
        claim.setdefault("kind", "PersistentVolumeClaim")
        claim.setdefault("status", {}).setdefault("phase", "Pending")


def _stateful_set_errors(obj: Json, claims: bool = True) -> list[FieldError]:
    spec: Json = obj.get("spec") or {}
    errors: list[FieldError] = []
    policy = spec.get("podManagementPolicy")
    if policy not in ("OrderedReady", "Parallel"):
        text = "must be 'OrderedReady' or 'Parallel'"
        errors.append(invalid("spec.podManagementPolicy", policy or "", text))
    strategy: Json = spec.get("updateStrategy") or {}
    if strategy.get("type") not in ("RollingUpdate", "OnDelete"):
        errors.append(invalid("spec.updateStrategy", strategy, "must be 'RollingUpdate' or 'OnDelete'"))
    rolling: Json = strategy.get("rollingUpdate") or {}
    if rolling and strategy.get("type") == "OnDelete":
        text = "only allowed for updateStrategy 'RollingUpdate'"
        errors.append(invalid("spec.updateStrategy.rollingUpdate", rolling, text))
    at = "spec.updateStrategy.rollingUpdate.maxUnavailable"
    errors += number_or_percent(rolling.get("maxUnavailable"), at, up_to_100=True)
    if is_zero(rolling.get("maxUnavailable")):
        errors.append(invalid(at, rolling.get("maxUnavailable"), "cannot be 0"))
    for index, claim in enumerate(spec.get("volumeClaimTemplates") or ()) if claims else ():
        errors += volume_claim_errors(claim.get("spec") or {}, f"spec.volumeClaimTemplates[{index}].spec")
    service = spec.get("serviceName") or ""
    errors += all_invalid("spec.serviceName", service, names.dns_label(service) if service else [])
    return errors + selector_errors(spec, "statefulset") + long_running(spec, "StatefulSet")


def stateful_set(gates: Gates) -> OwnRules:
    return OwnRules(
        default=_stateful_set_default,
        create=_stateful_set_errors,
        update=lambda new, old: [] if new.get("spec") == old.get("spec") else _stateful_set_errors(new, claims=False),
        status=status_counts,
        prepare=lambda new, old: drop_from_template(gates, new, old),
        name=names.dns_label,
    )


_GENERATION = "deprecated.daemonset.template.generation"

# -- DaemonSet -------------------------------------------------------------------------------------------------------


def _daemon_set_default(obj: Json) -> None:
    spec: Json = obj.setdefault("spec", {})
    podspec_defaults.template(spec)
    if spec["updateStrategy"]["type"] == "RollingUpdate":
        rolling: Json = spec["updateStrategy"].setdefault("rollingUpdate", {})
        rolling.setdefault("maxUnavailable", 1)
        rolling.setdefault("maxSurge", 0)


def _daemon_set_errors(obj: Json) -> list[FieldError]:
    spec: Json = obj.get("spec") or {}
    errors = selector_errors(spec, "daemonset") + long_running(spec, "DaemonSet")
    strategy: Json = spec.get("updateStrategy") or {}
    if strategy.get("type") not in ("RollingUpdate", "OnDelete"):
        errors.append(not_supported("spec.updateStrategy", strategy, ("RollingUpdate", "OnDelete")))
    rolling: Json = strategy.get("rollingUpdate") or {}
    at = "spec.updateStrategy.rollingUpdate"
    errors += number_or_percent(rolling.get("maxUnavailable"), f"{at}.maxUnavailable", up_to_100=True)
    errors += number_or_percent(rolling.get("maxSurge"), f"{at}.maxSurge", up_to_100=True)
    if rolling and is_zero(rolling.get("maxUnavailable", 1)) and is_zero(rolling.get("maxSurge", 0)):
        errors.append(required(f"{at}.maxUnavailable", "cannot be 0 when maxSurge is 0"))
    elif not is_zero(rolling.get("maxUnavailable", 0)) and not is_zero(rolling.get("maxSurge", 0)):
        text = "may not be set when maxUnavailable is non-zero"
        errors.append(invalid(f"{at}.maxSurge", rolling["maxSurge"], text))
    return errors


def _template_generation(new: Json, old: Json | None) -> None:
    """Count changes of the template in an annotation of our own."""
    meta: Json = new.setdefault("metadata", {})
    if old is None:
        given = str((meta.get("annotations") or {}).get(_GENERATION) or "")
        count = max(1, natural(given) or 0)
    else:
        known = str((old["metadata"].get("annotations") or {}).get(_GENERATION) or "0")
        same_template = (new.get("spec") or {}).get("template") == (old.get("spec") or {}).get("template")
        count = (natural(known) or 0) + (not same_template)
    meta["annotations"] = {**(meta.get("annotations") or {}), _GENERATION: str(count)}


def daemon_set(gates: Gates) -> OwnRules:
    def prepare(new: Json, old: Json | None) -> None:
        drop_from_template(gates, new, old)
        _template_generation(new, old)

    return OwnRules(
        default=_daemon_set_default,
        errors=_daemon_set_errors,
        if_changed=True,
        status=status_counts,
        prepare=prepare,
    )
