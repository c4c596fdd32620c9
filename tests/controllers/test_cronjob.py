"""CronJobs: when they run, what they do while the last run still goes on, what they keep."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from phalanx.base.clock import SystemClock
from phalanx.model import cron
from support.controller_world import DyingClient, Json, MovedClock, World, world
from support.manifests import RUN, template

NOON = datetime(2026, 3, 2, 12, 0, 5, tzinfo=UTC).timestamp()


def cron_job(name: str, schedule: str = "*/5 * * * *", seconds: str = "", **spec: Any) -> Json:
    pod = template("100m", app=name, annotations={RUN: seconds} if seconds else None)
    pod["spec"]["restartPolicy"] = "Never"
    return {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": {"name": name},
        "spec": {
            "schedule": schedule,
            "jobTemplate": {"metadata": {"labels": {"made-by": name}}, "spec": {"template": pod}},
            **spec,
        },
    }


def name_of(obj: Json) -> str:
    return str(obj["metadata"]["name"])


async def poke(cluster: World, clock: MovedClock, seconds: float, name: str = "tick") -> None:
    """Time passes, and the CronJob is looked at again."""
    clock.advance(seconds)
    await cluster.patch("CronJob", name, {"metadata": {"annotations": {"poked": str(clock.now())}}})


def test_a_job_is_made_at_each_time_and_says_for_which() -> None:
    async def scenario() -> None:
        clock = MovedClock(NOON)
        async with world(clock=clock, nodes=1) as cluster:
            created = await cluster.apply(cron_job("tick"))
            start = datetime.fromisoformat(created["metadata"]["creationTimestamp"]).timestamp()
            clock.advance(start - clock.now())
            await poke(cluster, clock, 300)
            (job,) = await cluster.eventually("Job", lambda jobs: len(jobs) == 1)
            due = (start + 300) // 300 * 300
            assert job["metadata"]["name"] == f"tick-{int(due // 60)}"
            scheduled = job["metadata"]["annotations"]["batch.kubernetes.io/cronjob-scheduled-timestamp"]
            assert datetime.fromisoformat(scheduled).timestamp() == due
            assert job["metadata"]["labels"]["made-by"] == "tick"
            assert job["metadata"]["ownerReferences"][0]["kind"] == "CronJob"
            found = await cluster.until("CronJob", "tick", when=lambda c: c.get("status", {}).get("lastScheduleTime"))
            assert found["status"]["lastScheduleTime"] == scheduled
            assert [ref["name"] for ref in found["status"]["active"]] == [job["metadata"]["name"]]

    asyncio.run(scenario())


def test_it_tells_what_it_made_and_what_went_missing() -> None:
    async def scenario() -> None:
        clock = MovedClock(SystemClock().now())
        async with world(clock=clock, nodes=1) as cluster:
            await cluster.apply(cron_job("tick", concurrencyPolicy="Forbid"))
            await poke(cluster, clock, 300)
            (job,) = await cluster.eventually("Job", lambda jobs: len(jobs) == 1)
            await cluster.until("CronJob", "tick", when=lambda c: c.get("status", {}).get("active"))
            await cluster.delete("Job", name_of(job), propagation="Background")

            def announced(events: list[Json]) -> bool:
                return {"SuccessfulCreate", "MissingJob"} <= {event["reason"] for event in events}

            await cluster.eventually("Event", announced)

    asyncio.run(scenario())


@pytest.mark.parametrize(("policy", "jobs"), [("Allow", 2), ("Forbid", 1), ("Replace", 1)])
def test_while_the_last_run_goes_on_the_policy_decides(policy: str, jobs: int) -> None:
    async def scenario() -> None:
        clock = MovedClock(SystemClock().now())
        async with world(clock=clock, nodes=1) as cluster:
            await cluster.apply(cron_job("tick", concurrencyPolicy=policy))
            await poke(cluster, clock, 300)
            (first,) = await cluster.eventually("Job", lambda jobs: len(jobs) == 1)
            await cluster.eventually("Pod", lambda pods: len(pods) == 1)
            await cluster.until("CronJob", "tick", when=lambda c: "lastScheduleTime" in c["status"])  # after its Job
            await poke(cluster, clock, 300)
            if policy == "Replace":
                await cluster.gone("Job", first["metadata"]["name"])
                await cluster.eventually("Job", lambda found: len(found) == 1)
            elif policy == "Allow":
                await cluster.eventually("Job", lambda found: len(found) == 2)
            else:
                seen = await cluster.until("CronJob", "tick", when=lambda c: c["metadata"]["annotations"]["poked"])
                assert len(cluster.names("Job")) == 1
                await cluster.delete("Job", first["metadata"]["name"], propagation="Background")
                later = await cluster.until(
                    "CronJob",
                    "tick",
                    when=lambda c: c["status"]["lastScheduleTime"] > seen["status"]["lastScheduleTime"],
                )
                assert later["status"]["active"][0]["name"] != first["metadata"]["name"]
            await cluster.until("CronJob", "tick", when=lambda c: len(c["status"].get("active", ())) == jobs)

    asyncio.run(scenario())


def test_suspended_it_starts_nothing_and_a_start_that_is_too_late_is_left_out() -> None:
    async def scenario() -> None:
        clock = MovedClock(SystemClock().now())
        async with world(clock=clock, nodes=1) as cluster:
            await cluster.apply(cron_job("tick", suspend=True, startingDeadlineSeconds=10))
            await cluster.apply(cron_job("witness"))
            clock.advance(120 - (clock.now() % 300) + 600)  # two minutes after a time that was missed
            await cluster.patch("CronJob", "tick", {"spec": {"suspend": False}})
            await cluster.patch("CronJob", "witness", {"metadata": {"labels": {"a": "b"}}})
            jobs = await cluster.eventually("Job", lambda jobs: len(jobs) >= 1)
            assert [job["metadata"]["labels"]["made-by"] for job in jobs] == ["witness"]

    asyncio.run(scenario())


def test_only_so_many_finished_jobs_are_kept() -> None:
    async def scenario() -> None:
        clock = MovedClock(SystemClock().now())
        async with world(clock=clock, nodes=1) as cluster:
            spec = cron_job("tick", seconds="0", successfulJobsHistoryLimit=2)
            await cluster.apply(spec)
            done: list[str] = []
            for _ in range(4):
                await poke(cluster, clock, 300)
                jobs = await cluster.eventually("Job", lambda jobs: set(map(name_of, jobs)) - set(done))
                done.append(max(map(name_of, jobs)))
                await cluster.until("Job", done[-1], when=lambda j: j.get("status", {}).get("completionTime"))
            kept = await cluster.eventually("Job", lambda jobs: len(jobs) == 2)
            assert list(map(name_of, kept)) == done[-2:]
            found = await cluster.until("CronJob", "tick", when=lambda c: not c["status"].get("active"))
            assert found["status"]["lastSuccessfulTime"]

    asyncio.run(scenario())


@pytest.mark.parametrize("writes", [0, 1])
@pytest.mark.parametrize("policy", ["Allow", "Replace"])
def test_killed_between_making_the_job_and_telling_it_does_not_run_twice(writes: int, policy: str) -> None:
    async def scenario() -> None:
        clock = MovedClock(SystemClock().now())
        async with world(clock=clock, nodes=1, controllers=False) as cluster:
            await cluster.apply(cron_job("tick", concurrencyPolicy=policy))
            dying = DyingClient(cluster.client, writes)
            clock.advance(300)
            await cluster.start_controllers(dying)
            await asyncio.wait_for(dying.died.wait(), 90)
            before = {job["metadata"]["uid"] for job in cluster.all("Job")}
            assert len(before) == writes
            await cluster.kill_controllers()
            await cluster.start_controllers()
            await cluster.until("CronJob", "tick", when=lambda c: c.get("status", {}).get("lastScheduleTime"))
            await cluster.eventually("Pod", lambda pods: len(pods) == 1)
            after = {job["metadata"]["uid"] for job in cluster.all("Job")}
            assert len(after) == 1 and before <= after

    asyncio.run(scenario())


def times(schedule: str, start: datetime, count: int, zone: str = "") -> list[str]:
    plan, at, found = cron.parse(schedule, zone), start.timestamp(), []
    for _ in range(count):
        following = plan.next_after(at)
        assert following is not None
        at = following
        found.append(datetime.fromtimestamp(at, ZoneInfo(zone or "UTC")).strftime("%m-%d %H:%M %Z"))
    return found


def test_schedules() -> None:
    start = datetime(2026, 3, 2, 12, 0, 30, tzinfo=UTC)
    assert times("*/20 * * * *", start, 3) == ["03-02 12:20 UTC", "03-02 12:40 UTC", "03-02 13:00 UTC"]
    assert times("30 6 * * mon-fri", start, 2) == ["03-03 06:30 UTC", "03-04 06:30 UTC"]
    assert times("0 0 13 * fri", start, 2) == ["03-06 00:00 UTC", "03-13 00:00 UTC"], "either day is enough"
    assert times("@monthly", start, 2) == ["04-01 00:00 UTC", "05-01 00:00 UTC"]
    assert times("15 10 29 2 *", start, 1) == ["02-29 10:15 UTC"]
    assert cron.parse("0 0 30 2 *").next_after(start.timestamp()) is None


def test_daylight_saving_skips_and_repeats_hours() -> None:
    spring = datetime(2026, 3, 29, 0, 10, tzinfo=UTC)
    assert times("30 2 * * *", spring, 1, "Europe/Berlin") == ["03-30 02:30 CEST"], "02:30 does not exist on the 29th"
    assert times("0 * * * *", spring, 2, "Europe/Berlin") == ["03-29 03:00 CEST", "03-29 04:00 CEST"]
    autumn = datetime(2026, 10, 24, 23, 30, tzinfo=UTC)
    hours = ["10-25 02:00 CEST", "10-25 02:00 CET", "10-25 03:00 CET"]
    assert times("0 * * * *", autumn, 3, "Europe/Berlin") == hours


def test_a_year_of_missed_minutes_is_found_at_once() -> None:
    plan, end = cron.parse("* * * * *"), NOON
    assert plan.latest_between(end - 366 * 86400, end) == end // 60 * 60
    yearly = cron.parse("0 0 1 1 *")
    assert yearly.latest_between(end - 366 * 86400, end) == datetime(2026, 1, 1, tzinfo=UTC).timestamp()
    assert yearly.latest_between(end - 86400, end) is None


def test_so_long_after_the_last_time_whatever_the_clock_says() -> None:
    plan = cron.parse("@every 1m30s")
    assert plan.next_after(NOON) == NOON + 90
    assert plan.latest_between(NOON, NOON + 89) is None and plan.latest_between(NOON, NOON + 200) == NOON + 180


def test_a_step_in_a_day_field_is_a_restriction_a_star_is_none() -> None:
    start = datetime(2026, 3, 2, 12, 0, 30, tzinfo=UTC)  # a Monday
    either = ["03-03 00:00 UTC", "03-05 00:00 UTC", "03-06 00:00 UTC"]
    assert times("0 0 */2 * fri", start, 3) == either
    assert times("0 0 * * fri", start, 2) == ["03-06 00:00 UTC", "03-13 00:00 UTC"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("* * * *", "expected exactly 5 fields, found 4: [* * * *]"),
        ("61 * * * *", "end of range (61) above maximum (59): 61"),
        ("* * 0 * *", "beginning of range (0) below minimum (1): 0"),
        ("* * * * 7", "end of range (7) above maximum (6): 7"),
        ("5-1 * * * *", "beginning of range (5) beyond end of range (1): 5-1"),
        ("1-2-3 * * * *", "too many hyphens: 1-2-3"),
        ("*/1/2 * * * *", "too many slashes: */1/2"),
        ("*/0 * * * *", "step of range should be a positive number: */0"),
        ("x * * * *", 'failed to parse int from x: strconv.Atoi: parsing "x": invalid syntax'),
        ("@never", "unrecognized descriptor: @never"),
        ("@every day", 'failed to parse duration @every day: time: invalid duration "day"'),
    ],
)
def test_schedules_that_mean_nothing_are_refused_in_kubernetes_words(text: str, words: str) -> None:
    with pytest.raises(cron.BadSchedule) as refused:
        cron.parse(text)
    assert str(refused.value) == words
