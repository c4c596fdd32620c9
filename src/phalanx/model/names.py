"""Validate names: DNS labels and subdomains, label keys and values, path segments.

Every function returns the complaints about a value in Kubernetes' words; an empty list means it is fine.
Declarative rules count "bytes" where hand-written ones say "characters", hence the `unit`.
"""

from __future__ import annotations

import ipaddress
import re
from functools import lru_cache

_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = rf"{_LABEL}(\.{_LABEL})*"
_LABEL_1035 = "[a-z]([-a-z0-9]*[a-z0-9])?"
_KEY = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_VALUE = f"({_KEY})?"
MAX_PORT = 65535
_CONFIG_KEY = "[-._a-zA-Z0-9]+"
_CONDITION_REASON = "[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?"
_PERCENT = "[0-9]+%"

_is_label = re.compile(_LABEL).fullmatch
_is_subdomain = re.compile(_SUBDOMAIN).fullmatch
_is_label_1035 = re.compile(_LABEL_1035).fullmatch
_is_key = re.compile(_KEY).fullmatch
_is_value = re.compile(_VALUE).fullmatch
_is_config_key = re.compile(_CONFIG_KEY).fullmatch
_is_condition_reason = re.compile(_CONDITION_REASON).fullmatch
_is_percent = re.compile(_PERCENT).fullmatch
_is_port_name = re.compile("[-a-z0-9]+").fullmatch

_ENDS = "must start and end with an alphanumeric character"
LABEL_TEXT = f"a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and {_ENDS}"
SUBDOMAIN_TEXT = (
    f"a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and {_ENDS}"
)
LABEL_1035_TEXT = (
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', "
    "start with an alphabetic character, and end with an alphanumeric character"
)
KEY_TEXT = f"must consist of alphanumeric characters, '-', '_' or '.', and {_ENDS}"
VALUE_TEXT = (
    f"a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and {_ENDS}"
)
CONFIG_KEY_TEXT = "a valid config key must consist of alphanumeric characters, '-', '_' or '.'"
CONDITION_REASON_TEXT = (
    "a condition reason must start with alphabetic character, optionally followed by a string of alphanumeric "
    "characters or '_,:', and must end with an alphanumeric character or '_'"
)
PERCENT_TEXT = "a valid percent string must be a numeric string followed by an ending '%'"


def pattern_text(text: str, pattern: str, *examples: str) -> str:
    """Return the error text for a value that does not match `pattern`."""
    if not examples:
        return f"{text} (regex used for validation is '{pattern}')"
    shown = " or ".join(f"'{example}', " for example in examples)
    return f"{text} (e.g. {shown}regex used for validation is '{pattern}')"


def _too_long(limit: int, unit: str) -> str:
    return f"must be no more than {limit} {unit}"


# Lengths are checked outside the caches, which must not keep megabytes sent as a name.
@lru_cache(maxsize=1 << 11)
def _label_matches(value: str) -> bool:
    return _is_label(value) is not None


@lru_cache(maxsize=1 << 11)
def _subdomain_matches(value: str) -> bool:
    return _is_subdomain(value) is not None


def dns_label(value: str, unit: str = "characters") -> list[str]:
    """Check a DNS-1123 label, such as the name of a Namespace, container or template."""
    if len(value) <= 63 and _label_matches(value):
        return []
    problems = []
    if len(value.encode()) > 63:
        problems.append(_too_long(63, unit))
    if _is_label(value) is None:
        if _is_subdomain(value) is not None:
            problems.append("must not contain dots")
        else:
            problems.append(pattern_text(LABEL_TEXT, _LABEL, "my-name", "123-abc"))
    return problems


def dns_subdomain(value: str, unit: str = "characters") -> list[str]:
    """Check a DNS-1123 subdomain: the names of most objects."""
    if len(value) <= 253 and _subdomain_matches(value):
        return []
    problems = []
    if len(value.encode()) > 253:
        problems.append(_too_long(253, unit))
    if _is_subdomain(value) is None:
        problems.append(pattern_text(SUBDOMAIN_TEXT, _SUBDOMAIN, "example.com"))
    return problems


def dns_1035_label(value: str) -> list[str]:
    """Check a DNS label that starts with a letter, such as the name of a Service."""
    problems = []
    if len(value.encode()) > 63:
        problems.append(_too_long(63, "characters"))
    if _is_label_1035(value) is None:
        problems.append(pattern_text(LABEL_1035_TEXT, _LABEL_1035, "my-name", "abc-123"))
    return problems


def ip_address(value: str) -> list[str]:
    try:
        ipaddress.ip_address(value)
    except ValueError:
        return ["must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"]
    return []


def port(value: int | str | None) -> list[str]:
    """Check a port number or port name."""
    return port_name(value) if isinstance(value, str) else port_number(value or 0)


def short_name(value: str) -> list[str]:
    """Check a `k8s-short-name` of declarative validation."""
    return dns_label(value, "bytes")


def long_name(value: str) -> list[str]:
    """Check a `k8s-long-name` of declarative validation."""
    return dns_subdomain(value, "bytes")


@lru_cache(maxsize=1 << 11)
def _key_matches(value: str) -> bool:
    prefix, slash, name = value.rpartition("/")
    if slash and not (len(prefix) <= 253 and _subdomain_matches(prefix)):
        return False
    return len(name) <= 63 and _is_key(name) is not None


