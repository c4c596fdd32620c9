"""`phalanx group` as started by a person."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from phalanx.cli.group import group
from phalanx.cli.main import COMMANDS

EXAMPLES = Path(__file__).parents[2] / "examples"

JOBSET = """
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata: {name: s}
spec:
  suspend: true
  scheduling: {schedulingPolicy: {gang: {}}}
  replicatedJobs:
  - name: a
    replicas: 2
    template: {spec: {parallelism: 3, completions: 3, template: {spec: {containers: [{name: c, image: i}]}}}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: not-a-workload}
"""


def run(text: str, *options: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(group, ["-f", "-", *options], input=text, standalone_mode=False)
    code = result.return_value if isinstance(result.return_value, int) else 1
    return code, result.stdout, result.stderr or str(result.exception or "")


def test_it_is_a_command() -> None:
    assert COMMANDS["group"][0] == "phalanx.cli.group"


def test_yaml_can_be_read_back_and_says_how_pods_join() -> None:
    code, out, _ = run(JOBSET)
    assert code == 0
    workload, podgroup = yaml.safe_load_all(out)
    assert (workload["kind"], podgroup["kind"]) == ("Workload", "PodGroup")
    assert podgroup["spec"]["schedulingPolicy"] == {"gang": {"minCount": 6}}
    assert f"s-a-1: {{'schedulingGroup': {{'podGroupName': '{podgroup['metadata']['name']}'}}}}" in out


def test_json_is_one_list_with_links() -> None:
    code, out, _ = run(JOBSET, "-o", "json", "-n", "ml")
    found = json.loads(out)
    assert code == 0 and found["kind"] == "List"
    assert {item["metadata"]["namespace"] for item in found["items"]} == {"ml"}
    assert list(found["links"]["JobSet ml/s"]) == ["s-a-0", "s-a-1"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (JOBSET.replace("gang: {}", "gang: {minCount: 9}"), "must not be greater than its pods (6)"),
        (JOBSET.replace("replicas: 2", "replicas: -2"), "spec.replicatedJobs[0].replicas"),
        (JOBSET.replace("parallelism: 3", "parallelism: three"), "error: JobSet default/s"),
        ("a: b", "every document needs apiVersion and kind"),
        ("- [", "is not YAML"),
    ],
)
def test_what_is_wrong_is_said(text: str, words: str) -> None:
    code, out, err = run(text)
    assert code == 1 and words in err and "Traceback" not in err
    assert out.strip() == ""


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_example_can_be_grouped(path: Path) -> None:
    code, _, err = run(path.read_text())
    assert code == 0, err


BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{b}: &{b} [{', '.join(['*' + a] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[" * 5000, "nested deeper than 200 levels"),
        ("a:\n" + "".join(" " * n + "b:\n" for n in range(1, 2000)), "nested deeper than 200 levels"),
        (BOMB, "aliases"),
        ("a: &a [*a]", "stands for nothing"),
        ("kind: Job\nmetadata: {name: [", ": line"),
        ("a: \x00b", "control characters"),
        ("k: !!python/object/apply:os.system [id]", "tag"),
    ],
)
@pytest.mark.parametrize("command", ["group", "whatif"])
def test_a_file_that_is_a_trap_is_refused_with_a_clear_error(command: str, text: str, said: str) -> None:
    from phalanx.cli.whatif import whatif

    chosen = group if command == "group" else whatif
    result = CliRunner().invoke(chosen, ["-f", "-"], input=text)
    assert result.exit_code == 2, result.output
    assert said in result.output and "is not YAML that can be read" in result.output
    assert "Traceback" not in result.output


def test_the_groups_of_a_leader_worker_set_for_volcano_are_volcano_s_own() -> None:
    code, out, _ = run(
        """
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
metadata:
  name: served
  annotations: {scheduling.phalanx.dev/gang: "true", scheduling.phalanx.dev/provider: volcano}
spec:
  replicas: 2
  leaderWorkerTemplate: {size: 3, workerTemplate: {spec: {containers: [{name: c, image: i}]}}}
""",
        "-o",
        "json",
    )
    found = json.loads(out)
    assert code == 0
    assert [item["apiVersion"] for item in found["items"]] == ["scheduling.volcano.sh/v1beta1"] * 2
    assert [item["spec"]["minMember"] for item in found["items"]] == [3, 3]
    links = found["links"]["LeaderWorkerSet default/served"]
    name = found["items"][0]["metadata"]["name"]
    assert next(iter(links.values())) == {"metadata": {"annotations": {"scheduling.k8s.io/group-name": name}}}
