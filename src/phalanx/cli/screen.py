"""What `phalanx top` draws: state and keys in, lines of a given width and height out. No I/O."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass, field
from typing import Any

from rich.text import Text

from phalanx.cli.messages import age, amount, plural, short, short_names
from phalanx.cli.output import table
from phalanx.model.kinds import Json
from phalanx.serve.queries.engine_view import ALONE, BINDING, CORDONED, LEAVING, NOT_READY, PROMISED, TAINTED

VIEWS = ("Queue", "Groups", "Racks", "Devices")
RACKS, DEVICES = 2, 3
PLACES = {"active": "next", "attempt": "tried", "backoff": "retry", "waiting": "waiting", "gated": "held"}
COLOURS = {"waiting": "yellow", "retry": "yellow", "held": "cyan", "next": "green", "tried": "green",
           "Running": "green", "Completed": "green", "Scheduling": "yellow", "Waiting": "cyan", "Preempting": "magenta",
           "Preempted": "magenta", "Degraded": "red", "TimedOut": "red", "Invalid": "red"}  # fmt: skip
STATES = ((NOT_READY, "not ready"), (CORDONED, "cordoned"), (LEAVING, "pods leaving"), (TAINTED, "tainted"),
          (PROMISED, "promised"), (BINDING, "binding"))  # fmt: skip
HELP = "tab view · ↑↓ move · / search · s sort · enter why · ? help · q quit"
HELP_DETAIL = "↑↓ scroll · q back"
KEYS = """\
tab, → ←, 1 2 3   next view, view before, queue, groups, racks; 4: devices of claims, where there are any
↑ ↓, j k          move; page up and page down, g and G to the ends
/                 search; enter keeps what was found, escape shows everything
s                 sort by the next column; after the last one the usual order
r                 reverse the order
enter             why the chosen unit is pending; in a rack: its nodes
p                 what would be evicted for it
?                 this page
q                 back, or quit

