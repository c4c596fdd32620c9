"""What-if from a page: YAML with numbers that sliders change, manifests of what waits, and bad input."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

import pytest
import yaml

from support.dashboard import RACK, Watched, create
from support.manifests import gang

JOB = """
apiVersion: batch/v1
kind: Job
metadata: {name: tried}
spec:
  parallelism: 4
  completions: 4
  scheduling: {schedulingPolicy: {gang: {}}, schedulingConstraints: {topology: [{key: topology.phalanx.dev/rack}]}}
  template:
    spec:
      restartPolicy: Never
      containers: [{name: main, image: "example:1", resources: {limits: {nvidia.com/gpu: "8"}}}]
"""


def ask(watched: Watched, text: str, counts: Any = ()) -> tuple[int, Any]:
    return watched.browser().ask("POST", "/api/whatif", {"text": text, "counts": list(counts)})


def test_a_manifest_is_placed_without_being_created(watched: Watched) -> None:
    code, answer = ask(watched, JOB)
    assert code == 200, answer
    (item,) = answer["outlook"]["items"]
    assert item["fits"] and sum(share["pods"] for share in item["places"][0]["nodes"]) == 4
    assert item["places"][0]["key"] == RACK
    assert not watched.get("/apis/batch/v1/namespaces/default/jobs")["items"]


def test_a_slider_changes_a_number_and_what_follows_from_it(watched: Watched) -> None:
    (count,) = ask(watched, JOB)[1]["counts"]
    assert (count["name"], count["value"]) == ("parallelism", 4)
    _, answer = ask(watched, JOB, [{"path": count["path"], "value": 5}])
    (item,) = answer["outlook"]["items"]
    assert (item["fits"], item["wanted"]) == (False, 5)  # a rack has four nodes
    assert [relaxation for relaxation in item["relaxations"] if relaxation.get("fits")]


BOMB = "\n".join(["a0: &a0 [x,x,x]", *(f"a{n}: &a{n} [*a{n - 1},*a{n - 1},*a{n - 1}]" for n in range(1, 30))])


@pytest.mark.parametrize(
    ("text", "counts", "words"),
    [
        ("", [], "nothing to try"),
        ("just words", [], "must be an object"),
        ("a: [1", [], "error parsing YAML"),
        ("a: &a [x]\nb: &b [*a,*a,*a,*a]\nc: !!python/object:os.system []", [], "tag"),
        (BOMB, [], "grows"),
        ("apiVersion: v1\nkind: Pod\nspec: 3", [], "Pod"),
        (JOB, [{"path": [0, "spec", "nothing"], "value": 1}], "no number at"),
        (JOB, [{"path": [9, "spec", "parallelism"], "value": 1}], "no number at"),
        (JOB, [{"path": [0, "spec", "parallelism"], "value": "x"}], "a path and a number"),
        (JOB, [{"path": [0, "spec", "parallelism"], "value": 10**9}], "a path and a number"),
        ("a: 1\n---\n" * 41, [], "documents"),
    ],
)  # fmt: skip
def test_bad_input_gets_a_sentence(watched: Watched, text: str, counts: Any, words: str) -> None:
    code, announced = ask(watched, text, counts)
    assert code == 400 and words in announced["message"], announced


def test_a_body_that_is_no_question_is_refused(watched: Watched) -> None:
    browser = watched.browser()
    assert browser.ask("POST", "/api/whatif", [1])[0] == 400
    assert browser.ask("POST", "/api/whatif", {"text": "x" * 300_000})[0] == 400
    assert browser.ask("POST", "/api/whatif", {"text": "x" * 3_000_000})[0] == 400


def test_what_waits_can_be_tried_with_a_remedy(watched: Watched) -> None:
    create(watched, gang("wide", 6, gpus=8, topology=RACK))  # a rack has four nodes
    browser = watched.browser()
    stream = browser.follow(browser.get("/api/snapshot")["id"])
    key = "podgroup/default/wide"
    try:
        while True:
            why = browser.get(f"/api/why?key={key}")["items"][0]
            if why.get("relaxations"):
                break
            stream.next()
        remedy = next(each for each in why["relaxations"] if each["change"] == "topology" and each["fits"])
        plain = browser.get(f"/api/manifest?key={key}")["text"]
        group = next(doc for doc in yaml.safe_load_all(plain) if doc["kind"] == "PodGroup")
        assert group["spec"]["schedulingConstraints"]["topology"][0]["key"] == RACK
        assert not ask(watched, plain)[1]["outlook"]["fits"]
        query = urlencode({"change": "topology", "group": remedy.get("group", ""), "to": remedy.get("to", "")})
        changed = browser.get(f"/api/manifest?key={key}&{query}")["text"]
        answer = ask(watched, changed)[1]
        assert answer["outlook"]["fits"], answer
        assert {count["name"] for count in answer["counts"]} == {"minCount", "replicas"}
    finally:
        stream.close()
        for number in range(6):
            watched.delete(f"/api/v1/namespaces/default/pods/wide-{number}")
        watched.delete("/apis/scheduling.k8s.io/v1beta1/namespaces/default/podgroups/wide")


def test_an_object_is_shown_without_what_may_be_secret(watched: Watched) -> None:
    create(watched, gang("shown", 1, gpus=1))
    page = watched.browser()
    found = page.get("/api/object?key=pod/default/shown-0")
    assert yaml.safe_load(found["yaml"])["metadata"]["name"] == "shown-0"
    assert "hunter2" not in found["yaml"] and "env" not in found["yaml"] and "managedFields" not in found["yaml"]
    assert "kubectl get pod shown-0 -n default -o yaml" in found["kubectl"]
    group = page.get("/api/object?key=podgroup/default/shown")
    assert "minCount: 1" in group["yaml"] and "phalanx why podgroup/shown -n default" in group["kubectl"]
    node = page.get(f"/api/object?key=node/{watched.get('/api/v1/nodes')['items'][0]['metadata']['name']}")
    assert "allocatable" in node["yaml"] and not any("phalanx why" in line for line in node["kubectl"])
    assert "cannot be read" in page.get("/api/object?key=pod/default/ghost")["problem"]
    assert page.ask("GET", "/api/object?key=secret/default/x")[0] == 400


def test_history_reaches_back_a_week(watched: Watched) -> None:
    page = watched.browser()
    for span in ("day", "week"):
        samples = page.get(f"/api/history?span={span}")["samples"]
        assert samples and samples[-1]["use"].keys() == page.get("/api/snapshot")["samples"][-1]["use"].keys()
    assert page.ask("GET", "/api/history?span=century")[0] == 400
