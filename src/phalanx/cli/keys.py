"""Read single keys from a terminal without waiting for Enter, and restore its settings at the end."""

from __future__ import annotations

import asyncio
import os
import sys
import termios
from types import TracebackType

_SEQUENCES = {
    "A": "up", "B": "down", "C": "right", "D": "left", "H": "home", "F": "end", "Z": "backtab",
    "5~": "pageup", "6~": "pagedown", "1~": "home", "4~": "end", "7~": "home", "8~": "end",
}  # fmt: skip
_PLAIN = {"\r": "enter", "\n": "enter", "\t": "tab", "\x7f": "backspace", "\x08": "backspace", "\x1b": "escape"}
_SHOW, _HIDE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"


def named(text: str) -> list[str]:
    """Return the names of the keys that a terminal sent; a letter is its own name."""
    keys, at = [], 0
    while at < len(text):
        if text[at] == "\x1b" and text[at + 1 : at + 2] in ("[", "O"):
            end = at + 2
            while end < len(text) and not (text[end].isalpha() or text[end] == "~"):
                end += 1
            found = _SEQUENCES.get(text[at + 2 : end + 1])
            keys += [found] if found else []
            at = end + 1
            continue
        if text[at] in _PLAIN:
            keys.append(_PLAIN[text[at]])
        elif text[at].isprintable():
            keys.append(text[at])
        at += 1
    return keys


class Keys:
    """Use as a context manager inside a running loop: a screen of its own, and `next` waits for keys."""

    def __init__(self) -> None:
        self._pressed: asyncio.Queue[str] = asyncio.Queue()
        self._descriptor = sys.stdin.fileno()

    def __enter__(self) -> Keys:
        self._before = termios.tcgetattr(self._descriptor)
        mode = termios.tcgetattr(self._descriptor)
        mode[3] &= ~(termios.ICANON | termios.ECHO)  # Ctrl-C still is a signal
        # Ctrl-Z would leave the terminal in its changed mode, and the shell could not be used.
        mode[6][termios.VSUSP] = b"\0"
        termios.tcsetattr(self._descriptor, termios.TCSADRAIN, mode)
        sys.stdout.write(_SHOW)
        sys.stdout.flush()
        asyncio.get_running_loop().add_reader(self._descriptor, self._read)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        asyncio.get_running_loop().remove_reader(self._descriptor)
        try:
            sys.stdout.write(_HIDE)
            sys.stdout.flush()
        finally:
            termios.tcsetattr(self._descriptor, termios.TCSADRAIN, self._before)

    def _read(self) -> None:
        text = os.read(self._descriptor, 1024).decode(errors="replace")
        for key in named(text) if text else ["q", "q"]:  # the terminal is gone
            self._pressed.put_nowait(key)

    async def next(self) -> str:
        return await self._pressed.get()
