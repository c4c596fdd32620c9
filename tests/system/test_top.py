"""`phalanx top`: in a real pseudo-terminal against a real cluster, on small screens, and for scripts."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from select import select
from typing import Any

import pytest

from phalanx.cli.keys import named
from phalanx.cli.screen import Screen
from phalanx.model.names import without_hash
from support.local_cluster import LocalCluster

GROUPS = "/apis/scheduling.k8s.io/v1beta1/namespaces/default/podgroups"
PODS = "/api/v1/namespaces/default/pods"
PATIENCE = 60.0


@pytest.fixture(scope="module")
def up(start_cluster: Callable[..., LocalCluster]) -> LocalCluster:
    """Two racks of two nodes with eight GPUs each; a gang of three waits for one rack, a pod has its place."""
    cluster = start_cluster(nodes=4, topology="racks=2,gpus=8")
    rack = {"topology": [{"key": "topology.phalanx.dev/rack"}]}
    spec = {"schedulingPolicy": {"gang": {"minCount": 3}}, "schedulingConstraints": rack}
    cluster.create(
        GROUPS,
        {"apiVersion": "scheduling.k8s.io/v1beta1", "kind": "PodGroup", "metadata": {"name": "train"}, "spec": spec},
    )
    for name, gpus, link in (
        ("alone", 1, {}),
        *((f"train-{i}", 8, {"schedulingGroup": {"podGroupName": "train"}}) for i in range(3)),
    ):
        container = {"name": "c", "image": "app", "resources": {"limits": {"nvidia.com/gpu": gpus}}}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": [container]}}
        pod["spec"] |= link  # type: ignore[operator]
        cluster.create(PODS, pod)
    cluster.wait(f"{GROUPS}/train", lambda group: (group.get("status") or {}).get("conditions"))
    cluster.wait(f"{PODS}/alone", lambda pod: pod["spec"].get("nodeName"))
    return cluster


class Terminal:
    """A pseudo-terminal with `phalanx top` in it."""

    def __init__(self, cluster: LocalCluster, **environment: str) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self._theirs = theirs
        self.before = termios.tcgetattr(theirs)
        kept = {key: os.environ[key] for key in ("PATH", "HOME", "PYTHONPATH") if key in os.environ}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "phalanx", "top", "--every", "0.2", "--kubeconfig", str(cluster.kubeconfig)],
            stdin=theirs, stdout=theirs, stderr=theirs,
            env={**kept, "TERM": "xterm-256color", **environment},
            start_new_session=True,
        )  # fmt: skip
        self.said = ""

    def press(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def _read(self) -> bool:
        """One piece more; False: the program has ended and everything is read."""
        ready, _, _ = select([self._ours], [], [], 0.2)
        if ready:
            self.said += os.read(self._ours, 1 << 16).decode(errors="replace")
        return bool(ready) or self.process.poll() is None

    def frame(self) -> list[str]:
        """The last frame that was drawn whole, without escape sequences."""
        whole = self.said.rpartition("\x1b[J")[0].rpartition("\x1b[H")[2]
        return [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line).rstrip() for line in whole.split("\r\n")]

    def see(self, *texts: str) -> list[str]:
        """Reads until a frame shows all of them."""
        while not all(text in "\n".join(self.frame()) for text in texts):
            assert self._read(), f"ended without {texts}:\n{self.said[-3000:]}"
        return self.frame()

    def end(self) -> int:
        while self._read():
            pass
        code = self.process.wait(PATIENCE)
        # The screen is left, the cursor is back and the terminal is as it was found.
        assert self.said.rstrip().endswith("\x1b[?25h\x1b[?1049l"), self.said[-300:]
        assert termios.tcgetattr(self._theirs) == self.before
        return code

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._ours)
        os.close(self._theirs)


@pytest.fixture
def terminal(up: LocalCluster) -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def open_one(**environment: str) -> Terminal:
        opened.append(Terminal(up, **environment))
        return opened[-1]

    yield open_one
    for each in opened:
        each.close()


def test_a_person_walks_through_the_views_and_asks_why(terminal: Callable[..., Terminal]) -> None:
    top = terminal()
    frame = top.see("Queue 1", "train", "waiting", "short of GPU", "Needs 3 pods at once in one rack", "when tried")
    assert len(frame) == 24 and all(len(line) <= 80 for line in frame)
    assert frame[0].startswith("phalanx top  4 nodes") and "q quit" in frame[-1]
    assert re.search(r"\x1b\[[0-9;]*33m", top.said)  # what waits has a colour
    top.press("\r")
    frame = top.see("phalanx why podgroup/train", "would help:", "q back")
    assert "podgroup/train in default: pending" in "\n".join(frame)
    top.press("q\t")
    top.see("GROUP", "gang 3", "0 of 3 pods", "one rack", "Scheduling")
    top.press("\x1b[C")
    top.see("rack-0", "rack-1", "GPU FREE", "15 of 16")
    top.press("/rack-1")
    frame = top.see("/rack-1_", "enter shows its nodes")
    assert "rack-0" not in "\n".join(frame)
    top.press("\x1b")
    top.see("rack-0", "rack-1")
    top.press("\r")
    nodes = "\n".join(top.see("nodes of rack-0", "NODE", "GROUPS", "q back"))
    assert len(re.findall(r"^node-\d+ ", nodes, re.M)) == 2  # those of the rack, and no others
    top.press("q/nonsense\r")
    top.see("nothing matches 'nonsense'")
    top.press("q")
    assert top.end() == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_gives_the_terminal_back(terminal: Callable[..., Terminal], number: int) -> None:
    top = terminal()
    top.see("Queue 1")
    top.process.send_signal(number)
    assert top.end() == 130


def test_without_colours_where_they_are_not_wanted(terminal: Callable[..., Terminal]) -> None:
    top = terminal(NO_COLOR="1")
    top.see("train", "waiting")
    assert not re.search(r"\x1b\[[0-9;]*3[1-7]m", top.said)
    top.press("q")
    assert top.end() == 0


def test_once_prints_everything_for_a_script(up: LocalCluster) -> None:
    def phalanx(*arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "COLUMNS": "80"}
        return subprocess.run([sys.executable, "-m", "phalanx", *arguments], text=True, capture_output=True,
                              env=environment, timeout=PATIENCE, check=False, stdin=subprocess.DEVNULL)  # fmt: skip

    done = phalanx("top", "--once", "--kubeconfig", str(up.kubeconfig))
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    said = " ".join(done.stdout.split())
    assert "Needs 3 pods at once in one rack; the best one, rack-" in said  # the whole sentence, not cut
    assert "ago: Needs" in said and "nodes are available" not in said
    wide = phalanx("top", "--once", "-o", "wide", "--kubeconfig", str(up.kubeconfig))
    assert "podgroup can't be scheduled" in wide.stdout or "best rack rack-" in wide.stdout
    assert "gang 3" in done.stdout and "rack-1" in done.stdout
    assert all(len(line) <= 80 for line in done.stdout.splitlines())
    live = phalanx("top", "--kubeconfig", str(up.kubeconfig))
    assert live.returncode == 2 and "phalanx top --once" in live.stderr
    alone = phalanx("top", "--once", "--kubeconfig", str(up.kubeconfig), "--scheduler", "http://127.0.0.1:9")
    assert alone.returncode == 2
    assert "no scheduler answers" in alone.stderr and "phalanx up" in alone.stderr


def test_a_server_without_a_scheduler_is_reported(server: LocalCluster) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "phalanx", "top", "--once", "--kubeconfig", str(server.kubeconfig)],
        text=True, capture_output=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert done.returncode == 2 and "no scheduler answers" in done.stderr and "Traceback" not in done.stderr


def state(roots: int = 0, **more: Any) -> dict[str, Any]:
    waiting = [
        {"key": f"podgroup/team/{'long-' * 20}{i}", "namespace": "team", "name": f"{'long-' * 20}{i}",
         "place": "waiting", "pods": 4, "priority": 7, "asked": 0.0, "tried": 7200.0, "words": "short of GPU",
         "overtaken": "", "message": "0/1 nodes are available",
         "headline": f"Needs 4 pods at once; there is room for {i}" + " and so on" * 40}
        for i in range(roots)
    ]  # fmt: skip
    queue = {"roots": waiting, "total": roots, "pods": 4 * roots, "oldest": 100.0}
    return {"now": 7300.0, "nodes": 0, "keys": [], "resources": [], "use": {}, "queue": queue, "groups": {},
            "groupCount": 0, "domains": [], **more}  # fmt: skip


@pytest.mark.parametrize(("width", "height"), [(80, 24), (40, 10), (200, 60), (20, 6)])
def test_every_view_fits_every_screen(width: int, height: int) -> None:
    screen = Screen("https://127.0.0.1:7443", state(roots=100))
    for _ in range(3):
        lines = screen.draw(width, height).plain.split("\n")
        assert len(lines) == height and all(len(line) <= width for line in lines)
        screen.press("tab")
    screen.open("why", "  a word " * 500)
    lines = screen.draw(width, height).plain.split("\n")
    assert len(lines) == height and all(len(line) <= width for line in lines)


def test_the_chosen_row_stays_on_the_screen() -> None:
    screen = Screen("here", state(roots=100))
    for key in ("G", "pageup", "k", "k", "G"):
        screen.press(key)
        screen.draw(80, 24)
    assert screen.press("enter") == f"why podgroup/team/{'long-' * 20}99"
    assert " 100  " in screen.draw(80, 24).plain.replace("\n", " ")
    assert "2h" in screen.draw(80, 24).plain
    screen.press("g")
    assert screen.press("p") == f"plan podgroup/team/{'long-' * 20}0"


def test_the_reason_comes_before_how_often_a_unit_was_overtaken() -> None:
    waiting = state(roots=1)
    waiting["queue"]["roots"][0] |= {"overtaken": "overtaken by 6 younger pods", "headline": "Needs 4 pods at once"}
    (row,) = Screen("here", waiting).rows()
    assert row.more == "when tried 100s ago: Needs 4 pods at once; overtaken by 6 younger pods"


def test_an_empty_cluster_says_what_to_do() -> None:
    screen = Screen("here", state())
    assert "nothing waits" in screen.draw(80, 24).plain and screen.press("enter") == ""
    screen.press("3")
    assert "phalanx nodes" in screen.draw(80, 24).plain
    assert screen.press("q") == "quit"


def test_keys_have_names() -> None:
    assert named("\x1b[A\x1bOBj\x1b[5~\x1b\r\t/ü\x7f\x1b[200~x") == [
        "up", "down", "j", "pageup", "escape", "enter", "tab", "/", "ü", "backspace", "x",
    ]  # fmt: skip


def test_forty_waiting_gangs_are_distinguished_on_a_small_screen() -> None:
    roots = state(roots=4)["queue"]["roots"]
    names = ["eval-1-5c9f7b6d8f-eval-1-pgt-0-7887bf9bd8", "eval-2-5c9f7b6d8f-eval-2-pgt-0-7887bf9bd9",
             "pretraining-of-a-large-model-seed-11", "pretraining-of-a-large-model-seed-12"]  # fmt: skip
    words = ["short of GPU", "node selector", "short of memory", "members missing"]
    for number, root in enumerate(roots):
        root |= {
            "name": names[number],
            "key": f"podgroup/team/{names[number]}",
            "namespace": f"team-{number}",
            "words": words[number],
        }
    screen = Screen("here", state(queue={"roots": roots, "total": 4, "pods": 16, "oldest": 1.0}))
    drawn = screen.draw(80, 24).plain.split("\n")
    assert "PRIO" not in drawn[2]  # the same in all rows
    assert [line.split()[1] for line in drawn[3:5]] == ["eval-1", "eval-2"]
    assert drawn[5] != drawn[6] and "seed-11" in drawn[5] and "seed-12" in drawn[6]
    wide = screen.draw(140, 24).plain.split("\n")
    for line, reason in zip(wide[3:7], words, strict=True):
        assert reason in line
    screen.press("/")
    for letter in "pgt-0":  # the whole name is searched, too
        screen.press(letter)
    assert "eval-1" in screen.draw(80, 24).plain and "seed" not in screen.draw(80, 24).plain


def test_rows_are_sorted_by_any_column_and_back() -> None:
    roots = state(roots=3)["queue"]["roots"]
    for root, (name, pods) in zip(roots, (("b", 9), ("a", 10), ("c", 2)), strict=True):
        root |= {"name": name, "key": f"podgroup/team/{name}", "pods": pods}
    screen = Screen("here", state(queue={"roots": roots, "total": 3, "pods": 21, "oldest": 1.0}))

    def shown() -> str:
        return "".join(row.cells[1] for row in screen.rows())

    assert shown() == "bac"
    screen.press("s")
    screen.press("s")
    assert shown() == "abc" and "UNIT↓" in screen.draw(80, 24).plain
    screen.press("r")
    assert shown() == "cba" and "UNIT↑" in screen.draw(80, 24).plain
    for _ in range(2):
        screen.press("s")
    assert shown() == "abc" and "PODS↑" in screen.draw(80, 24).plain  # 10, 9, 2: numbers, not texts
    for _ in range(5):
        screen.press("s")
    screen.press("r")
    assert shown() == "bac"  # after the last column the order of the queue


def test_a_question_mark_shows_the_keys() -> None:
    screen = Screen("here", state(roots=1))
    assert "? help" in screen.draw(80, 24).plain
    screen.press("?")
    help_page = screen.draw(80, 24).plain
    assert "sort by the next column" in help_page and "page up" in help_page
    screen.press("q")
    assert screen.detail is None


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("eval-1-5c9f7b6d8f-eval-1-pgt-0-7887bf9bd8", "eval-1"),
        ("eval-5c-eval-pgt-2-7", "eval-2"),  # upstream prints hashes without leading zeros
        ("train-0123456789abcdef0123456789abcdef01234567", "train"),
        ("web-6d4cf56db6", "web"),
        ("train-workers-10000", "train-workers-10000"),
        ("model-h100", "model-h100"),
        ("node-affinity", "node-affinity"),
        ("worker-7", "worker-7"),
        ("w-train/pg-train/", "w-train/pg-train"),  # a group of a Workload, without replicas
    ],
)
def test_hashes_of_any_length_are_left_out_of_names(name: str, short: str) -> None:
    assert without_hash(name) == short


def test_devices_are_shown_by_class_and_domain_where_there_are_any() -> None:
    screen = Screen("here")
    screen.state = state()
    assert screen.views == 3
    counts = {"devices": 8, "inUse": 5, "tainted": 1, "free": 2, "mostOnNode": 2}
    screen.state["devices"] = [{"deviceClass": "gpu", "path": ["r0"], **counts}]
    screen.press("4")
    lines = screen.draw(120, 24).plain.splitlines()
    head = next(number for number, line in enumerate(lines) if line.startswith("CLASS"))
    assert "MOST ON A NODE" in lines[head] and lines[head + 1].split() == ["gpu", "r0", "8", "5", "1", "2", "2"]
    assert "Devices 2 free" in "\n".join(lines[:head])
