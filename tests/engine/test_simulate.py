"""`phalanx simulate`: what people see when they play a trace."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from phalanx.simulate.play import JobRun
from phalanx.simulate.report import differ
from phalanx.simulate.trace import Job
from support.traces import ROWS, cluster, events, recording, simulate, trace


def test_a_big_gang_is_promised_a_start_and_only_short_work_passes_it(tmp_path: Path) -> None:
    out = tmp_path / "s.jsonl"
    done = simulate(trace(tmp_path), "--cluster", cluster(tmp_path), "--out", out)
    assert done.return_value == 0, done.output
    assert events(out, "promise")["big"] == {"t": 1.0, "job": "big", "event": "promise", "start_by": 200.0}
    starts = events(out, "start")
    assert starts["short"]["t"] == 2.0
    assert starts["big"]["t"] == 100.0, "a ended early, so the gang starts earlier than promised"
    assert starts["long"]["t"] == 150.0
    assert sorted(starts["big"]["nodes"]) == ["0", "1", "2", "3"]
    assert "first promise kept 100.0%" in done.output


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    first, second = tmp_path / "1.jsonl", tmp_path / "2.jsonl"
    for out in (first, second):
        simulate(trace(tmp_path), "--cluster", cluster(tmp_path), "--estimates", "noisy", "--seed", 7, "--out", out)
    assert first.read_bytes() == second.read_bytes()


def test_what_a_job_really_takes_is_not_known_before_it_ends(tmp_path: Path) -> None:
    """Up to the first end, two traces that differ only in durations give the same schedule."""
    out, other = tmp_path / "1.jsonl", tmp_path / "2.jsonl"
    simulate(trace(tmp_path), "--cluster", cluster(tmp_path), "--out", out)
    rows = ROWS.replace("a,0,100,200", "a,0,199,200").replace("3,500,600", "3,599,600")
    simulate(trace(tmp_path, rows), "--cluster", cluster(tmp_path), "--out", other)
    before = [[x for x in map(json.loads, p.read_text().splitlines()) if x["t"] < 32] for p in (out, other)]
    assert before[0] == before[1]


def test_gangs_stay_in_a_rack_where_the_cluster_says_so(tmp_path: Path) -> None:
    out = tmp_path / "s.jsonl"
    rules = [{"above_gpus": 8, "up_to_gpus": 16, "same": "rack"}]
    rows = "one,0,100,100,1,8,0,,,,,\ntwo,0,100,100,1,8,0,,,,,\npair,1,10,10,2,8,0,,,,,\n"
    simulate(trace(tmp_path, rows), "--cluster", cluster(tmp_path, rules=rules), "--out", out)
    racks = {node: i // 2 for i, node in enumerate(("n0", "n1", "n2", "n3"))}
    assert len({racks[node] for node in events(out, "start")["pair"]["nodes"].values()}) == 1


def test_a_node_that_fails_ends_its_jobs_and_they_start_again_elsewhere(tmp_path: Path) -> None:
    out = tmp_path / "s.jsonl"
    failing = [{"at_s": 10, "node": "n0", "event": "fail"}, {"at_s": 300, "node": "n0", "event": "join"}]
    done = simulate(trace(tmp_path), "--cluster", cluster(tmp_path, node_events=failing), "--out", out)
    assert done.return_value == 0, done.output
    assert events(out, "evict")
    for start in events(out, "start").values():
        assert not (10 <= start["t"] < 300 and "n0" in start["nodes"].values())


def test_a_job_that_never_fits_is_named(tmp_path: Path) -> None:
    rows = ROWS + "huge,4,10,10,9,8,0,,,,,\n"
    done = simulate(trace(tmp_path, rows), "--cluster", cluster(tmp_path))
    assert done.return_value == 1
    assert "1 job never started; there is never room: huge" in done.output


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("a,0,ten,,1,1,,,,,,\n", "line 2, column duration_s: 'ten' is not a number"),
        ("a,0,-5,,1,1,,,,,,\n", "line 2, column duration_s"),
        ("a,0,0,,1,1,,,,,,\n", "line 2, column duration_s"),
        ("a,0,5,,0,1,,,,,,\n", "line 2, column pods"),
        ("a,0,5,,1.5,1,,,,,,\n", "line 2, column pods"),
        ("a,nan,5,,1,1,,,,,,\n", "line 2, column submit_s"),
        ("a,,5,,1,1,,,,,,\n", "line 2, column submit_s: is empty"),
        (",0,5,,1,1,,,,,,\n", "line 2, column job: is empty"),
        ("a,0,5,,1,1,,,,,,\na,1,5,,1,1,,,,,,\n", "line 3, column job: 'a' is also on line 2"),
        ("a,0,5,,1,1,,,,,,,,,\n", "line 2: has more values than the header"),
        ("a,0,5,,1,1,-4,,,,,\n", "line 2, column cpus_per_pod"),
        ("a,0,5,,1,1,,,,,-5,\n", "line 2, column checkpoint_s"),
        ("a,0,5,,1,1,,3000000000,,,,\n", "line 2, column priority: 3000000000 must be a whole number from"),
        ("a,1e300,5,,1,1,,,,,,\n", "line 2, column submit_s"),
        ("a,-5,5,,1,1,,,,,,\n", "line 2, column submit_s"),
        ("a,0,1e300,,1,1,,,,,,\n", "line 2, column duration_s"),
        ("a,0,5,,200000,1,,,,,,\n", "line 2, column pods"),
        ("a,0,5,,1,1e30,,,,,,\n", "line 2, column gpus_per_pod"),
        ("", "has no jobs"),
    ],
)
def test_a_malformed_row_is_named_with_file_and_line(tmp_path: Path, rows: str, said: str) -> None:
    done = simulate(trace(tmp_path, rows), "--cluster", cluster(tmp_path))
    assert done.exception is not None
    assert said in str(done.exception), done.exception
    assert "jobs.csv" in str(done.exception)


def test_rows_need_not_be_sorted(tmp_path: Path) -> None:
    lines = ROWS.splitlines(keepends=True)
    out = tmp_path / "s.jsonl"
    done = simulate(trace(tmp_path, "".join(reversed(lines))), "--cluster", cluster(tmp_path), "--out", out)
    assert done.return_value == 0
    assert events(out, "start")["big"]["t"] == 100.0


NODE = '{"name": "a", "gpus": 8, "cpus": 40}'


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        '{"nodes": []}',
        '{"nodes": [{"name": "a"}]}',
        '{"nodes": [3]}',
        '{"nodes": [{"name": "a", "gpus": Infinity}]}',
        '{"nodes": [{"name": "a", "gpus": 1e30}]}',
        '{"nodes": [{"name": "a", "gpus": 8, "cpus": NaN}]}',
        '{"nodes": [{"name": "a", "gpus": 0, "cpus": 0}]}',
        f'{{"nodes": [{NODE}], "node_events": 5}}',
        f'{{"nodes": [{NODE}], "node_events": [{{"at_s": NaN, "node": "a", "event": "fail"}}]}}',
        f'{{"nodes": [{NODE}], "rules": 5}}',
    ],
)
def test_a_malformed_cluster_is_named(tmp_path: Path, content: str) -> None:
    path = tmp_path / "cluster.json"
    path.write_text(content)
    done = simulate(trace(tmp_path), "--cluster", path)
    assert "cluster.json" in str(done.exception)


def test_a_spreadsheet_may_mark_its_file_as_utf_8(tmp_path: Path) -> None:
    path = trace(tmp_path)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert simulate(path, "--cluster", cluster(tmp_path)).return_value == 0


def test_jobs_that_want_gpus_never_start_where_there_are_none(tmp_path: Path) -> None:
    path = tmp_path / "cluster.json"
    path.write_text('{"nodes": [{"name": "a", "gpus": 0, "cpus": 40}]}')
    assert "there is never room" in simulate(trace(tmp_path), "--cluster", path).output


def test_two_configurations_side_by_side(tmp_path: Path) -> None:
    head = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
    today, strict = tmp_path / "today.yaml", tmp_path / "strict.yaml"
    today.write_text(head)
    strict.write_text(head + "profiles:\n- reservations: {strictFIFO: true}\n")
    page = tmp_path / "report.html"
    done = simulate(
        trace(tmp_path), "--cluster", cluster(tmp_path), "--compare", today, strict, "--report", page, "-o", "json"
    )
    found = json.loads(done.output)
    assert any(job["job"] == "short" and job["wait_a"] == 0 and job["wait_b"] > 0 for job in found["jobs"])
    assert "<svg" in page.read_text()


def test_configurations_that_decide_alike_differ_in_no_job(tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text("apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n")
    done = simulate(trace(tmp_path), "--cluster", cluster(tmp_path), "--compare", config, config)
    assert "every job waits as long in a as in b" in done.output
    assert "differ most" not in done.output


@pytest.mark.parametrize(("later", "differs"), [(0.4, False), (2.0, True)])
def test_jobs_whose_waits_differ_by_less_than_a_second_do_not_differ(later: float, differs: bool) -> None:
    job = Job("a", 0, 0.0, 10.0, None, 1, 1, 1.0)
    assert differ(JobRun(job, start=5.0, end=15.0), JobRun(job, start=5.0 + later, end=15.0 + later)) is differs


@pytest.mark.parametrize("value", ["backfill: Sometimes", "starvationSeconds: -1", "maxReservedFraction: 2", "odd: 1"])
def test_a_configuration_that_is_wrong_names_the_field(tmp_path: Path, value: str) -> None:
    config = tmp_path / "c.yaml"
    config.write_text(
        "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
        f"profiles:\n- reservations: {{{value}}}\n"
    )
    done = simulate(trace(tmp_path), "--cluster", cluster(tmp_path), "--config", config)
    assert f"profiles[0].reservations.{value.split(':')[0]}" in str(done.exception)


def test_a_recording_of_a_scheduler_is_played_on_its_own_cluster(tmp_path: Path) -> None:
    run = recording(tmp_path / "run.jsonl")
    out = tmp_path / "s.jsonl"
    done = simulate(run, "--out", out)
    assert done.return_value == 1, "one job fits at no time"
    assert "3 jobs on 4 nodes" in done.output and "CPUs used" in done.output
    assert "1 job of the recording never started; their durations are assumed" in done.output
    assert "there is never room: default/c" in done.output
    starts, ends = events(out, "start"), events(out, "end")
    assert starts["default/a"]["t"] == 0.0 and len(starts["default/a"]["nodes"]) == 3
    assert ends["default/a"]["t"] == 100.0 == starts["default/b"]["t"], "the second gang waits for the first"
    racks = tmp_path / "racks.jsonl"
    simulate(run, "--gangs-in", "rack", "--out", racks)
    assert len({int(n[1:]) % 2 for n in events(racks, "start")["default/b"]["nodes"].values()}) == 1


def test_a_damaged_recording_is_named_with_its_line(tmp_path: Path) -> None:
    run = recording(tmp_path / "run.jsonl")
    lines = run.read_bytes().splitlines(keepends=True)
    run.write_bytes(b"".join([*lines[:3], b"nonsense\n", *lines[3:]]))
    assert "run.jsonl, line 4: is not a line of a recording" in str(simulate(run).exception)
    run.write_bytes(lines[0])
    assert "has no job that started" in str(simulate(run).exception)


def test_a_trace_without_a_cluster_says_what_is_missing(tmp_path: Path) -> None:
    assert "needs --cluster" in str(simulate(trace(tmp_path)).exception)
