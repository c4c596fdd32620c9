"""Index host ports in use by port: few pods have host ports, so few rows need a check."""

from __future__ import annotations

from collections.abc import Iterable

HostPort = tuple[str, str, int]  # (host ip, protocol, port)
ANY = "0.0.0.0"


class PortIndex:
    __slots__ = ("_rows",)

    def __init__(self) -> None:
        # (protocol, port) -> row -> host ip -> number of pods
        self._rows: dict[tuple[str, int], dict[int, dict[str, int]]] = {}

    def add(self, row: int, ports: Iterable[HostPort]) -> None:
        for ip, protocol, port in ports:
            ips = self._rows.setdefault((protocol, port), {}).setdefault(row, {})
            ips[ip] = ips.get(ip, 0) + 1

    def remove(self, row: int, ports: Iterable[HostPort]) -> None:
        for ip, protocol, port in ports:
            rows = self._rows[protocol, port]
            ips = rows[row]
            if ips[ip] > 1:
                ips[ip] -= 1
                continue
            del ips[ip]
            if not ips:
                del rows[row]
                if not rows:
                    del self._rows[protocol, port]

    def conflict(self, row: int, ports: Iterable[HostPort]) -> bool:
        return any(
            row in rows and _clash(ip, rows[row])
            for ip, protocol, port in ports
            if (rows := self._rows.get((protocol, port)))
        )

    def conflicts(self, ports: Iterable[HostPort]) -> set[int]:
        """Return the rows on which at least one of the ports is in use."""
        return {
            row
            for ip, protocol, port in ports
            for row, ips in self._rows.get((protocol, port), {}).items()
            if _clash(ip, ips)
        }


def _clash(ip: str, taken: dict[str, int]) -> bool:
    """Return True if an address conflicts. The wildcard address conflicts with every address."""
    return ip == ANY or ip in taken or ANY in taken
