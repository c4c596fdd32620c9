"""Who may look: one-time links, cookies that expire, and requests that come from elsewhere."""

from __future__ import annotations

import re
import socket
import time
from pathlib import Path

import pytest

from phalanx.base.errors import ConfigProblem, Unauthorized
from phalanx.cli.main import cli
from phalanx.web import dashboard
from phalanx.web.dashboard import Dashboard
from phalanx.web.login import LINK_SECONDS, MOST_LINKS, SESSION_SECONDS, Login
from support.dashboard import Browser, Watched
from support.large_engine import Standing, large_engine
from support.local_cluster import LocalCluster


def test_a_link_logs_in_one_browser_once(watched: Watched) -> None:
    link = watched.dashboard.link()
    mine, other = watched.browser(login=False), watched.browser(login=False)
    assert mine.ask("GET", "/api/snapshot")[0] == 401
    assert mine.login(link) == 200
    assert mine.get("/api/session")["may"] == "ask"
    assert other.login(link) == 401
    code, announced = other.ask("GET", "/api/snapshot")
    assert (code, announced["message"]) == (401, "you are not logged in here")


def test_the_cookie_is_out_of_reach_of_scripts_and_of_other_sites(watched: Watched) -> None:
    browser = watched.browser()
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= {part.strip() for part in browser.set_cookie.split(";")}
    port = watched.dashboard.url.rstrip("/").rpartition(":")[2]
    assert browser.cookie.startswith(f"phalanx-{port}=")  # two clusters on one machine do not log each other out


def test_a_logout_ends_every_copy_of_the_cookie(watched: Watched) -> None:
    browser = watched.browser()
    kept = browser.cookie
    assert browser.ask("DELETE", "/api/session", Origin="http://evil.example")[0] == 403  # no other page logs you out
    assert browser.ask("DELETE", "/api/session")[0] == 200
    browser.cookie = kept
    code, announced = browser.ask("GET", "/api/snapshot")
    assert code == 401 and announced["message"] == "you are logged out"
    assert watched.browser().ask("GET", "/api/snapshot")[0] == 200  # others stay


def test_a_logout_is_remembered_by_the_next_process(tmp_path: Path) -> None:
    now = [1000.0]
    file = tmp_path / "dashboard-logouts"

    def process() -> Login:
        return Login.keyed("the token of the data directory", lambda: now[0], file)

    first = process()
    left, stays = first.redeem(first.link()), first.redeem(first.link())
    first.leave(left)
    assert file.stat().st_mode & 0o777 == 0o600
    assert first.key(left) not in file.read_text() and first.key(stays) not in file.read_text()
    second = process()
    assert second.may(stays) == "ask"
    with pytest.raises(Unauthorized, match="logged out"):
        second.may(left)
    now[0] += SESSION_SECONDS + 1  # what has run out anyway is not kept
    again = second.redeem(second.link())
    second.leave(again)
    assert file.read_text().count(":") == 1


def test_a_file_of_logouts_that_cannot_be_read_ends_all_earlier_logins(tmp_path: Path) -> None:
    now = [1000.0]
    file = tmp_path / "dashboard-logouts"
    first = Login.keyed("secret", lambda: now[0], file)
    before = first.redeem(first.link())
    file.write_text('{"cut')
    now[0] += 60
    second = Login.keyed("secret", lambda: now[0], file)
    with pytest.raises(Unauthorized, match="logged out"):
        second.may(before)
    assert second.may(second.redeem(second.link())) == "ask"


def test_another_link_needs_the_token_of_the_api_server(watched: Watched) -> None:
    assert watched.ask("GET", "/phalanx/v1/dashboard", token="wrong").code == 401
    url = watched.get("/phalanx/v1/dashboard")["url"]
    assert watched.browser(login=False).login(url) == 200


def test_links_and_logins_expire_and_say_so() -> None:
    now = [1000.0]
    login = Login(b"key", lambda: now[0])
    late = login.link()
    cookie = login.redeem(login.link())
    assert login.may(cookie) == "ask"
    now[0] += LINK_SECONDS + 1
    with pytest.raises(Unauthorized, match="link has expired"):
        login.redeem(late)
    now[0] = 1000 + SESSION_SECONDS + 1
    with pytest.raises(Unauthorized, match="login has expired"):
        login.may(cookie)