Queue: STATE is next (tried next), retry (backs off), waiting (until something changes that can help) or held (by a \
gate, or because members are missing). The line below the table is the reason as of the last attempt.
Racks: EMPTY counts nodes without pods; a node that is cordoned or not ready offers nothing."""
MOST_REASON = 4  # lines of the chosen row's reason
MOST_RESOURCES = 3
LABEL = re.compile(r" +\w[\w ]{2,10}: +")


@dataclass(frozen=True, slots=True)
class TableLine:
    """One line of a table. `ask`: KIND/NAMESPACE/NAME to ask why about, the path of a domain in the view of racks."""

    cells: tuple[str, ...]
    more: str = ""
    ask: str = ""
    style: str = ""
    order: tuple[Any, ...] = ()  # what cells are sorted by; (): their texts


@dataclass(slots=True)
class Screen:
    """Which view, which row, what is searched for, and the answer that is open, if one is."""

    where: str = ""  # the server, for the title
    state: Json = field(default_factory=dict)
    view: int = 0
    search: str = ""
    typing: bool = False
    failure: str = ""  # why the picture is old
    detail: list[str] | None = None
    title: str = ""
    wide: bool = False  # also show the scheduler's message, as in the condition
    _sorted: dict[int, int] = field(default_factory=dict)  # view -> column; absent: the usual order
    _reversed: dict[int, bool] = field(default_factory=dict)
    _chosen: dict[int, int] = field(default_factory=dict)
    _top: dict[int, int] = field(default_factory=dict)
    _scrolled: int = 0
    _page: int = 10

    # ---- keys

    def press(self, key: str) -> str:
        """Handle a key; return what else to do: "quit", "why KEY", "plan KEY", "nodes PATH" or ""."""
        if self.detail is not None:
            return self._scroll(key)
        if self.typing:
            return self._type(key)
        steps = {"down": 1, "j": 1, "up": -1, "k": -1, "pagedown": self._page, "pageup": -self._page,
                 "home": -(1 << 30), "g": -(1 << 30), "end": 1 << 30, "G": 1 << 30}  # fmt: skip
        if key in steps:
            last = len(self.rows()) - 1
            self._chosen[self.view] = max(0, min(last, self._chosen.get(self.view, 0) + steps[key]))
        elif key in ("tab", "right", "l", "backtab", "left", "h"):
            self.view = (self.view + (1 if key in ("tab", "right", "l") else -1)) % self.views
        elif key in "1234"[: self.views]:
            self.view = int(key) - 1
        elif key == "/":
            self.typing, self.search = True, ""
        elif key == "escape":
            self.search = ""
        elif key in ("enter", "p"):
            row = self.chosen()
            what = "nodes" if self.view == RACKS else "plan" if key == "p" else "why"
            return f"{what} {row.ask}" if row is not None and row.ask and (key == "enter" or what == "plan") else ""
        elif key == "q":
            return "quit"
        else:
            self._change_view(key)
        return ""

    @property
    def views(self) -> int:
        """Return the number of views. Devices are shown only if drivers publish some."""
        return DEVICES + bool(self.state.get("devices"))

    def _change_view(self, key: str) -> None:
        if key == "s":
            column = self._sorted.get(self.view, -1) + 1
            if column < len(self._heads()):
                self._sorted[self.view] = column
            else:
                self._sorted.pop(self.view, None)
        elif key == "r":
            self._reversed[self.view] = not self._reversed.get(self.view, False)
        elif key == "?":
            self.open(" keys of phalanx top ", KEYS)

    def _type(self, key: str) -> str:
        if key == "enter":
            self.typing = False
        elif key == "escape":
            self.typing, self.search = False, ""
        elif key == "backspace":
            self.search = self.search[:-1]
        elif len(key) == 1:
            self.search += key
        self._chosen[self.view] = 0
        return ""

    def _scroll(self, key: str) -> str:
        steps = {"down": 1, "j": 1, "up": -1, "k": -1, "pagedown": self._page, " ": self._page, "pageup": -self._page,
                 "home": -(1 << 30), "g": -(1 << 30), "end": 1 << 30, "G": 1 << 30}  # fmt: skip
        if key in steps:
            self._scrolled = max(0, self._scrolled + steps[key])
        elif key in ("q", "escape", "left", "h", "enter", "backspace"):
            self.detail = None
        return ""

    def open(self, title: str, text: str) -> None:
        self.title, self.detail, self._scrolled = title, text.splitlines(), 0

    # ---- rows

    def rows(self, view: int | None = None) -> list[TableLine]:
        """Return the rows of a view that match the search, in the chosen order."""
        if not self.state:
            return []
        view = self.view if view is None else view
        found = (self._queue, self._groups, self._racks, self._devices)[view]()
        wanted = self.search.lower()
        if wanted:
            found = [row for row in found if wanted in " ".join((*row.cells, row.more, row.ask)).lower()]
        column = self._sorted.get(view)
        if column is not None:
            found.sort(key=lambda row: row.order[column] if row.order else row.cells[column].strip())
        return found[::-1] if self._reversed.get(view) else found

    def chosen(self) -> TableLine | None:
        rows = self.rows()
        return rows[min(self._chosen.get(self.view, 0), len(rows) - 1)] if rows else None

    def _queue(self) -> list[TableLine]:
        rows = []
        roots = self.state["queue"]["roots"]
        names = short_names((root["namespace"], root["name"]) for root in roots)
        for number, root in enumerate(roots, 1):
            place = PLACES.get(root["place"], root["place"])
            kind = "pod " if root["key"].startswith("pod/") else ""
            cells = (
                str(number),
                kind + names[root["namespace"], root["name"]],
                root["namespace"],
                str(root["pods"]),
                str(root["priority"]),
                age(self.state["now"] - root["asked"]),
                place,
                root["words"],
            )
            order = (number, *cells[1:3], root["pods"], -root["priority"], root["asked"], *cells[6:])
            rows.append(TableLine(cells, self._reason(root), root["key"], COLOURS.get(place, ""), order))
        return rows

    def _reason(self, root: Json) -> str:
        """Return the plain sentence, and when it was true: the cluster may have changed since the attempt."""
        text: str = root["headline"]
        if root["tried"]:
            text = f"when tried {age(self.state['now'] - root['tried'])} ago: {text}"
        if root["overtaken"]:
            text += f"; {root['overtaken']}"
        if self.wide and root["message"] and root["message"] != root["headline"]:
            text += f" [{root['message']}]"
        return text

    def _groups(self) -> list[TableLine]:
        groups: dict[str, Json] = self.state["groups"]
        below: dict[str, list[str]] = {}
        for key, group in groups.items():
            parent = group["parent"] if group["parent"] in groups else ""
            below.setdefault(parent, []).append(key)
        rows: list[TableLine] = []
        names = short_names((namespace, name) for _, namespace, name in (key.split("/", 2) for key in groups))

        def add_line(key: str, depth: int) -> None:
            group = groups[key]
            kind, namespace, name = key.split("/", 2)
            what = "groups" if kind == "compositepodgroup" else "pods"
            policy = f"gang {group['min']}" if group["gang"] else "basic"
            placed = f"{group['placed']} of {max(group['known'], group['min'] if group['gang'] else 0)} {what}"
            reason = group["reason"]
            topology = f"one {short(group['topology'])}" if group["topology"] else ""
            more = f"{plural(group['pending'], 'pod')} pending" if group["pending"] else "no pod waits"
            more += "".join(f", {text}" for text in group["settings"])
            shown = (
                name if group.get("revision") else names[namespace, name]
            )  # two revisions: the name includes the revision
            cells = ("  " * depth + shown, namespace, policy, placed, topology, reason)
            order = (name, namespace, policy, group["placed"], topology, reason)
            rows.append(TableLine(cells, f"{kind} {namespace}/{name}: {more}", key, COLOURS.get(reason, ""), order))
            for child in below.get(key, ()):
                add_line(child, depth + 1)

        for key in sorted(below.get("", ()), key=lambda key: (not groups[key]["pending"], key)):
            add_line(key, 0)
        return rows

    def _racks(self) -> list[TableLine]:
        resources, keys = self.state["resources"], self.state["keys"]
        rows = []
        for domain in self.state["domains"]:
            shares = [
                f"{amount(name, free)} of {amount(name, has)}"
                for name, free, has in zip(resources, domain["free"], domain["has"], strict=True)
            ]
            used = 1 - domain["free"][0] / domain["has"][0] if domain["has"] and domain["has"][0] else 0.0
            closed = f", {plural(domain['closed'], 'node')} closed" if domain["closed"] else ""
            cells = (
                "/".join(part or "-" for part in domain["path"]),
                str(domain["nodes"]),
                str(domain["empty"]),
                _bar(used),
                *shares[:MOST_RESOURCES],
            )
            more = f"{used:.0%} in use{closed}; enter shows {'its nodes' if keys else 'it'}"
            style = "green" if used < 0.5 else "yellow" if used < 0.95 else "red"
            order = (*cells[:1], domain["nodes"], domain["empty"], used, *domain["free"][:MOST_RESOURCES])
            rows.append(TableLine(cells, more, "/".join(domain["path"]), style, order))
        return rows

    def _devices(self) -> list[TableLine]:
        rows = []
        for each in self.state.get("devices") or ():
            numbers = [each[name] for name in ("devices", "inUse", "tainted", "free", "mostOnNode")]
            where = " > ".join(each["path"]) or "everywhere"
            more = f"{each['free']} of {each['devices']} devices of class {each['deviceClass']} are free in {where}"
            cells = (each["deviceClass"], where, *map(str, numbers))
            rows.append(TableLine(cells, more, "", "green" if each["free"] else "red", (*cells[:2], *numbers)))
        return rows

    def _heads(self) -> tuple[str, ...]:
        if self.view == 0:
            return ("#", "UNIT", "NAMESPACE", "PODS", "PRIO", "WAITS", "STATE", "REASON")
        if self.view == 1:
            return ("GROUP", "NAMESPACE", "POLICY", "PLACED", "TOPOLOGY", "STATUS")
        level = " > ".join(short(key) for key in self.state.get("keys", ())) or "node"
        if self.view == DEVICES:
            return ("CLASS", level.upper(), "DEVICES", "IN USE", "TAINTED", "FREE", "MOST ON A NODE")
        free = [f"{short(name).upper()} FREE" for name in self.state.get("resources", ())[:MOST_RESOURCES]]
        return (level.upper(), "NODES", "EMPTY", "USE", *free)

    def _marked_heads(self) -> tuple[str, ...]:
        """Return the heads with an arrow at the column that rows are sorted by."""
        heads, column = list(self._heads()), self._sorted.get(self.view)
        if column is not None:
            heads[column] += "↑" if self._reversed.get(self.view) else "↓"
        return tuple(heads)

    # ---- drawing

    def draw(self, width: int, height: int | None) -> Text:
        """Draw at most `height` lines; None: as many as there are, for a print."""
        lines = self._title(width)
        if self.detail is not None:
            lines += self._answer(width, height - len(lines) if height is not None else None)
        else:
            lines += self._table(width, height - len(lines) if height is not None else None)
        if height is not None:
            lines = lines[:height]
        drawn = Text(no_wrap=True, overflow="ellipsis", end="")
        for number, line in enumerate(lines):
            line.truncate(width, overflow="ellipsis")
            drawn.append_text(line)
            drawn.append("\n" if number < len(lines) - 1 else "")
        return drawn

    def _title(self, width: int) -> list[Text]:
        title = Text("phalanx top", style="bold")
        if self.state:
            waiting = self.state["queue"]
            use = ", ".join(f"{short(name)} {part:.0%}" for name, part in list(self.state["use"].items())[:2])
            parts = [plural(self.state["nodes"], "node") + (f" ({use} used)" if use else "")]
            if waiting["total"]:
                parts.append(f"{waiting['total']} waiting ({plural(waiting['pods'], 'pod')}), {age(waiting['oldest'])}")
            else:
                parts.append("nothing waits")
            title.append("  " + " · ".join([self.where, *parts] if width >= 100 else parts), style="not bold")
        lines = [title]
        if self.failure:
            lines.append(Text(self.failure, style="red"))
        return lines

    def _tabs(self) -> Text:
        tabs = Text()
        counts = (
            (self.state["queue"]["total"], self.state["groupCount"], len(self.state["domains"]), self._free_devices())
            if self.state
            else ()
        )
        for number, name in enumerate(VIEWS[: self.views]):
            name = short(self.state["keys"][-1]).capitalize() + "s" if number == 2 and self.state.get("keys") else name
            name = "Nodes" if number == 2 and self.state and not self.state["keys"] else name
            label = f" {name} {counts[number] if counts else ''} "
            tabs.append(label, style="reverse bold" if number == self.view else "")
            tabs.append(" ")
        if self.search or self.typing:
            tabs.append(f" /{self.search}{'_' if self.typing else ''}", style="bold")
        return tabs

    def _free_devices(self) -> str:
        found = self.state.get("devices") or ()
        return f"{sum(each['free'] for each in found)} free"

    def _table(self, width: int, room: int | None) -> list[Text]:
        rows = self.rows()
        chosen = min(self._chosen.get(self.view, 0), max(0, len(rows) - 1))
        reason = textwrap.wrap(rows[chosen].more, max(20, width - 2))[:MOST_REASON] if rows and room is not None else []
        lines = [self._tabs()]
        if not rows:
            lines.append(Text(self._nothing(), style="dim"))
            fit, first = 0, 0
        else:
            widths = self._widths(rows, width)
            lines.append(Text(_line(self._marked_heads(), widths), style="dim"))
            fit = len(rows) if room is None else max(1, room - 3 - len(reason))
            first = self._top.get(self.view, 0)
            first = max(0, min(first, chosen, len(rows) - fit), chosen - fit + 1)
            self._top[self.view], self._page = first, fit
            for number in range(first, min(len(rows), first + fit)):
                row = rows[number]
                style = f"{row.style} reverse" if number == chosen and room is not None else row.style
                lines.append(Text(_line(row.cells, widths), style=style.strip()))
                if room is None and self.view == 0:
                    lines += [Text(f"     {part}") for part in textwrap.wrap(row.more, max(20, width - 5))]
        if room is None:
            return lines
        lines += [Text("")] * (room - len(lines) - 1 - len(reason))
        lines += [Text(f" {line}") for line in reason]
        left = f" {first + fit} of {len(rows)}" if rows and fit < len(rows) else ""
        lines.append(Text(("type to search · enter keeps it · esc ends" if self.typing else HELP) + left, style="dim"))
        return lines

    def _nothing(self) -> str:
        if self.search:
            return f"nothing matches {self.search!r}; esc shows everything"
        return (
            "nothing waits",
            "there are no groups; try: kubectl apply -f examples/podgroup-topology.yaml",
            "there are no nodes; start some with: phalanx nodes --nodes 10",
            "there are no devices",
        )[self.view]

    def _widths(self, rows: list[TableLine], width: int) -> list[int]:
        """Return the width of each column.

        A column is as wide as its content, and 0 if namespace or priority is the same in all rows. If there is not
        enough room, namespaces become narrower first, then names, then reasons.
        """
        heads = self._heads()
        marked = self._marked_heads()
        widths = [max(len(marked[n]), *(len(row.cells[n]) for row in rows)) for n in range(len(heads))]
        for number, head in enumerate(heads):
            if head in ("NAMESPACE", "PRIO", "TOPOLOGY") and len({row.cells[number] for row in rows}) == 1:
                widths[number] = 0 if head != "TOPOLOGY" or not rows[0].cells[number] else widths[number]
        if self.view == 0:
            widths[-1] = min(widths[-1], 28)

        def over() -> int:
            return sum(widths) + 2 * (sum(map(bool, widths)) - 1) - width

        name = heads[1 if self.view == 0 else 0]
        for head, least in (("NAMESPACE", 12), (name, 26), ("REASON", 16), (name, 12)):
            number = heads.index(head) if head in heads else -1
            if number >= 0 and widths[number] > least:
                widths[number] = max(least, widths[number] - max(0, over()))
        if self.view == 0:
            widths[-1] = max(8, widths[-1] - over())
        return widths

    def _answer(self, width: int, room: int | None) -> list[Text]:
        wrapped: list[str] = []
        for line in self.detail or ():
            label = LABEL.match(line)  # what belongs to "would help:" stays below its first word
            indent = " " * (label.end() if label and width >= 60 else len(line) - len(line.lstrip()) + 2)
            wrapped += textwrap.wrap(line, max(20, width), subsequent_indent=indent) or [""]
        if room is None:
            return [Text(line) for line in wrapped]
        fit = max(1, room - 2)
        self._page, self._scrolled = fit, max(0, min(self._scrolled, len(wrapped) - fit))
        lines = [Text(self.title, style="reverse bold")]
        lines += [Text(line) for line in wrapped[self._scrolled : self._scrolled + fit]]
        lines += [Text("")] * (room - len(lines) - 1)
        left = f" {min(len(wrapped), self._scrolled + fit)} of {len(wrapped)} lines" if len(wrapped) > fit else ""
        return [*lines, Text(HELP_DETAIL + left, style="dim")]


def _line(cells: tuple[str, ...], widths: list[int]) -> str:
    cut = [_cut(cell, size) for cell, size in zip(cells, widths, strict=True)]
    return "  ".join(f"{cell:<{size}}" for cell, size in zip(cut, widths, strict=True) if size).rstrip()


def _cut(cell: str, size: int) -> str:
    """Shorten a cell; a name is cut in the middle, since names mostly differ at the end."""
    if len(cell) <= size or not size:
        return cell
    end = 0 if " " in cell.strip() else size // 3
    return f"{cell[: size - 1 - end]}…{cell[len(cell) - end :]}"


def nodes_text(found: Json) -> str:
    """Format the nodes of one domain as a table: what is free, how many pods, of which groups."""
    resources = found["resources"][:MOST_RESOURCES]
    rows = []
    for name, _, has, used, flags, _, shares in found["nodes"]:
        state = next((word for bit, word in STATES if flags & bit), "")
        groups = ", ".join(sorted(key.rpartition("/")[2] for key in shares if not key.startswith(f"{ALONE}/"))) or (
            "pods alone" if shares else ""
        )
        free = [
            f"{amount(of, max(0, each - taken))} of {amount(of, each)}"
            for of, each, taken in zip(resources, has, used, strict=False)
        ]
        share = used[0] / has[0] if has and has[0] else 0.0
        rows.append((name, _bar(share), *free, str(sum(pods for pods, _ in shares.values())), state, groups))
    heads = ("NODE", "USE", *(f"{short(of).upper()} FREE" for of in resources), "PODS", "STATE", "GROUPS")
    return table(heads, rows)


def _bar(used: float, cells: int = 8) -> str:
    full = round(used * cells)
    return "█" * full + "░" * (cells - full)
