"""Complaints about names use Kubernetes' words."""

from __future__ import annotations

import pytest

from phalanx.model import names


def test_good_names_pass() -> None:
    assert names.dns_label("my-name") == []
    assert names.dns_subdomain("a.b-c.d") == []
    assert names.label_key("example.com/My_name.1") == []
    assert names.label_value("") == names.label_value("v1.2_3") == []
    assert names.path_segment("anything Goes") == []
    assert names.config_key("key.name") == names.port_name("http-1") == names.percent("25%") == []


@pytest.mark.parametrize(
    ("problems", "expected"),
    [
        (names.short_name("a" * 64), ["must be no more than 63 bytes"]),
        (names.dns_label("a" * 64), ["must be no more than 63 characters"]),
        (names.short_name("a.b"), ["must not contain dots"]),
        (
            names.short_name("Upper"),
            [
                "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start "
                "and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is "
                "'[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
            ],
        ),
        (names.label_key("/x"), ["prefix part must be non-empty"]),
        (names.label_key("a/" + "b" * 64), ["name part must be no more than 63 bytes"]),
        (names.path_segment(".."), ["may not be '..'"]),
        (names.path_segment("a/b%"), ["may not contain '/'", "may not contain '%'"]),
    ],
)
def test_bad_names_are_explained(problems: list[str], expected: list[str]) -> None:
    assert problems == expected


@pytest.mark.parametrize("value", ["a\n", "", "-a", "a_b", "ä", "a..b"])
def test_near_misses_are_refused(value: str) -> None:
    assert names.dns_subdomain(value)
    assert names.dns_label(value)


def test_three_part_keys_mention_the_prefix_form() -> None:
    (problem,) = names.label_key("a/b/c")
    assert problem.endswith("with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')")
