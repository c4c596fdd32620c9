"""A real browser, a real `phalanx up`, and a small client of its API server.

The browser is Debian's Chromium (or whatever PHALANX_BROWSER names); nothing is downloaded. Screenshots go to
build/screenshots, or where PHALANX_SCREENSHOTS says.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import shutil
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

SHOTS = Path(os.environ.get("PHALANX_SCREENSHOTS") or Path(__file__).parents[2] / "build" / "screenshots")
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--enable-precise-memory-info", "--js-flags=--expose-gc",
)  # fmt: skip
ACCESSIBILITY = (Path(__file__).parent / "accessibility.js").read_text()


def browser_path() -> str:
    for name in (os.environ.get("PHALANX_BROWSER", ""), "chromium", "chromium-browser", "google-chrome"):
        if name and (found := shutil.which(name)):
            return found
    return ""


def driver_problem() -> str:
    """Why what drives the browser would not start, and what helps; "" where it does."""
    from playwright._impl._driver import compute_driver_executable

    node, _ = compute_driver_executable()
    done = subprocess.run([node, "--version"], capture_output=True, text=True, check=False, timeout=60)
    if done.returncode == 0:
        return ""
    return f"playwright's driver does not start ({done.stderr.strip()[-200:]}): apt-get install libatomic1"


@contextmanager
def chromium(directory: Path) -> Iterator[Any]:
    """A browser with a profile of its own; skips the test where there is none."""
    path = browser_path()
    if not path:
        pytest.skip("no browser: apt-get install chromium, or name one in PHALANX_BROWSER")
    sync = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: make venv")
    if problem := driver_problem():
        pytest.skip(problem)
    with sync.sync_playwright() as play:
        context = play.chromium.launch_persistent_context(
            str(directory / "profile"), executable_path=path, args=list(FLAGS), color_scheme="dark",
            viewport={"width": 1360, "height": 820},
        )  # fmt: skip
        context.set_default_timeout(20_000)
        try:
            yield context
        finally:
            context.close()


def watched_page(context: Any) -> Any:
    """A page whose errors fail the test: scripts that throw, and whatever the content security policy refuses."""
    page = context.new_page()
    page.problems = []
    page.on("pageerror", lambda error: page.problems.append(str(error)))
    page.on(
        "console",
        lambda message: (
            page.problems.append(message.text)
            if message.type == "error" and "Failed to load resource" not in message.text
            else None
        ),
    )
    return page


def shot(page: Any, name: str) -> None:
    SHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=str(SHOTS / f"{name}.png"))


def accessible(page: Any, where: str) -> None:
    """Names, labels, headings, contrast and widths of what is on the page now."""
    found = page.evaluate(ACCESSIBILITY)
    assert not found, f"{where}: " + "; ".join(found[:10])


def until(page: Any, condition: str, what: str) -> None:
    """Until an expression about the page's own state holds."""
    script = """async (text) => {
        const {cluster, map} = phalanx, holds = CONDITION;
        for (let turn = 0; turn < 400; turn++) {
            if (holds(cluster, map)) return true;
            await new Promise((done) => setTimeout(done, 50));
        }
        return false;
    }"""
    assert page.evaluate(script.replace("CONDITION", condition), ""), what


class Up:
    """`phalanx up` as a process; `start` again after `stop` keeps data and ports."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        self.directory = directory
        self._arguments = arguments
        self._listen = self._dashboard = "127.0.0.1:0"
        self._process: subprocess.Popen[str] | None = None
        self._lives = 0

    @property
    def recording(self) -> Path:
        """Of its present life."""
        return self.directory / f"run-{self._lives}.jsonl"

    def start(self) -> str:
        """The login link."""
        command = [str(Path(sys.executable).parent / "phalanx"), "up", "--data", str(self.directory / "data")]
        self._lives += 1
        command += ["--listen", self._listen, "--dashboard", self._dashboard, "--record", str(self.recording)]
        command += self._arguments
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        ready, link = "", ""
        for line in self._process.stdout:
            ready = line if line.startswith("ready") else ready
            if line.startswith("dashboard "):
                link = line.split()[1]
                break
        assert ready and link, "it did not start"
        self._listen = urlsplit(ready.split()[1]).netloc
        self._dashboard = urlsplit(link).netloc
        self.kube = Kube(self.directory / "data" / "kubeconfig")
        return link

    def freeze(self, number: int = signal.SIGSTOP) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def stop(self, number: int = signal.SIGTERM) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(30)
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None


class Kube:
    """Objects by YAML, over the API server's TLS port with its token."""

    def __init__(self, kubeconfig: Path) -> None:
        found = yaml.safe_load(kubeconfig.read_text())
        cluster = found["clusters"][0]["cluster"]
        self._token = found["users"][0]["user"]["token"]
        self._where = urlsplit(cluster["server"])
        ca = base64.b64decode(cluster["certificate-authority-data"]).decode()
        self._tls = ssl.create_default_context(cadata=ca)

    def ask(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> Any:
        connection = http.client.HTTPSConnection(
            self._where.hostname or "", self._where.port, context=self._tls, timeout=60
        )
        try:
            headers = {"Authorization": f"Bearer {self._token}", "Content-Type": kind}
            connection.request(method, path, json.dumps(body) if body is not None else None, headers)
            reply = connection.getresponse()
            text = reply.read()
            assert reply.status < 300, text
            return json.loads(text)
        finally:
            connection.close()

    def apply(self, text: str, namespace: str = "default") -> None:
        for document in yaml.safe_load_all(text):
            if document:
                self.create(document, namespace)

    def create(self, body: Any, namespace: str = "default") -> None:
        group = body["apiVersion"]
        base = f"/apis/{group}" if "/" in group else f"/api/{group}"
        plural = {"PriorityClass": "priorityclasses"}.get(body["kind"], f"{body['kind'].lower()}s")
        where = "" if body["kind"] == "PriorityClass" else f"/namespaces/{namespace}"
        self.ask("POST", f"{base}{where}/{plural}", body)