def test_a_login_that_ends_ends_the_pages_it_opened() -> None:
    standing = Standing(large_engine(nodes=64, pods=8))
    try:
        browser = Browser(standing.url)
        assert browser.login(standing.link()) == 200
        stream = browser.follow(browser.get("/api/snapshot")["id"])
        standing.publish({"sample": {"t": 1}})
        assert stream.until(lambda change: "sample" in change)
        standing.login._now = lambda: time.time() + SESSION_SECONDS + 60
        standing.publish({"sample": {"t": 2}})
        with pytest.raises(AssertionError, match="ended"):
            stream.until(lambda change: False)
        code, announced = browser.ask("GET", "/api/snapshot")
        assert code == 401 and "expired" in announced["message"]
    finally:
        standing.stop()


@pytest.mark.parametrize(
    "change", [lambda c: c.replace(".look.", ".ask."), lambda c: c[:-1] + "~", lambda c: "", lambda c: "a.b"]
)
def test_a_cookie_that_the_server_did_not_write_is_refused(change) -> None:
    login = Login(b"key", lambda: 0.0)
    with pytest.raises(Unauthorized):
        login.may(change(login.cookie("look")))
    with pytest.raises(Unauthorized):
        Login(b"other", lambda: 0.0).may(login.cookie("look"))


def test_unused_links_do_not_pile_up() -> None:
    login = Login(b"key", lambda: 0.0)
    links = [login.link() for _ in range(MOST_LINKS + 5)]
    with pytest.raises(Unauthorized):
        login.redeem(links[0])
    assert login.redeem(links[-1])


@pytest.mark.parametrize("host", ["evil.example", "evil.example:7480", "10.0.0.7:80", "localhost.evil.example", ""])
def test_a_name_that_was_bent_to_loopback_is_refused(watched: Watched, host: str) -> None:
    code, announced = watched.browser().ask("GET", "/api/snapshot", Host=host)
    assert code in (400, 403), announced


def test_requests_of_other_pages_are_refused(watched: Watched) -> None:
    browser = watched.browser()
    other = "http://127.0.0.1:1"  # another port is the same site for cookies
    assert browser.ask("POST", "/api/whatif", {"text": "a: 1"}, Origin=other)[0] == 403
    assert browser.ask("GET", "/api/snapshot", Origin=other)[0] == 403
    assert browser.ask("GET", "/api/snapshot", Sec_Fetch_Site="same-site", Sec_Fetch_Mode="cors")[0] == 403
    assert browser.ask("GET", "/", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="navigate")[0] == 200  # a followed link
    assert browser.ask("GET", "/api/snapshot", Sec_Fetch_Site="same-origin")[0] == 200


def test_every_answer_is_sealed(watched: Watched) -> None:
    browser = watched.browser()
    for path in ("/", "/app.js", "/api/snapshot", "/api/nothing", "/../../etc/passwd", "/%2e%2e/site.py"):
        browser.ask("GET", path)
        policy = browser.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
        assert browser.headers["x-content-type-options"] == "nosniff"
    assert browser.ask("GET", "/%2e%2e/site.py")[0] == 404


def test_a_restarted_server_knows_the_pages_that_were_open(tmp_path: Path) -> None:
    port = 0
    cookie = ""
    for _ in range(2):
        listen = f"127.0.0.1:{port}"
        cluster = Watched(tmp_path, data=tmp_path / "data", listen=listen, nodes=1)
        cluster.start()
        try:
            browser = Browser(cluster.dashboard.url)
            if not cookie:
                assert browser.login(cluster.dashboard.link()) == 200
                cookie = browser.cookie
            browser.cookie = cookie
            assert browser.get("/api/session")["may"] == "ask"
            port = int(re.findall(r":(\d+)/", cluster.dashboard.url)[0])
        finally:
            cluster.stop()


def test_the_dashboard_never_leaves_the_machine() -> None:
    with pytest.raises(ConfigProblem, match="not a loopback address"):
        Dashboard("0.0.0.0:7480")


def test_a_taken_port_is_no_reason_not_to_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        monkeypatch.setattr(dashboard, "DEFAULT", where)
        cluster = Watched(tmp_path, listen="", nodes=1)
        cluster.start()
        try:
            assert where not in cluster.dashboard.url
            assert cluster.browser().get("/api/session")["may"] == "ask"
        finally:
            cluster.stop()
        chosen = Watched(tmp_path, listen=where, nodes=1)
        with pytest.raises(ConfigProblem, match="choose another address"):
            chosen.start()


def test_the_command_prints_another_link(watched: Watched, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["dashboard", "--kubeconfig", str(watched.kubeconfig)], standalone_mode=False) == 0
    assert watched.browser(login=False).login(capsys.readouterr().out.strip()) == 200


def test_the_command_says_when_there_is_no_dashboard(server: LocalCluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["dashboard", "--kubeconfig", str(server.kubeconfig)], standalone_mode=False) == 2
    assert "has no dashboard" in capsys.readouterr().err
