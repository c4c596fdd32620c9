"""The same page in Firefox: it logs in, draws the map, lights up a gang, answers why, what-if, plan, and reconnects."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.browser import SHOTS, Up
from support.firefox import Firefox, firefox, firefox_path


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    if not firefox_path():
        pytest.skip("no Firefox: apt-get install firefox-esr, or name one in PHALANX_FIREFOX")
    process = Up(tmp_path, "--demo")
    yield process
    process.stop()


def test_every_view_in_firefox(up: Up, tmp_path: Path) -> None:
    asyncio.run(_walk_through_the_page(up, tmp_path / "profile"))


def text(selector: str) -> str:
    return f"(document.querySelector({selector!r})?.innerText ?? '')"


async def _walk_through_the_page(up: Up, profile: Path) -> None:
    link = up.start()
    async with firefox(profile) as page:
        await page.go(link)
        await page.until("document.getElementById('state').dataset.state === 'live'", "it did not log in")
        assert "login" not in await page.run("location.href")
        await page.until("phalanx.map.painted && phalanx.cluster.nodes.size === 32", "there is no map")
        assert await page.run("phalanx.map.cells.getContext('2d').getImageData(300, 300, 400, 300).data.some(Boolean)")
        await page.until(f"{text('#guide')}.includes('All or nothing')", "the guide does not open")
        await page.run("document.querySelector('#guide .primary').click()")
        await page.until("phalanx.map.members.length === 8 && phalanx.map.chosen?.size === 8", "no ranks")
        await page.shot(SHOTS / "firefox-groups.png")
        await page.until("phalanx.cluster.queue.roots[0]?.message.includes('room for 20')", "evaluation does not wait")
        root = await page.run("phalanx.cluster.queue.roots[0].key")
        await page.run(f"phalanx.go('why', {root!r})")
        await page.until("document.querySelectorAll('.pips .out').length === 4", "why shows no picture")
        await page.until("document.querySelector('.remedy.fits')", "no remedy was tried")
        await page.run("document.querySelector('.remedy.fits').click()")
        await page.until(f"{text('.compare')}.includes('yes')", "the variants are not compared")
        await page.until("phalanx.map.overlay?.marks.size > 0", "nothing is marked")
        await page.run(f"phalanx.go('plan', {root!r})")
        await page.until(f"{text('.verdict')}.includes('Evictions do not help')", "there is no word on evictions")
        await page.run("phalanx.go('time')")
        await page.until("document.querySelectorAll('.plot').length === 6", "there are no plots")
        await _reconnects(page, up)
        assert not page.problems, page.problems


async def _reconnects(page: Firefox, up: Up) -> None:
    await asyncio.to_thread(up.stop)
    await page.until("document.getElementById('state').dataset.state === 'away'", "the page did not notice the restart")
    await asyncio.to_thread(up.start)
    await page.until("document.getElementById('state').dataset.state === 'live'", "it does not come back")
