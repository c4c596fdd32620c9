"""IP addresses, CIDRs and URLs."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from math import ceil
from typing import Any
from urllib.parse import unquote_plus

from ..declarations import STRING_FACTOR, function, member, overload, reads
from ..types import BOOL, INT, STRING, list_of, map_of, opaque
from ..values import EvaluationError, register, size_of
from .address_errors import address_problem, prefix_problem, quoted

IP = opaque("net.IP")
CIDR = opaque("net.CIDR")
URL = opaque("kubernetes.URL")

_NO_PREFIX = "network address parse error during conversion from string"

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True)
class IPValue:
    """An address."""

    address: Address

    def __str__(self) -> str:
        return str(self.address)


@dataclass(frozen=True, slots=True)
class CIDRValue:
    """An address with a prefix length; the address keeps its host bits."""

    address: Address
    bits: int

    @property
    def network(self) -> Network:
        """Return the network without host bits."""
        return ipaddress.ip_network((self.address, self.bits), strict=False)

    def __str__(self) -> str:
        return f"{self.address}/{self.bits}"


@dataclass(frozen=True, slots=True)
class URLValue:
    """The parts of a URL."""

    text: str
    scheme: str
    host: str
    path: str
    query: str

    def __str__(self) -> str:
        return self.text


register(IPValue, IP.name)
register(CIDRValue, CIDR.name)
register(URLValue, URL.name)


def ip(text: str) -> IPValue:
    """Parse an address, or raise EvaluationError."""
    if "%" in text:
        raise EvaluationError(f"IP address {quoted(text)} with zone value is not allowed")
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        message = f"IP Address {quoted(text)} parse error during conversion from string: {address_problem(text)}"
        raise EvaluationError(message) from None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
        raise EvaluationError(f"IPv4-mapped IPv6 address {quoted(text)} is not allowed")
    return IPValue(address)


def cidr(text: str) -> CIDRValue:
    """Parse a CIDR, or raise EvaluationError."""
    before, slash, bits = text.rpartition("/")
    problem = ""
    try:
        address = ipaddress.ip_address(before)
    except ValueError:
        address, problem = None, address_problem(before)
    if address is not None and isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
        raise EvaluationError(f"IPv4-mapped IPv6 address {quoted(text)} is not allowed")
    valid = slash and re.fullmatch(r"0|[1-9][0-9]{0,2}", bits) and "%" not in before
    if address is None or not valid or int(bits) > address.max_prefixlen:
        problem = "IPv6 zones cannot be present in a prefix" if address is not None and "%" in before else problem
        raise EvaluationError(f"{_NO_PREFIX}: {_NO_PREFIX}: {prefix_problem(text, problem)}")  # twice, as upstream
    return CIDRValue(address, int(bits))


def _valid(parse: Any) -> Any:
    def run(text: str) -> bool:
        try:
            parse(text)
        except EvaluationError:
            return False
        return True

    return run


def _global_unicast(value: IPValue) -> bool:
    address = value.address
    broadcast = isinstance(address, ipaddress.IPv4Address) and int(address) == 2**32 - 1
    special = address.is_unspecified or address.is_loopback or address.is_multicast or address.is_link_local
    return not (special or broadcast)


_LOCAL_MULTICAST = (ipaddress.ip_network("224.0.0.0/24"), ipaddress.ip_network("ff02::/16"))


def _link_local_multicast(value: IPValue) -> bool:
    address = value.address
    if isinstance(address, ipaddress.IPv6Address):
        return address.packed[0] == 0xFF and address.packed[1] & 0x0F == 0x02
    return address in _LOCAL_MULTICAST[0]


def _contains_ip(value: CIDRValue, other: IPValue) -> bool:
    return other.address.version == value.address.version and other.address in value.network


def _contains_cidr(value: CIDRValue, other: CIDRValue) -> bool:
    if other.address.version != value.address.version:
        return False
    return value.bits <= other.bits and other.network.network_address in value.network


def _containment_cost(rounds: int, extra: int, text: bool) -> Any:
    def cost(args: tuple[Any, ...], _: Any) -> int:
        size: int = (args[0].address.max_prefixlen + 7) // 8
        total = ceil(2 * size * STRING_FACTOR) + rounds * ceil(size * STRING_FACTOR) + extra
        return total + (ceil(size_of(args[1]) * STRING_FACTOR) if text else 0)

    return cost


IPS = (
    function(
        "ip",
        overload("string_to_ip", (STRING,), IP, ip, reads(0)),
        member("cidr_ip", (CIDR,), IP, lambda v: IPValue(v.address)),
    ),
    function("isIP", overload("is_ip", (STRING,), BOOL, _valid(ip), reads(0))),
    function("ip.isCanonical", overload("ip_is_canonical", (STRING,), BOOL, lambda s: str(ip(s)) == s, reads(0, 2))),
    function("family", member("ip_family", (IP,), INT, lambda v: v.address.version)),
    function("isUnspecified", member("ip_is_unspecified", (IP,), BOOL, lambda v: v.address.is_unspecified)),
    function("isLoopback", member("ip_is_loopback", (IP,), BOOL, lambda v: v.address.is_loopback)),
    function("isLinkLocalMulticast", member("ip_is_link_local_multicast", (IP,), BOOL, _link_local_multicast)),
    function("isLinkLocalUnicast", member("ip_is_link_local_unicast", (IP,), BOOL, lambda v: v.address.is_link_local)),
    function("isGlobalUnicast", member("ip_is_global_unicast", (IP,), BOOL, _global_unicast)),
    function(
        "string",
        overload("ip_to_string", (IP,), STRING, str),
        overload("cidr_to_string", (CIDR,), STRING, str),
    ),
    function("cidr", overload("string_to_cidr", (STRING,), CIDR, cidr, reads(0))),
    function("isCIDR", overload("is_cidr", (STRING,), BOOL, _valid(cidr), reads(0))),
    function("prefixLength", member("cidr_prefix_length", (CIDR,), INT, lambda v: v.bits)),
    function(
        "masked",
        member("cidr_masked", (CIDR,), CIDR, lambda v: CIDRValue(v.network.network_address, v.bits)),
    ),
    function(
        "containsIP",
        member(
            "cidr_contains_ip_string",
            (CIDR, STRING),
            BOOL,
            lambda v, s: _contains_ip(v, ip(s)),
            _containment_cost(0, 0, True),
        ),
        member("cidr_contains_ip_ip", (CIDR, IP), BOOL, _contains_ip, _containment_cost(0, 0, False)),
    ),
    function(
        "containsCIDR",
        member(
            "cidr_contains_cidr_string",
            (CIDR, STRING),
            BOOL,
            lambda v, s: _contains_cidr(v, cidr(s)),
            _containment_cost(1, 1, True),
        ),
        member("cidr_contains_cidr", (CIDR, CIDR), BOOL, _contains_cidr, _containment_cost(1, 1, False)),
    ),
)

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?://([^/?#]*))?([^?#]*)(?:\?([^#]*))?(?:#.*)?", re.DOTALL)
_BAD = re.compile(r"[\x00-\x1f\x7f]|%(?![0-9a-fA-F]{2})")
_SAFE = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.~!$&'()*+,;=:@/%[]")


def url(text: str) -> URLValue:
    """Parse an absolute URL or an absolute path, or raise EvaluationError."""
    prefix = "URL parse error during conversion from string: "
    if not text:
        raise EvaluationError(f'{prefix}parse "": empty url')
    if _BAD.search(text.partition("?")[0]) or re.search(r"[\x00-\x1f\x7f]", text):
        raise EvaluationError(f"{prefix}parse {quoted(text)}: invalid URL escape or control character in URL")
    if text.startswith("/"):
        path, _, query = text.partition("?")
        return URLValue(text, "", "", path, query)
    found = _URL.fullmatch(text)
    if text.startswith(":"):
        raise EvaluationError(f"{prefix}parse {quoted(text)}: missing protocol scheme")
    if found is None:
        raise EvaluationError(f"{prefix}parse {quoted(text)}: invalid URI for request")
    if found[2] is None and not found[3].startswith("/"):
        return URLValue(text, found[1].lower(), "", "", found[4] or "")  # opaque, such as mailto:a
    host = (found[2] or "").rpartition("@")[2]
    if not re.fullmatch(r"(\[[0-9a-fA-F:.%]+\]|[^\[\]:\s]*)(:[0-9]*)?", host):
        raise EvaluationError(f"{prefix}parse {quoted(text)}: invalid port or host in URL")
    return URLValue(text, found[1].lower(), host, found[3], found[4] or "")


def _hostname(value: URLValue) -> str:
    if value.host.startswith("["):
        return value.host[1:].partition("]")[0]
    return value.host.partition(":")[0]


def _port(value: URLValue) -> str:
    after = value.host.rpartition("]")[2] if value.host.startswith("[") else value.host
    return after.partition(":")[2]


def _escaped_path(value: URLValue) -> str:
    escaped = (c if c in _SAFE else "".join(f"%{b:02X}" for b in c.encode()) for c in value.path)
    return "".join(escaped)


def _query(value: URLValue) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for part in value.query.split("&"):
        if part and ";" not in part:
            name, _, text = part.partition("=")
            found.setdefault(unquote_plus(name), []).append(unquote_plus(text))
    return found


URLS = (
    function("url", overload("string_to_url", (STRING,), URL, url, reads(0))),
    function("isURL", overload("is_url_string", (STRING,), BOOL, _valid(url))),
    function("getScheme", member("url_get_scheme", (URL,), STRING, lambda v: v.scheme)),
    function("getHost", member("url_get_host", (URL,), STRING, lambda v: v.host)),
    function("getHostname", member("url_get_hostname", (URL,), STRING, _hostname)),
    function("getPort", member("url_get_port", (URL,), STRING, _port)),
    function("getEscapedPath", member("url_get_escaped_path", (URL,), STRING, _escaped_path)),
    function("getQuery", member("url_get_query", (URL,), map_of(STRING, list_of(STRING)), _query)),
)