def label_key(value: str) -> list[str]:
    """Check a qualified name: optional DNS subdomain and `/`, then a name of at most 63 bytes."""
    if len(value) <= 317 and _key_matches(value):
        return []
    parts = value.split("/")
    shape = pattern_text(KEY_TEXT, _KEY, "MyName", "my.name", "123-abc")
    if len(parts) > 2:
        return [f"a valid label key {shape} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"]
    problems = []
    name = parts[-1]
    if len(parts) == 2:
        if not parts[0]:
            problems.append("prefix part must be non-empty")
        else:
            problems.extend(f"prefix part {problem}" for problem in long_name(parts[0]))
    if not name:
        problems.append("name part must be non-empty")
    elif len(name.encode()) > 63:
        problems.append(f"name part {_too_long(63, 'bytes')}")
    if _is_key(name) is None:
        problems.append(f"name part {shape}")
    return problems


@lru_cache(maxsize=1 << 11)
def _value_matches(value: str) -> bool:
    return _is_value(value) is not None


def label_value(value: str) -> list[str]:
    """Check the value of a label, which may be empty."""
    if len(value) <= 63 and _value_matches(value):
        return []
    problems = []
    if len(value.encode()) > 63:
        problems.append(_too_long(63, "bytes"))
    if _is_value(value) is None:
        problems.append(pattern_text(VALUE_TEXT, _VALUE, "MyValue", "my_value", "12345"))
    return problems


def path_segment(value: str) -> list[str]:
    """Check a name that must be usable as a segment of a URL path."""
    if value == ".":
        return ["may not be '.'"]
    if value == "..":
        return ["may not be '..'"]
    return [f"may not contain '{bad}'" for bad in ("/", "%") if bad in value]


def config_key(value: str) -> list[str]:
    """Check a key in a ConfigMap or Secret."""
    problems = []
    if len(value.encode()) > 253:
        problems.append(_too_long(253, "characters"))
    if _is_config_key(value) is None:
        problems.append(pattern_text(CONFIG_KEY_TEXT, _CONFIG_KEY, "key.name", "KEY_NAME", "key-name"))
    if value == ".":
        problems.append("must not be '.'")
    elif value == "..":
        problems.append("must not be '..'")
    elif value.startswith(".."):
        problems.append("must not start with '..'")
    return problems


def condition_reason(value: str) -> list[str]:
    """Check the machine-readable reason of a metav1.Condition."""
    if _is_condition_reason(value) is not None:
        return []
    examples = ("my_name", "MY_NAME", "MyName", "ReasonA,ReasonB", "ReasonA:ReasonB")
    return [pattern_text(CONDITION_REASON_TEXT, _CONDITION_REASON, *examples)]


def percent(value: str) -> list[str]:
    """Check a percentage such as 25%."""
    if _is_percent(value) is not None:
        return []
    return [pattern_text(PERCENT_TEXT, _PERCENT, "1%", "93%")]


def port_name(value: str) -> list[str]:
    """Check the name of a container or service port."""
    problems = []
    if len(value.encode()) > 15:
        problems.append(_too_long(15, "characters"))
    if _is_port_name(value) is None:
        problems.append("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)")
    if not any("a" <= char <= "z" for char in value):
        problems.append("must contain at least one letter (a-z)")
    if "--" in value:
        problems.append("must not contain consecutive hyphens")
    if value and (value[0] == "-" or value[-1] == "-"):
        problems.append("must not begin or end with a hyphen")
    return problems


def port_number(value: int) -> list[str]:
    """Check a port number: 1 to 65535."""
    return [] if 1 <= value <= MAX_PORT else ["must be between 1 and 65535, inclusive"]


_SYSCTL_PART = "[a-z0-9]([-_a-z0-9]*[a-z0-9])?"
_SYSCTL = rf"({_SYSCTL_PART}[\./])*{_SYSCTL_PART}"
_is_sysctl_part = re.compile(_SYSCTL_PART).fullmatch


def sysctl(value: str) -> list[str]:
    """Check the name of a kernel setting, separated by dots or slashes."""
    fine = len(value) <= 253 and all(map(_is_sysctl_part, re.split(r"[./]", value)))
    return [] if fine else [f"must have at most 253 characters and match regex ^{_SYSCTL}$"]


def generated_prefix(value: str) -> str:
    """Return a `generateName` as if a random suffix had been added: a trailing dash is valid."""
    return value[:-1] + "a" if value.endswith("-") else value


# A hash as controllers append it: hexadecimal digits, or the letters and digits of Kubernetes' safe encoding.
_HASH = r"(?=[a-z]*\d)(?=\d*[a-z])(?:[0-9a-f]{5,}|[bcdfghjklmnpqrstvwxz2456789]{5,})"
HASH_AT_END = rf"(?:-{_HASH}|/)$"  # or the end of a Workload's group without replicas
# <job>-<hash>-<job>-pgt-<number>-<hash>: hashes by their place, however short; a long <job> is cut the second time.
GENERATED_NAME = rf"^(.+?)-(?:[0-9a-z]+-\1|{_HASH}-[a-z0-9.-]*)-pgt-(\d+)-[0-9a-z]+$"
_hash_at_end = re.compile(HASH_AT_END)
_generated_name = re.compile(GENERATED_NAME)


def without_hash(name: str) -> str:
    """Return a name without what controllers add to make it unique."""
    return _hash_at_end.sub("", _generated_name.sub(lambda m: m[1] if m[2] == "0" else f"{m[1]}-{m[2]}", name))
