"""Firefox, driven over WebDriver BiDi, which it speaks by itself: no driver, nothing to download."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp
import pytest


def firefox_path() -> str:
    for name in (os.environ.get("PHALANX_FIREFOX", ""), "firefox-esr", "firefox"):
        if name and (found := shutil.which(name)):
            return found
    return ""


class Firefox:
    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket, self._ids = socket, count(1)
        self.problems: list[str] = []  # scripts that threw, and what the content security policy refused
        self._tab = ""

    async def ask(self, method: str, **params: Any) -> Any:
        number = next(self._ids)
        await self._socket.send_json({"id": number, "method": method, "params": params})
        while True:
            message = json.loads((await self._socket.receive(timeout=60)).data)
            if message.get("method") == "log.entryAdded" and message["params"]["level"] == "error":
                self.problems.append(str(message["params"]["text"]))
            if message.get("id") == number:
                assert message["type"] == "success", message
                return message["result"]

    async def begin(self) -> None:
        await self.ask("session.new", capabilities={})
        await self.ask("session.subscribe", events=["log.entryAdded"])
        self._tab = (await self.ask("browsingContext.getTree"))["contexts"][0]["context"]
        await self.ask("browsingContext.setViewport", context=self._tab, viewport={"width": 1360, "height": 820})

    async def go(self, url: str) -> None:
        await self.ask("browsingContext.navigate", context=self._tab, url=url, wait="complete")

    async def run(self, script: str) -> Any:
        """The value of an expression in the page, promises awaited; numbers, texts and truth only."""
        found = await self.ask("script.evaluate", expression=script, target={"context": self._tab}, awaitPromise=True)
        assert found["type"] == "success", found
        return found["result"].get("value")

    async def until(self, condition: str, what: str) -> None:
        script = f"""(async () => {{
            for (let turn = 0; turn < 400; turn++) {{
                if ({condition}) return true;
                await new Promise((done) => setTimeout(done, 50));
            }}
            return false;
        }})()"""
        assert await self.run(script), what

    async def shot(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        found = await self.ask("browsingContext.captureScreenshot", context=self._tab)
        path.write_bytes(base64.b64decode(found["data"]))


@asynccontextmanager
async def firefox(profile: Path) -> AsyncIterator[Firefox]:
    """Skips the test where there is none."""
    path = firefox_path()
    if not path:
        pytest.skip("no Firefox: apt-get install firefox-esr, or name one in PHALANX_FIREFOX")
    profile.mkdir(parents=True, exist_ok=True)
    process = await asyncio.create_subprocess_exec(
        path, "--headless", "--no-remote", "--profile", str(profile), "--remote-debugging-port", "0", "about:blank",
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE, start_new_session=True,
        env={**os.environ, "HOME": str(profile)},
    )  # fmt: skip
    try:
        assert process.stderr is not None
        where = ""
        async with asyncio.timeout(60):
            while not where:
                line = (await process.stderr.readline()).decode(errors="replace")
                assert line, "Firefox ended before it listened"
                found = re.search(r"ws://\S+", line)
                where = found[0] if found else ""
        async with aiohttp.ClientSession() as session, session.ws_connect(f"{where}/session", max_msg_size=0) as socket:
            browser = Firefox(socket)
            await browser.begin()
            yield browser
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
