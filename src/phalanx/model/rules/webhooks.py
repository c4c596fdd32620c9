"""MutatingWebhookConfiguration and ValidatingWebhookConfiguration: defaults and required fields."""

from __future__ import annotations

from urllib.parse import urlsplit

from phalanx.model import names
from phalanx.model.fieldpath import all_invalid, duplicate, forbidden, invalid, required
from phalanx.model.gates import Gates
from phalanx.model.kinds import FieldError, Json
from phalanx.model.rules.assembly import OwnRules


def rules(gates: Gates) -> OwnRules:
    def default(obj: Json) -> None:
        for hook in obj.get("webhooks") or ():
            hook.setdefault("namespaceSelector", {})
            hook.setdefault("objectSelector", {})

    def errors_of(obj: Json) -> list[FieldError]:
        errors: list[FieldError] = []
        seen: set[str] = set()
        for number, hook in enumerate(obj.get("webhooks") or ()):
            at, name = f"webhooks[{number}]", hook.get("name") or ""
            problems = names.dns_subdomain(name)
            if not problems and name.count(".") < 2:
                problems = ["should be a domain with at least three segments separated by dots"]
            errors += all_invalid(f"{at}.name", name, problems) if name else [required(f"{at}.name")]
            if name in seen:
                errors.append(duplicate(f"{at}.name", name))
            seen.add(name)
            errors += _hook_errors(hook, at)
        return errors

    return OwnRules(default=default, errors=errors_of)


def _hook_errors(hook: Json, at: str) -> list[FieldError]:
    errors: list[FieldError] = []
    versions = hook.get("admissionReviewVersions") or []
    if not versions:
        errors.append(required(f"{at}.admissionReviewVersions", "must specify one of v1, v1beta1"))
    elif "v1" not in versions:
        errors.append(invalid(f"{at}.admissionReviewVersions", versions, "must include at least one of v1, v1beta1"))
    if hook.get("sideEffects") is None:
        errors.append(required(f"{at}.sideEffects", "must specify one of None, NoneOnDryRun"))
    seconds = hook.get("timeoutSeconds")
    if seconds is not None and not 1 <= seconds <= 30:
        errors.append(invalid(f"{at}.timeoutSeconds", seconds, "the timeout value must be between 1 and 30 seconds"))
    return errors + _client_errors(hook.get("clientConfig") or {}, f"{at}.clientConfig")


def _client_errors(client: Json, at: str) -> list[FieldError]:
    url, service = client.get("url"), client.get("service")
    if (url is None) == (service is None):
        return [required(at, "exactly one of url or service is required")]
    if service is not None:
        return all_invalid(f"{at}.service.port", service.get("port"), names.port_number(service.get("port") or 0))
    try:
        parts = urlsplit(str(url))
        parts.port  # noqa: B018  it is read late, and a wrong one raises
    except ValueError as problem:
        return [invalid(f"{at}.url", url, f"url must be a valid URL: {problem}")]
    if parts.scheme != "https":
        return [
            invalid(
                f"{at}.url", parts.scheme, "'https' is the only allowed URL scheme; desired format: https://host[/path]"
            )
        ]
    if not parts.hostname:
        return [invalid(f"{at}.url", url, "host must be specified; desired format: https://host[/path]")]
    if parts.username is not None or parts.query or parts.fragment:
        return [forbidden(f"{at}.url", "user information, query parameters and fragments are not permitted in the URL")]
    return []
