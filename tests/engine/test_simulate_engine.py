"""`phalanx simulate --play engine`: a trace is played against the whole scheduler."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.traces import cluster, events, recording, simulate, trace

HEAD = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"


def test_a_big_gang_is_promised_a_start_and_only_short_work_passes_it(tmp_path: Path) -> None:
    out = tmp_path / "s.jsonl"
    done = simulate(trace(tmp_path), "--cluster", cluster(tmp_path), "--play", "engine", "--out", out)
    assert done.return_value == 0, done.output
    assert events(out, "promise")["big"]["start_by"] == 200.0
    starts = events(out, "start")
    assert starts["short"]["t"] == 2.0
    assert starts["big"]["t"] == 100.0, "a ended early, so the gang starts earlier than promised"
    assert sorted(starts["big"]["nodes"]) == ["0", "1", "2", "3"]
    assert starts["long"]["t"] == 150.0
    assert "first promise kept 100.0%" in done.output


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    first, second = tmp_path / "1.jsonl", tmp_path / "2.jsonl"
    for out in (first, second):
        args = ("--cluster", cluster(tmp_path), "--play", "engine", "--estimates", "noisy", "--seed", 7, "--out", out)
        simulate(trace(tmp_path), *args)
    assert first.read_bytes() == second.read_bytes()


def test_more_important_jobs_evict_others_which_start_again(tmp_path: Path) -> None:
    out = tmp_path / "s.jsonl"
    rows = "low,0,100,100,4,8,0,,,,30,\nhigh,70,50,50,4,8,0,10,,,,\n"
    done = simulate(trace(tmp_path, rows), "--cluster", cluster(tmp_path), "--play", "engine", "--out", out)
    assert done.return_value == 0, done.output
    assert events(out, "evict")["low"]["t"] == 70.0
    assert events(out, "start")["high"]["t"] == 70.0
    assert events(out, "start")["low"]["t"] == 120.0
    assert events(out, "end")["low"]["t"] == 160.0, "60 of its 100 seconds were saved by checkpoints"


@pytest.mark.parametrize("what", ["fail", "drain", "cordon"])
@pytest.mark.parametrize("play", ["engine", "plan"])
def test_nodes_leave_and_come_back(tmp_path: Path, what: str, play: str) -> None:
    out = tmp_path / "s.jsonl"
    leaving = [{"at_s": 10, "node": "n0", "event": what}, {"at_s": 300, "node": "n0", "event": "join"}]
    rows = "all,0,100,100,4,8,0,,,,,\nlater,5,100,100,4,8,0,,,,,\n"
    nodes = cluster(tmp_path, node_events=leaving)
    done = simulate(trace(tmp_path, rows), "--cluster", nodes, "--play", play, "--out", out)
    assert done.return_value == 0, done.output
    assert bool(events(out, "evict")) == (what != "cordon"), "pods on a cordoned node run on"
    assert events(out, "start")["later"]["t"] >= 300.0


def test_the_whole_configuration_counts(tmp_path: Path) -> None:
    """Two jobs of half a node each share a node with MostAllocated, and get one each by default."""
    spread, packed = tmp_path / "spread.yaml", tmp_path / "packed.yaml"
    spread.write_text(HEAD)
    packed.write_text(
        HEAD
        + "profiles:\n- pluginConfig:\n  - name: NodeResourcesFit\n    args:\n      scoringStrategy:\n"
        + "        type: MostAllocated\n        resources: [{name: nvidia.com/gpu, weight: 1}]\n"
        + "  plugins: {score: {disabled: [{name: NodeResourcesBalancedAllocation}]}}\n"
    )
    rows = "".join(f"j{i},{i},500,500,1,4,1,,,,,\n" for i in range(2)) + "whole,5,10,10,3,8,1,,,,,\n"
    args = (trace(tmp_path, rows), "--cluster", cluster(tmp_path), "--compare", spread, packed, "-o", "json")
    found = json.loads(simulate(*args).output)
    job = next(job for job in found["jobs"] if job["job"] == "whole")
    assert job["wait_a"] > 400 and job["wait_b"] == 0


def test_a_job_that_never_fits_is_named_and_the_run_ends(tmp_path: Path) -> None:
    rows = "a,0,100,100,1,8,0,,,,,\nhuge,4,10,10,9,8,0,,,,,\n"
    done = simulate(trace(tmp_path, rows), "--cluster", cluster(tmp_path), "--play", "engine")
    assert done.return_value == 1
    assert "1 job never started; there is never room: huge" in done.output


@pytest.mark.parametrize("play", ["engine", "plan"])
def test_cordons_of_a_recording_are_played(tmp_path: Path, play: str) -> None:
    run, out = recording(tmp_path / "run.jsonl", cordoned="n0"), tmp_path / "s.jsonl"
    simulate(run, "--play", play, "--out", out)
    assert not events(out, "evict")
    assert events(out, "start")["default/b"]["t"] == 100.0
    assert "n0" not in events(out, "start")["default/b"]["nodes"].values()


def test_a_century_is_no_end_and_a_long_job_still_ends(tmp_path: Path) -> None:
    rows = "long,0,500,9e11,4,8,0,,,,,\nnext,1,10,10,4,8,0,,,,,\n"
    out = tmp_path / "s.jsonl"
    done = simulate(trace(tmp_path, rows), "--cluster", cluster(tmp_path), "--play", "engine", "--out", out)
    assert done.return_value == 0, done.output
    assert events(out, "start")["next"]["t"] == 500.0
    assert "next" not in events(out, "promise"), "no start is promised behind a job without a known end"
