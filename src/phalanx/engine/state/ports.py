"""Host ports in use, found by port: pods with host ports are few, so the rows that matter are few."""

from __future__ import annotations

from collections.abc import Iterable

HostPort = tuple[str, str, int]  # (host ip, protocol, port)
ANY = "0.0.0.0"


class PortIndex:
    __slots__ = ("_rows",)

    def __init__(self) -> None:
        # (protocol, port) -> row -> host ip -> how many pods
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
        """Rows on which at least one of the ports is taken."""
        return {
            row
            for ip, protocol, port in ports
            for row, ips in self._rows.get((protocol, port), {}).items()
            if _clash(ip, ips)
        }


def _clash(ip: str, taken: dict[str, int]) -> bool:
    """The wildcard address clashes with every address."""
    return ip == ANY or ip in taken or ANY in taken
