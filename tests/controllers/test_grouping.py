"""Grouping a workload: the modes its author can choose, names that fit and never clash, and refusals that help."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.controllers.grouping import GroupingRefused
from phalanx.controllers.grouping import names as naming
from phalanx.controllers.grouping.compare import Difference, difference, with_counts_of
from phalanx.controllers.workloads.job.grouping import BOTH, GROUP_ONLY, NOTHING, delegated, mode_of
from phalanx.controllers.workloads.registry import group
from phalanx.model import builtin
from phalanx.model.gates import Gates
from support.manifests import GANG_POLICY, job, jobset, part

TREE = "scheduling.phalanx.dev/group-tree"
EXCLUSIVE = "alpha.jobset.sigs.k8s.io/exclusive-topology"
OWNED = {
    "ownerReferences": [
        {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "name": "p", "uid": "u", "controller": True}
    ]
}
BY_CRON = {
    "ownerReferences": [{"apiVersion": "batch/v1", "kind": "CronJob", "name": "p", "uid": "u", "controller": True}]
}
DELEGATED = {**OWNED, "annotations": {"scheduling.k8s.io/group-template-name": "t"}}


def of(obj: Any, related: Any = ()) -> Any:
    found = group(obj, related)
    assert found is not None
    return found


def policy(grouping: Any) -> Any:
    return grouping.workload["spec"]["podGroupTemplates"][0]["schedulingPolicy"]


# -- Job --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "mode"),
    [
        (job("a", 4), BOTH),
        (job("a", 1), BOTH),
        (job("a", 4, pod={"schedulingGroup": {"podGroupName": "mine"}}), NOTHING),
        (job("a", 4, metadata=DELEGATED, pod={"schedulingGroup": {"podGroupName": "mine"}}), NOTHING),
        (job("a", 4, metadata=OWNED), NOTHING),
        (job("a", 4, metadata=DELEGATED), GROUP_ONLY),
        (job("a", 4, metadata=BY_CRON), BOTH),
    ],
)
def test_who_makes_the_groups_of_a_job(made: Any, mode: str) -> None:
    assert mode_of(made) == mode


def test_jobs_of_a_cronjob_may_be_left_alone_as_kubernetes_does() -> None:
    assert mode_of(job("a", 4, metadata=BY_CRON), cron_jobs=False) == NOTHING


@pytest.mark.parametrize(
    ("asked", "size", "expected"),
    [
        ({}, 4, {"basic": {}}),
        ({"scheduling": {}}, 4, {"basic": {}}),
        ({"scheduling": {"schedulingPolicy": {"basic": {}}}}, 4, {"basic": {}}),
        ({"scheduling": {"schedulingPolicy": {"gang": {"minCount": 3}}}}, 4, {"gang": {"minCount": 3}}),
        ({"scheduling": GANG_POLICY}, 4, {"gang": {"minCount": 4}}),
        ({"scheduling": GANG_POLICY}, 0, {"gang": {"minCount": 1}}),
        ({"scheduling": GANG_POLICY, "completions": 3}, 4, {"gang": {"minCount": 3}}),  # a fourth pod never exists
        ({"scheduling": GANG_POLICY, "completions": None}, 4, {"gang": {"minCount": 4}}),
        ({"metadata": {"annotations": {"scheduling.phalanx.dev/gang": "true"}}}, 4, {"gang": {"minCount": 4}}),
        ({"metadata": {"annotations": {"scheduling.phalanx.dev/gang": "false"}}}, 4, {"basic": {}}),
    ],
)
def test_the_policy_of_a_job(asked: Any, size: int, expected: Any) -> None:
    assert policy(of(job("a", size, uid="u", **copy.deepcopy(asked)))) == expected


def test_everything_else_a_job_asks_for_reaches_its_group() -> None:
    asked = {
        **GANG_POLICY,
        "schedulingConstraints": {"topology": [{"key": "rack"}]},
        "disruptionMode": {"all": {}},
        "resourceClaims": [{"name": "c", "resourceClaimName": "shared"}],
    }
    found = of(job("a", 2, uid="u", scheduling=asked, pod={"priorityClassName": "high"}))
    (made,) = found.groups
    assert {key: made["spec"][key] for key in asked if key != "schedulingPolicy"} == {
        key: value for key, value in asked.items() if key != "schedulingPolicy"
    }
    assert made["spec"]["priorityClassName"] == "high"
    assert found.workload["spec"]["podGroupTemplates"][0]["priorityClassName"] == "high"


ASKED = "scheduling.phalanx.dev/gang"
DISRUPTION = "scheduling.phalanx.dev/disruption"


def modes(grouping: Any) -> list[Any]:
    return [made["spec"].get("disruptionMode") for made in [*grouping.composites, *grouping.groups]]


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (job("a", 2, uid="u", metadata={"annotations": {ASKED: "true"}}), [{"all": {}}]),
        (job("a", 2, uid="u", metadata={"annotations": {ASKED: "true", DISRUPTION: "single"}}), [{"single": {}}]),
        (job("a", 2, uid="u", scheduling=GANG_POLICY), [None]),  # Kubernetes' own Job controller leaves it out
        (job("a", 2, uid="u"), [None]),
        (jobset("a", part("x", 1, 2), annotations={ASKED: "true"}), [{"all": {}}]),
        (jobset("a", part("x", 1, 2), annotations={TREE: "Job"}), [{"all": {}}] * 3),
        (
            jobset("a", part("x", 1, 2), annotations={TREE: "Job", DISRUPTION: "single"}),
            [{"single": {}}] + [{"all": {}}] * 2,
        ),
        (
            jobset("a", part("x", 1, 2, annotations={DISRUPTION: "single"}), annotations={TREE: "Job"}),
            [None, None, {"single": {}}],
        ),
        (jobset("a", part("x", 1, 2), scheduling=GANG_POLICY), [None]),
    ],
    ids=str,
)
def test_a_gang_that_is_made_for_its_workload_is_evicted_as_a_whole_unless_asked(made: Any, expected: Any) -> None:
    assert modes(of(made)) == expected


def test_names_of_a_job_depend_on_its_uid_and_fit() -> None:
    assert of(job("a", uid="1")).workload["metadata"]["name"] != of(job("a", uid="2")).workload["metadata"]["name"]
    for workload, template in (("w" * 200, "t" * 200), ("wl", "t" * 250), ("w" * 250, "tp")):
        name = naming.of_template(workload, template)
        assert len(name) <= 253
        assert name.startswith(workload[:2]) and template[:2] in name[2:]
        assert name != naming.of_template(workload, template + "x")


@pytest.mark.parametrize("name", ["j" * 63, "j" * 58, "a.dotted.name", "x" * 60 + ".y"])
def test_a_job_of_any_name_gets_groups_the_server_accepts(name: str) -> None:
    found = of(job(name, uid="u"))
    validate = KINDS["Workload"].validate_create
    assert validate is not None and validate(found.workload) == []
    assert len(found.groups[0]["spec"]["workloadRef"]["templateName"]) <= 63


def test_a_delegated_job_takes_its_parents_template_even_below_a_composite() -> None:
    parent = of(jobset("p", part("w", 2, 3), annotations={TREE: "Job"}, uid="u")).workload
    made = job("a", 3, uid="j", metadata={**OWNED, "annotations": {"scheduling.k8s.io/group-template-name": "w-job"}})
    found = delegated(made, parent)
    assert found.workload is None
    (mine,) = found.groups
    assert mine["spec"]["workloadRef"] == {"workloadName": parent["metadata"]["name"], "templateName": "w-job"}
    assert mine["spec"]["schedulingPolicy"] == {"gang": {"minCount": 3}}
    assert [ref["kind"] for ref in mine["metadata"]["ownerReferences"]] == ["Job"]
    made["metadata"]["annotations"]["scheduling.k8s.io/group-template-name"] = "nothing"
    with pytest.raises(GroupingRefused, match="no podGroupTemplate 'nothing'"):
        delegated(made, parent)


# -- JobSet -----------------------------------------------------------------------------------------------------------


def test_a_jobset_that_asks_for_nothing_gets_nothing() -> None:
    assert not of(jobset("a", part("x", 2, 2)))
    assert not of(jobset("a", part("x", 2, 2), gangConfig={"gangMode": "Off"}))
    assert not of(jobset("a", part("x", 2, 2, gangConfig={"gangMode": "Off"})))


def test_only_some_replicated_jobs_may_be_gangs() -> None:
    found = of(
        jobset("a", part("x", 2, 2, gangConfig={"gangMode": "Off"}), part("y", 1, 3, gangConfig={"gangMode": "Gang"}))
    )
    assert [g["name"] for g in found.workload["spec"]["podGroups"]] == ["pg-y"]
    assert list(found.links) == ["a-y-0"]


def test_a_whole_set_gang_is_split_where_parts_start_in_turn() -> None:
    found = of(
        jobset(
            "a",
            part("x", 1, 2),
            part("y", 1, 3),
            gangConfig={"gangMode": "Gang"},
            startupPolicy={"startupPolicyOrder": "InOrder"},
        )
    )
    assert {g["name"]: g["policy"]["gang"]["minCount"] for g in found.workload["spec"]["podGroups"]} == {
        "pg-x": 2,
        "pg-y": 3,
    }


@pytest.mark.parametrize("leaves", ["Job", "ReplicatedJob"])
def test_parts_of_a_tree_that_start_together_after_another_one_are_below_one_gang(leaves: str) -> None:
    after = {"dependsOn": [{"name": "x", "status": "Ready"}]}
    parts = (part("x", 1, 2), part("y", 1, 3, **after), part("z", 2, 1, **after))
    found = of(jobset("a", *parts, annotations={TREE: leaves}))
    by_name = {made["metadata"]["name"]: made["spec"] for made in [*found.composites, *found.groups]}
    (turn,) = (name for name in by_name if name.startswith("a-y-z"))
    assert by_name["a"]["schedulingPolicy"] == {"basic": {}}
    assert by_name[turn]["schedulingPolicy"] == {"gang": {"minGroupCount": 2}}
    parents = {name: by_name[name].get("parentCompositePodGroupName") for name in ("a", turn, "a-x", "a-y", "a-z")}
    assert parents == {"a": None, turn: "a", "a-x": "a", "a-y": turn, "a-z": turn}
    (template,) = found.workload["spec"]["compositePodGroupTemplates"]
    (stage,) = (each for each in template["compositePodGroupTemplates"] if each["name"].startswith("y-z"))
    assert [each["name"] for each in stage.get("podGroupTemplates") or stage["compositePodGroupTemplates"]] == [
        "y",
        "z",
    ]
    basic = of(jobset("a", *parts, annotations={TREE: leaves, ASKED: "false"}))
    assert {made["spec"].get("parentCompositePodGroupName") for made in [*basic.composites, *basic.groups]} <= {
        None,
        "a",
        "a-x",
        "a-y",
        "a-z",
    }


def test_pods_that_name_a_group_themselves_are_left_alone() -> None:
    by_hand = {"pod": {"workloadRef": {"name": "w-a", "podGroup": "pg-a"}}}
    assert not of(jobset("a", part("x", 2, 4, **by_hand), part("y", 2, 4, **by_hand), gangConfig={"gangMode": "Gang"}))
    found = of(jobset("a", part("x", 2, 4, **by_hand), part("y", 2, 4), scheduling=GANG_POLICY))
    assert policy(found) == {"gang": {"minCount": 8}}
    assert "a-x-0" not in found.links


def hand_made(name: str, **groups: int) -> Any:
    entries = [{"name": n.replace("_", "-"), "policy": {"gang": {"minCount": c}}} for n, c in groups.items()]
    return {
        "apiVersion": "scheduling.k8s.io/v1alpha1",
        "kind": "Workload",
        "metadata": {"name": name},
        "spec": {"podGroups": entries},
    }


def test_a_workload_made_by_hand_is_used_and_not_replaced() -> None:
    mine = jobset("a", part("x", 2, 4), gangConfig={"gangMode": "Gang"})
    found = of(mine, [hand_made("w-a", pg_a=5)])
    assert found.workload is None and found.links["a-x-1"].workload == "w-a"
    with pytest.raises(GroupingRefused, match="has no group 'pg-a'"):
        of(mine, [hand_made("w-a", other=5)])
    with pytest.raises(GroupingRefused, match="wants 9 pods and will only ever have 8; delete the Workload"):
        of(mine, [hand_made("w-a", pg_a=9)])  # the groups of v1alpha1 cannot be changed


def test_more_than_eight_jobs_share_a_template() -> None:
    found = of(
        jobset(
            "a",
            part("x", 20, 2),
            part("y", 1, 1),
            scheduling={
                "replicatedJobs": [{"targetReplicatedJobs": ["x"], "job": {}}, {"targetReplicatedJobs": ["y"]}]
            },
        )
    )
    assert len(found.workload["spec"]["podGroupTemplates"]) == 2
    assert len(found.groups) == 21 and len({g["metadata"]["name"] for g in found.groups}) == 21


def test_exclusive_topology_becomes_a_group_for_each_job_in_one_domain() -> None:
    found = of(jobset("a", part("x", 3, 2), annotations={EXCLUSIVE: "rack"}))
    assert len(found.groups) == 3
    for made in found.groups:
        assert made["spec"]["schedulingConstraints"] == {"topology": [{"key": "rack"}]}
        assert made["spec"]["schedulingPolicy"] == {"gang": {"minCount": 2}}


def test_levels_of_a_tree_have_topology_and_disruption_of_their_own() -> None:
    domain = "scheduling.phalanx.dev/"
    own = {
        f"{domain}replicated-job-topology": "block",
        f"{domain}topology": "rack",
        f"{domain}replicated-job-min-groups": "2",
    }
    found = of(
        jobset(
            "a",
            part("x", 3, 2, annotations=own),
            annotations={TREE: "Job", f"{domain}topology": "zone", f"{domain}disruption": "all"},
        )
    )
    root, middle = found.composites
    leaf = found.groups[0]
    assert [o["spec"]["schedulingConstraints"]["topology"][0]["key"] for o in (root, middle, leaf)] == [
        "zone",
        "block",
        "rack",
    ]
    assert all(o["spec"]["disruptionMode"] == {"all": {}} for o in (root, middle, leaf))
    assert middle["spec"]["schedulingPolicy"] == {"gang": {"minGroupCount": 2}}


REFUSED = {
    "both levels": (
        jobset("a", part("x", 1, 1, gangConfig={"gangMode": "Gang"}), gangConfig={"gangMode": "Gang"}),
        "set the other to Off",
    ),
    "two ways": (
        jobset("a", part("x", 1, 1), gangConfig={"gangMode": "Gang"}, scheduling=GANG_POLICY),
        "remove one of them",
    ),
    "nine groups": (
        jobset("a", *(part(f"x{i}", 1, 1, gangConfig={"gangMode": "Gang"}) for i in range(9))),
        "asks for 9 groups",
    ),
    "nine entries": (
        jobset("a", *(part(f"x{i}", 1, 1) for i in range(9)), scheduling={"schedulingPolicy": {"basic": {}}}),
        "would need 9 groups",
    ),
    "too many wanted": (
        jobset("a", part("x", 2, 2), scheduling={"schedulingPolicy": {"gang": {"minCount": 5}}}),
        "has 4 pods",
    ),
    "native scheduling": (jobset("a", part("x", 1, 1, job={"scheduling": {}}), scheduling={}), "keep one"),
    "gang in turn": (
        jobset(
            "a",
            part("x", 1, 1),
            part("y", 1, 1, dependsOn=[{"name": "x", "status": "Ready"}]),
            scheduling={"replicatedJobs": [{"targetReplicatedJobs": ["x", "y"]}]},
        ),
        "could never fill",
    ),
    "priorities": (
        jobset("a", part("x", 1, 1), part("y", 1, 1, pod={"priorityClassName": "high"}), scheduling=GANG_POLICY),
        "same priorityClassName",
    ),
    "basic and all": (
        jobset("a", part("x", 1, 1), scheduling={"schedulingPolicy": {"basic": {}}, "disruptionMode": {"all": {}}}),
        "needs a gang",
    ),
    "minimum in sequence": (
        jobset(
            "a",
            part("x", 1, 1),
            part("y", 1, 1, dependsOn=[{"name": "x", "status": "Ready"}]),
            annotations={ASKED: "true", "scheduling.phalanx.dev/min-count": "1"},
        ),
        "start one after another",
    ),
    "minimum of a tree in sequence": (
        jobset(
            "a",
            part("x", 1, 1),
            part("y", 1, 1, dependsOn=[{"name": "x", "status": "Ready"}]),
            annotations={TREE: "Job", "scheduling.phalanx.dev/min-groups": "1"},
        ),
        "start one after another",
    ),
    "tree value": (jobset("a", part("x", 1, 1), annotations={TREE: "Pod"}), "is not one of Job, ReplicatedJob"),
    "single below all": (
        jobset(
            "a",
            part("x", 1, 1, annotations={"scheduling.phalanx.dev/disruption": "single"}),
            annotations={TREE: "Job", "scheduling.phalanx.dev/disruption": "all"},
        ),
        "disrupted as one",
    ),
    "wish": (
        job("a", uid="u", metadata={"annotations": {"scheduling.phalanx.dev/gang": "yes"}}),
        "not one of true, false",
    ),
    "negative wish": (
        jobset(
            "a",
            part("x", 1, 1),
            annotations={"scheduling.phalanx.dev/gang": "true", "scheduling.phalanx.dev/min-count": "-1"},
        ),
        "not a whole number",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_work_is_refused_with_what_to_change(case: str) -> None:
    obj, words = REFUSED[case]
    with pytest.raises(GroupingRefused, match=words):
        of(obj)


# -- for any JobSet ---------------------------------------------------------------------------------------------------

NAME = st.from_regex(r"[a-z]([-a-z0-9]{0,30}[a-z0-9])?", fullmatch=True)
PART = st.builds(part, NAME, st.integers(0, 12), st.integers(0, 5))
HOW = st.sampled_from(["Gang", "ReplicatedGang", "scheduling", "entries", "jobs", "tree", "leaves", "exclusive"])


@st.composite
def jobsets(draw: Any) -> Any:
    parts = draw(st.lists(PART, min_size=1, max_size=8, unique_by=lambda p: p["name"]))
    made = jobset(draw(NAME), *parts, uid="u")
    how = draw(HOW)
    if how == "Gang":
        made["spec"]["gangConfig"] = {"gangMode": "Gang"}
    elif how == "ReplicatedGang":
        for item in parts:
            item["gangConfig"] = {"gangMode": draw(st.sampled_from(["Off", "Gang", "ReplicatedGang"]))}
    elif how == "scheduling":
        made["spec"]["scheduling"] = draw(st.sampled_from([{}, GANG_POLICY, {"schedulingPolicy": {"basic": {}}}]))
    elif how in ("entries", "jobs"):
        rest = {"job": {}} if how == "jobs" else {}
        made["spec"]["scheduling"] = {"replicatedJobs": [{"targetReplicatedJobs": [p["name"]], **rest} for p in parts]}
    elif how in ("tree", "leaves"):
        made["metadata"]["annotations"] = {TREE: "Job" if how == "tree" else "ReplicatedJob"}
    else:
        made["metadata"]["annotations"] = {EXCLUSIVE: "rack"}
    if draw(st.booleans()):
        made["spec"]["startupPolicy"] = {"startupPolicyOrder": "InOrder"}
    return made


KINDS = {kind.kind: kind for kind in builtin.registry(Gates()).all() if kind.group == "scheduling.k8s.io"}


@settings(max_examples=150, deadline=None)
@given(jobsets())
def test_any_jobset_gets_objects_the_server_accepts_and_links_that_lead_somewhere(made: Any) -> None:
    found = of(made)
    assert of(copy.deepcopy(made)).objects == found.objects
    seen = set()
    for obj in found.objects:
        kind = KINDS[obj["kind"]]
        stored = kind.version(obj["apiVersion"].rpartition("/")[2])
        body = copy.deepcopy(obj)
        if stored.to_storage is not None:
            body = stored.to_storage(body)
        if kind.default is not None:
            kind.default(body)
        assert kind.validate_create is not None
        assert kind.validate_create(body) == [], obj
        assert (obj["kind"], obj["metadata"]["name"]) not in seen
        seen.add((obj["kind"], obj["metadata"]["name"]))
        assert difference(body, obj) is Difference.NONE
        parent = obj["spec"].get("parentCompositePodGroupName")
        assert parent is None or ("CompositePodGroup", parent) in seen
    for link in found.links.values():
        assert ("PodGroup", link.pod_group) in seen or ("Workload", link.workload) in seen
    for group_object in found.groups:
        gang_policy = group_object["spec"]["schedulingPolicy"].get("gang")
        name = group_object["metadata"]["name"]
        pods = sum(
            item["template"]["spec"]["parallelism"]
            for item in made["spec"]["replicatedJobs"]
            for index in range(item["replicas"])
            if (link := found.links.get(f"{made['metadata']['name']}-{item['name']}-{index}"))
            and link.pod_group == name
        )
        assert gang_policy is None or gang_policy["minCount"] == pods


def test_readable_names_that_run_together_stay_apart() -> None:
    one = of(jobset("a", part("b-c", 1, 1), scheduling={"replicatedJobs": [{"targetReplicatedJobs": ["b-c"]}]}))
    two = of(jobset("a-b", part("c", 1, 1), scheduling={"replicatedJobs": [{"targetReplicatedJobs": ["c"]}]}))
    assert {o["metadata"]["name"] for o in one.objects}.isdisjoint(o["metadata"]["name"] for o in two.objects)


# -- comparing --------------------------------------------------------------------------------------------------------


def test_only_counts_may_be_changed_in_place() -> None:
    small = of(job("a", 2, uid="u", scheduling=GANG_POLICY)).groups[0]
    large = of(job("a", 5, uid="u", scheduling=GANG_POLICY)).groups[0]
    stored = copy.deepcopy(small)
    stored["spec"] |= {"disruptionMode": {"single": {}}, "priority": 0}
    assert difference(stored, small) is Difference.NONE
    assert difference(stored, large) is Difference.COUNTS
    assert with_counts_of(stored, large)["spec"]["schedulingPolicy"] == {"gang": {"minCount": 5}}
    assert with_counts_of(stored, large)["spec"]["disruptionMode"] == {"single": {}}
    other = copy.deepcopy(small)
    other["spec"]["schedulingConstraints"] = {"topology": [{"key": "rack"}]}
    assert difference(stored, other) is Difference.SHAPE
    assert difference(other, small) is Difference.SHAPE


def test_parts_that_start_together_are_one_gang_also_after_others() -> None:
    """B and C after A: whichever way the gang is asked for, B does not run without C."""
    after = {"dependsOn": [{"name": "a", "status": "Complete"}]}
    for asked in ({"gangConfig": {"gangMode": "Gang"}}, {"scheduling": {"schedulingPolicy": {"gang": {}}}}):
        made = jobset("js", part("a", 1, 1), part("b", 1, 2, **after), part("c", 2, 1, **after), uid="u", **asked)
        found = of(made)
        links = {name: link.pod_group or link.group for name, link in found.links.items()}
        assert links["js-b-0"] == links["js-c-0"] == links["js-c-1"] != links["js-a-0"]
        spec = found.workload["spec"]
        entries = spec.get("podGroupTemplates") or spec["podGroups"]
        policies = [entry.get("schedulingPolicy") or entry["policy"] for entry in entries]
        assert sorted(each["gang"]["minCount"] for each in policies) == [1, 4]
