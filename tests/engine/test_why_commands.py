"""`phalanx why`, `whatif` and `plan` against a real local cluster, and against a scheduler in a process of its own."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from phalanx.cli.scheduler_client import Colours
from support.asked_cluster import GROUPS, PODS, RACK, Phalanx, condition, members, put
from support.local_cluster import LocalCluster
from support.manifests import pod, pod_group


@pytest.fixture
def phalanx(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Phalanx:
    return Phalanx(capsys, monkeypatch)


@pytest.fixture(scope="module")
def up(start_cluster: Callable[..., LocalCluster]) -> LocalCluster:
    """Two blocks of two racks of two nodes with eight GPUs each; a gang of three waits for one rack."""
    cluster = start_cluster(nodes=8, topology="blocks=2,racks=4,gpus=8")
    put(cluster, pod_group("train", 3, topology=RACK), *members("train", 3))
    condition(cluster, GROUPS, "train", "False")
    return cluster


def test_a_pending_gang_is_explained_in_the_words_of_its_condition(up: LocalCluster, phalanx: Phalanx) -> None:
    said = condition(up, GROUPS, "train", "False")
    text = phalanx("why", "podgroup/train", "--kubeconfig", str(up.kubeconfig), code=1)
    assert text.splitlines()[0] == "podgroup/train in default: pending"
    assert (
        text.splitlines()[1]
        == "  Needs 3 pods at once in one rack; the best one, rack-0, has room for 2 (short of GPU)"
    )
    wide = phalanx("why", "podgroup/train", "-o", "wide", "--kubeconfig", str(up.kubeconfig), code=1)
    assert said in wide and "best rack rack-0 fits 2 (limited by nvidia.com/gpu)" in said
    assert "rack→block fits now" in text
    assert "1 more free node of type simulated-gpu8 in rack rack-0 would do" in text
    assert "\x1b[" not in text


def test_json_has_the_same_and_more(up: LocalCluster, phalanx: Phalanx) -> None:
    what = "podgroups.scheduling.k8s.io/train"  # as kubectl prints it
    answer = json.loads(phalanx("why", what, "-o", "json", "--kubeconfig", str(up.kubeconfig), code=1))
    (item,) = answer["items"]
    assert item["last"]["proof"]["key"] == RACK and item["last"]["proof"]["fits"] == 2
    assert item["queue"]["place"] == "waiting"
    assert [pod["state"] for pod in item["pods"]] == ["pending"] * 3


def test_a_remedy_for_a_fixed_field_says_how_to_apply_it(up: LocalCluster, phalanx: Phalanx) -> None:
    text = phalanx("why", "podgroup/train", "--kubeconfig", str(up.kubeconfig), code=1)
    assert (
        "delete podgroup/train and its pods, and apply them again with the topology key topology.phalanx.dev/block"
        in text
    )
    patch = next(line.strip() for line in text.splitlines() if "kubectl patch podgroup/train -n default " in line)
    body = json.loads(patch.partition("-p ")[2].strip("'"))
    answer = up.ask("PATCH", f"{GROUPS}/train", body, content_type="application/merge-patch+json", dryRun="All")
    assert answer.code == 200 and json.loads(answer.body)["spec"]["schedulingPolicy"]["gang"]["minCount"] == 2


def test_the_message_of_an_attempt_says_when_it_was_true(up: LocalCluster, phalanx: Phalanx) -> None:
    here = ("why", "podgroup/train", "--kubeconfig", str(up.kubeconfig))
    assert re.search(r"message: +when tried \d+[smh] ago: ", phalanx(*here, "-o", "wide", code=1))
    assert json.loads(phalanx(*here, "-o", "json", code=1))["items"][0]["last"]["at"] > 0


def test_every_format_has_the_same_answer(up: LocalCluster, phalanx: Phalanx) -> None:
    def ask(output: str) -> str:
        return phalanx("why", "podgroup/train", "-o", output, "--kubeconfig", str(up.kubeconfig), code=1)

    assert yaml.safe_load(ask("yaml"))["items"][0]["levels"] == json.loads(ask("json"))["items"][0]["levels"]
    assert ask("table").splitlines()[0] == ask("wide").splitlines()[0] == "podgroup/train in default: pending"


def test_watching_prints_again_when_the_answer_changed(up: LocalCluster) -> None:
    put(up, pod_group("watched", 1))
    watching = subprocess.Popen(
        [sys.executable, "-m", "phalanx", "why", "podgroup/watched", "--watch", "--kubeconfig", str(up.kubeconfig)],
        text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # tests in the background ignore it
    )  # fmt: skip
    try:
        assert watching.stdout is not None
        assert watching.stdout.readline() == "podgroup/watched in default: pending\n"
        put(up, pod("watched-0", gpus=1, group="watched"))
        seen = []
        while (line := watching.stdout.readline()) and "in default: scheduled" not in line:
            seen.append(line)
        assert line, seen
        watching.send_signal(signal.SIGINT)
        rest, errors = watching.communicate(timeout=30)
        assert watching.returncode == 130 and "Traceback" not in errors, errors
        assert rest.count("podgroup/watched in default") == 0  # nothing changed since: nothing was printed
    finally:
        watching.kill()
        watching.communicate()
        up.delete(f"{PODS}/watched-0", gracePeriodSeconds="0")
        up.delete(f"{GROUPS}/watched")


def test_a_pod_with_a_node_that_has_not_started_says_what_its_node_reports(up: LocalCluster, phalanx: Phalanx) -> None:
    """A gang whose image is missing was only said to run: its pods have nodes."""
    here = ("--kubeconfig", str(up.kubeconfig), "-n", "images")
    up.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "images"}})
    member = pod("g-0", group="g")
    image = member["spec"]["containers"][0]["image"]
    member["metadata"]["annotations"] = {"simulation.phalanx.dev/missing-image": image}
    up.create(GROUPS.replace("default", "images"), pod_group("g", 1))
    pods = PODS.replace("default", "images")
    up.create(pods, member)
    up.wait(pods, lambda found: "PullBackOff" in json.dumps(found))
    for asked in ("podgroup/g", "pod/g-0"):
        text = phalanx("why", asked, *here, code=0)
        assert "starting:   g-0: ImagePullBackOff (container " in text and image in text, text
    up.delete("/api/v1/namespaces/images")


def test_kubeconfig_may_come_from_the_environment(
    up: LocalCluster, phalanx: Phalanx, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(up.kubeconfig))
    put(up, pod("alone", gpus=1))
    condition(up, PODS, "alone", "True")
    assert "alone in default: scheduled" in phalanx("why", "pod/alone", code=0)
    up.delete(f"{PODS}/alone", gracePeriodSeconds="0")


def test_what_is_not_there_or_makes_no_sense_ends_with_2(up: LocalCluster, phalanx: Phalanx, tmp_path: Path) -> None:
    here = ("--kubeconfig", str(up.kubeconfig))
    assert "knows no pod default/ghost" in phalanx("why", "pod/ghost", *here, code=2)
    put(up, pod("volcanic", gpus=8, schedulerName="volcano"))
    assert "is for the scheduler 'volcano'" in phalanx("why", "pod/volcanic", *here, code=2)
    up.delete(f"{PODS}/volcanic", gracePeriodSeconds="0")
    assert "KIND/NAME" in phalanx("why", "train", *here, code=2)
    assert "KIND/NAME" in phalanx("plan", "node/n1", *here, code=2)
    assert "knows no PodGroup default/ghost" in phalanx("plan", "podgroup/ghost", *here, code=2)
    broken = tmp_path / "broken.yaml"
    broken.write_text("a: [")
    assert "not YAML" in phalanx("whatif", "-f", str(broken), *here, code=2)
    bad = tmp_path / "bad.yaml"
    bad.write_text(yaml.safe_dump(pod_group("bad", 0, topology=RACK)))
    assert "PodGroup bad is invalid" in phalanx("whatif", "-f", str(bad), *here, code=2)
    assert "cannot read kubeconfig" in phalanx("why", "pod/x", "--kubeconfig", "/nonexistent", code=2)


def test_whatif_says_where_and_creates_nothing(up: LocalCluster, phalanx: Phalanx, tmp_path: Path) -> None:
    file = tmp_path / "ask.yaml"
    file.write_text(yaml.safe_dump_all([pod_group("ask", 2, topology=RACK), *members("ask", 2)]))
    here = ("--kubeconfig", str(up.kubeconfig))
    text = phalanx("whatif", "-f", str(file), *here, code=0)
    assert "podgroup/default/ask: fits" in text
    assert re.search(r"PodGroup ask: 2 pods in topology\.phalanx\.dev/rack rack-\d: node-\S+, node-\S+", text)
    assert up.ask("GET", f"{GROUPS}/ask").code == 404
    file.write_text(yaml.safe_dump_all([pod_group("ask", 3, topology=RACK), *members("ask", 3)]))
    text = phalanx("whatif", "-f", str(file), *here, code=1)
    assert "does not fit" in text and "would help: rack→block fits now" in text


def test_whatif_of_a_job_of_which_some_pods_fit_is_no_yes(up: LocalCluster, phalanx: Phalanx, tmp_path: Path) -> None:
    here = ("--kubeconfig", str(up.kubeconfig))
    container = {"name": "m", "image": "i", "resources": {"requests": {"cpu": "60"}}}
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    spec = {"parallelism": 100, "completions": 100, "template": template}
    file = tmp_path / "job.json"
    file.write_text(json.dumps({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"}, "spec": spec}))
    text = phalanx("whatif", "-f", str(file), *here, code=1)
    assert ": fits in part\n  fits in part: " in text and " of 100 pods would get a node" in text
    answer = json.loads(phalanx("whatif", "-f", str(file), *here, "-o", "json", code=1))
    assert (answer["fits"], answer["items"][0]["fits"]) == (False, True)


def test_whatif_about_no_pods_or_a_missing_namespace_says_so(
    up: LocalCluster, phalanx: Phalanx, tmp_path: Path
) -> None:
    file = tmp_path / "ask.yaml"
    here = ("-f", str(file), "--kubeconfig", str(up.kubeconfig))
    file.write_text("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings}\n")
    assert "nothing to place" in phalanx("whatif", *here, code=2)
    file.write_text(yaml.safe_dump_all([pod("one", gpus=0)]))
    assert "there is no namespace 'nope'" in phalanx("whatif", *here, "-n", "nope", code=0)
    assert "namespace" not in phalanx("whatif", *here, code=0)


def test_whatif_can_be_about_another_cluster(up: LocalCluster, phalanx: Phalanx, tmp_path: Path) -> None:
    file = tmp_path / "ask.yaml"
    file.write_text(yaml.safe_dump_all([pod_group("ask", 3, topology=RACK), *members("ask", 3)]))
    here = ("-f", str(file), "--kubeconfig", str(up.kubeconfig))
    found = json.loads(phalanx("whatif", *here, "-o", "json", code=1))["items"][0]["relaxations"]
    count, like = next(each["to"] for each in found if each["change"] == "nodes").split()
    text = phalanx("whatif", *here, "--add-nodes", count, "--like", like, code=0)
    assert f"note: asked with {count} more node like {like}, empty" in text and f"{like}-more-1" in text
    phalanx("whatif", *here, code=1)  # the scheduler itself knows nothing of it
    assert len(up.get("/api/v1/nodes")["items"]) == 8
    assert "kubectl get nodes" in phalanx("whatif", *here, "--add-nodes", "1", "--like", "ghost", code=2)
    assert "go together" in phalanx("whatif", *here, "--add-nodes", "1", code=2)
    assert "TaintToleration" in phalanx("whatif", *here, "--without-filter", "Ghost", code=2)
    assert "asked without the filter NodeAffinity" in phalanx(
        "whatif", *here, "--without-filter", "NodeAffinity", code=1
    )


def test_whatif_understands_workloads(up: LocalCluster, phalanx: Phalanx, tmp_path: Path) -> None:
    template = {"spec": {"restartPolicy": "Never", "containers": pod("x", gpus=8)["spec"]["containers"]}}
    gang = {"scheduling.phalanx.dev/gang": "true"}
    job = {
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "job", "annotations": gang},
        "spec": {"parallelism": 9, "completions": 9, "template": template},
    }  # fmt: skip
    job_set = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": "js", "annotations": gang},
        "spec": {"replicatedJobs": [{"name": "w", "replicas": 2, "template": {
            "spec": {"parallelism": 2, "completions": 2, "template": template}}}]},
    }  # fmt: skip
    lws = {
        "apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet",
        "metadata": {"name": "lws", "annotations": gang},
        "spec": {"replicas": 2, "leaderWorkerTemplate": {"size": 2, "workerTemplate": {"spec": {
            "containers": template["spec"]["containers"]}}}},
    }  # fmt: skip
    deployment = {
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
        "spec": {"replicas": 2, "selector": {"matchLabels": {"a": "b"}}, "template": {
            "metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "x"}]}}},
    }  # fmt: skip
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}}
    answers = {}
    for name, document in (("job", job), ("jobset", job_set), ("lws", lws), ("web", deployment)):
        file = tmp_path / f"{name}.yaml"
        file.write_text(yaml.safe_dump_all([document, config]))
        code = 1 if name == "job" else 0
        here = ("--kubeconfig", str(up.kubeconfig))
        answers[name] = json.loads(phalanx("whatif", "-f", str(file), "-o", "json", *here, code=code))
    (nine,) = answers["job"]["items"]
    assert not nine["fits"] and nine["wanted"] == 9 and "needs 9 pods" in nine["summary"]
    assert [item["pods"] for item in answers["jobset"]["items"]] == [4]
    assert [item["pods"] for item in answers["lws"]["items"]] == [2, 2]
    assert [item["root"] for item in answers["web"]["items"]] == ["pod/default/web-0", "pod/default/web-1"]
    assert any("ConfigMap c" in note for note in answers["web"]["notes"])


def test_a_plan_is_shown_and_no_pod_is_evicted(start_cluster: Callable[..., LocalCluster], phalanx: Phalanx) -> None:
    full = start_cluster(nodes=8, topology="blocks=2,racks=4,gpus=8")  # its own: pods of other tests would take GPUs
    name = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "vip"}, "value": 1000}
    full.create("/apis/scheduling.k8s.io/v1/priorityclasses", {**name, "preemptionPolicy": "Never"})
    put(full, *(pod(f"low-{i}", gpus=8) for i in range(8)))
    for i in range(8):
        condition(full, PODS, f"low-{i}", "True")
    put(full, pod_group("vip", 2, topology=RACK, priorityClassName="vip"), *members("vip", 2, priorityClassName="vip"))
    condition(full, GROUPS, "vip", "False")
    here = ("--kubeconfig", str(full.kubeconfig))
    assert "Never" in phalanx("plan", "podgroup/vip", *here, code=1)
    assert "would do" in phalanx("why", "podgroup/vip", *here, code=1)
    assert len(full.get(PODS, fieldSelector="spec.nodeName!=")["items"]) == 8
    for i in range(8):
        full.delete(f"{PODS}/low-{i}", gracePeriodSeconds="0")
    condition(full, GROUPS, "vip", "True")
    assert phalanx("why", "podgroup/vip", *here, code=0).startswith("podgroup/vip in default: scheduled")


def test_the_path_wants_the_token_and_the_right_method(up: LocalCluster) -> None:
    path = "/phalanx/v1/why"
    assert up.ask("GET", path, token="wrong", kind="pod", name="x").code == 401
    assert up.ask("POST", path, {}).code == 405
    assert up.ask("GET", path, kind="node", name="x").code == 400
    assert up.ask("GET", path, kind="pod").code == 400
    assert up.ask("POST", "/phalanx/v1/whatif", {"items": "no"}).code == 400
    assert up.ask("POST", "/phalanx/v1/whatif", {"items": [{"kind": "Pod"}]}).code == 400
    assert path in up.get("/")["paths"]


def test_without_a_scheduler_conditions_and_events_are_shown(server: LocalCluster, phalanx: Phalanx) -> None:
    put(server, pod("waits", gpus=8))
    here = ("--kubeconfig", str(server.kubeconfig))
    text = phalanx("why", "pod/waits", *here, code=1)
    assert "pod/waits in default: pending" in text and "note: no scheduler answers" in text
    answer = json.loads(phalanx("why", "pod/waits", "-o", "json", *here, code=1))
    assert "no scheduler behind it" in answer["note"]
    assert "not found" in phalanx("why", "pod/ghost", *here, code=2)
    assert "no scheduler behind it" in phalanx("plan", "pod/waits", *here, code=2)
    server.delete(f"{PODS}/waits")


@pytest.fixture(scope="module")
def alone(server: LocalCluster) -> Iterator[str]:
    """The health address of a scheduler in a process of its own."""
    process = subprocess.Popen(
        [sys.executable, "-m", "phalanx", "scheduler", "--health", "127.0.0.1:0", "--no-leader-elect",
         "--scheduler-name", "apart", "--kubeconfig", str(server.kubeconfig)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None and process.stderr is not None
        line = process.stdout.readline()
        found = re.match(r"ready .* health=(\S+)", line)
        assert found, line + process.stderr.read()
        yield found[1]
    finally:
        process.terminate()
        process.communicate(timeout=30)


def ask(url: str, token: str = "") -> int:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as answer:
        return answer.code


def test_a_scheduler_of_its_own_answers_callers_the_api_server_knows(
    server: LocalCluster, alone: str, phalanx: Phalanx
) -> None:
    put(server, pod("apart", gpus=8, schedulerName="apart"))
    condition(server, PODS, "apart", "False")
    url = f"{alone}/phalanx/v1/why?kind=pod&name=apart"
    assert ask(url) == 401
    assert ask(url, "made-up") == 401
    assert ask(url, server.token) == 200
    assert ask(f"{alone}/phalanx/v1/other", server.token) == 404
    here = ("--kubeconfig", str(server.kubeconfig), "--scheduler", alone)
    # The server is shared with other tests: whether it has nodes is not ours to say.
    assert "pod/apart in default: pending" in phalanx("why", "pod/apart", *here, code=1)
    assert "knows no pod" in phalanx("why", "pod/ghost", *here, code=2)
    assert "does not fit" not in phalanx("plan", "pod/apart", *here, code=1)
    server.delete(f"{PODS}/apart")
    gone = ("--kubeconfig", str(server.kubeconfig), "--scheduler", "http://127.0.0.1:9")
    assert "127.0.0.1:9" in phalanx("plan", "pod/x", *gone, code=2)


def test_colours_are_for_terminals_that_want_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert Colours()("pending", "yellow") != "pending"
    monkeypatch.setenv("NO_COLOR", "1")
    assert Colours()("pending", "yellow") == "pending"
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert Colours()("pending", "yellow") == "pending"
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False, raising=False)
    assert Colours()("pending", "yellow") != "pending"
