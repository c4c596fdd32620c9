"""Questions of users that may read one namespace: a local cluster with RBAC, asked as `kubectl phalanx` asks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from phalanx.local.api.users import FILE, add_user
from support.local_cluster import LocalCluster
from support.manifests import gang

Json = dict[str, Any]
RBAC = "rbac.authorization.k8s.io/v1"
WHY = "/phalanx/v1/why"
PROXY = "/api/v1/namespaces/phalanx-system/services/https:phalanx-scheduler:https/proxy"
OURS, THEIRS = "team-a", "hidden-team"
SECRETS = (THEIRS, "canary")  # in every name of what another team has


class Tenants:
    def __init__(self, cluster: LocalCluster, data: Path) -> None:
        self.cluster, self.data = cluster, data
        self.alice = add_user(data / FILE, "alice", ())
        self.unrelated = add_user(data / FILE, "unrelated", ())

    def ask(self, path: str, body: Json | None = None, *, token: str = "", **query: str) -> Any:
        method = "GET" if body is None else "POST"
        return self.cluster.ask(method, path, body, token=token or self.alice, **query)

    def kubeconfig(self, token: str, namespace: str = OURS) -> Path:
        config = yaml.safe_load(self.cluster.kubeconfig.read_text())
        config["users"][0]["user"] = {"token": token}
        config["contexts"][0]["context"]["namespace"] = namespace
        path = self.data / f"kubeconfig-{token[:6]}"
        path.write_text(yaml.safe_dump(config))
        return path

    def plugin(self, *arguments: str, token: str = "", namespace: str = OURS) -> subprocess.CompletedProcess[str]:
        """Run `kubectl-phalanx` as kubectl does. `namespace`: that of the kubeconfig."""
        where = {**os.environ, "KUBECONFIG": str(self.kubeconfig(token or self.alice, namespace))}
        command = [sys.executable, "-m", "phalanx.cli.kubectl", *arguments]
        return subprocess.run(command, env=where, capture_output=True, text=True, timeout=60)


@pytest.fixture(scope="module")
def tenants(start_cluster: Callable[..., LocalCluster], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tenants]:
    data = tmp_path_factory.mktemp("tenants")
    cluster = start_cluster(data=data, authorization="RBAC", nodes=4, run_controllers=False)
    for name, value in (("low", 1), ("high", 100)):
        cluster.apply({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": value,
                       "metadata": {"name": name}})  # fmt: skip
    for namespace in (OURS, THEIRS, "phalanx-system"):
        cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    subject = {"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "alice"}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"}
    cluster.apply({"apiVersion": RBAC, "kind": "RoleBinding", "metadata": {"name": "alice"}, "roleRef": role,
                   "subjects": [subject]}, namespace=OURS)  # fmt: skip
    allocatable = cluster.get("/api/v1/nodes")["items"][0]["status"]["allocatable"]["cpu"]
    big = f"{int(allocatable) // 2 + 1}"
    cluster.apply(*gang("canary-running", 4, big, priority="low"), namespace=THEIRS)
    cluster.wait(
        f"/api/v1/namespaces/{THEIRS}/pods", lambda pods: all(p["spec"].get("nodeName") for p in pods["items"])
    )
    cluster.apply(*gang("canary-waiting", 9, big, priority="low"), namespace=THEIRS)
    cluster.apply(*gang("urgent", 2, big, priority="low"), namespace=OURS)
    cluster.wait(
        f"/apis/scheduling.k8s.io/v1beta1/namespaces/{OURS}/podgroups/urgent",
        lambda found: (found.get("status") or {}).get("conditions"),
    )
    cluster.big = big  # type: ignore[attr-defined]
    yield Tenants(cluster, data)


def names_no_other_team(text: str) -> bool:
    return not any(secret in text for secret in SECRETS)


def test_a_reader_of_a_namespace_asks_about_its_groups_only(tenants: Tenants) -> None:
    found = tenants.ask(WHY, kind="podgroup", namespace=OURS, name="urgent")
    assert found.code == 200 and not found.json["scheduled"]
    assert names_no_other_team(found.body.decode())
    # What is there in other namespaces is not even confirmed.
    for name in ("canary-running", "nothing"):
        refused = tenants.ask(WHY, kind="podgroup", namespace=THEIRS, name=name)
        assert refused.code == 403
        assert refused.json["message"] == (
            f'podgroups.scheduling.k8s.io "{name}" is forbidden: User "alice" cannot get resource "podgroups" in API '
            f'group "scheduling.k8s.io" in the namespace "{THEIRS}"'
        )
    assert tenants.ask(WHY, kind="podgroup", namespace=OURS, name="urgent", token=tenants.unrelated).code == 403
    assert tenants.ask(WHY, kind="podgroup", namespace=OURS, name="urgent", token="wrong").code == 401


def test_victims_in_other_namespaces_are_counted(tenants: Tenants) -> None:
    cpu = tenants.cluster.big  # type: ignore[attr-defined]
    question = {"namespace": OURS, "items": gang("asked", 2, cpu, priority="high")}
    found = tenants.ask("/phalanx/v1/whatif", question)
    assert found.code == 200
    (would,) = found.json["items"]
    assert would["evicts"] == [f"{would['plan']['cost']['pods']} pods in other namespaces"]
    assert would["plan"]["victims"][0]["name"] == "pods in other namespaces"
    assert "highestPriority" not in would["plan"]["cost"] and would["plan"]["cost"]["pods"] >= 2
    assert names_no_other_team(found.body.decode())
    whole = tenants.ask("/phalanx/v1/whatif", question, token=tenants.cluster.token)
    assert "canary-running" in whole.body.decode()
    foreign = [{**each, "metadata": {**each["metadata"], "namespace": THEIRS}} for each in question["items"]]
    assert tenants.ask("/phalanx/v1/whatif", {**question, "items": foreign}).code == 403
    assert tenants.ask("/phalanx/v1/whatif", {**question, "namespace": THEIRS}).code == 403
    assert tenants.ask("/phalanx/v1/whatif", {"drain": {"nodes": ["node-0"]}}).code == 403


def test_top_lists_the_groups_of_the_namespace_and_counts_the_rest(tenants: Tenants) -> None:
    assert tenants.ask("/phalanx/v1/state").code == 403
    assert tenants.ask("/phalanx/v1/state", namespace=THEIRS).code == 403
    assert tenants.ask("/phalanx/v1/state", namespace=OURS, domain="x").code == 403
    found = tenants.ask("/phalanx/v1/state", namespace=OURS)
    assert list(found.json["groups"]) == [f"podgroup/{OURS}/urgent"] and found.json["groupCount"] == 3
    assert [root["name"] for root in found.json["queue"]["roots"]] == ["urgent"]
    assert found.json["queue"]["total"] == 2
    assert names_no_other_team(found.body.decode())


def test_the_plugin_answers_and_reports_forbidden(tenants: Tenants) -> None:
    found = tenants.plugin("why", "podgroup/urgent")
    assert found.returncode == 1 and f"podgroup/urgent in {OURS}: pending" in found.stdout, found.stderr
    assert "there is no Job none in team-a" in tenants.plugin("why", "job/none").stderr, (
        "the groups of a workload are searched in its namespace"
    )
    refused = tenants.plugin("why", "podgroup/canary-running", "-n", THEIRS)
    assert refused.returncode == 2 and "is forbidden" in refused.stderr
    assert "no scheduler answers" not in refused.stderr
    top = tenants.plugin("top", "-o", "json")  # the kubeconfig's namespace, since not all may be read
    assert top.returncode == 0 and list(json.loads(top.stdout)["groups"]) == [f"podgroup/{OURS}/urgent"]
    plan = tenants.plugin("plan", "podgroup/urgent")
    assert names_no_other_team(plan.stdout + plan.stderr)
    assert "did you mean: kubectl phalanx why" in tenants.plugin("wy", "podgroup/urgent").stderr


def test_manifests_say_which_namespace_a_question_is_about(tenants: Tenants, tmp_path: Path) -> None:
    file = tmp_path / "asked.yaml"
    asked = [{**each, "metadata": {**each["metadata"], "namespace": OURS}} for each in gang("asked", 2, 1)]
    file.write_text(yaml.safe_dump_all(asked))
    found = tenants.plugin("whatif", "-f", str(file), namespace="default")
    assert found.returncode == 0 and f"podgroup/{OURS}/asked: fits" in found.stdout, found.stderr


def test_kubectl_finds_the_plugin(tenants: Tenants, tmp_path: Path) -> None:
    script = tmp_path / "kubectl-phalanx"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -m phalanx.cli.kubectl "$@"\n')
    script.chmod(0o755)
    where = {
        **os.environ,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "KUBECONFIG": str(tenants.kubeconfig(tenants.alice)),
    }
    command = ["kubectl", "phalanx", "why", "podgroup/urgent", "-o", "json"]
    found = subprocess.run(command, env=where, capture_output=True, text=True, timeout=60)
    assert json.loads(found.stdout)["scheduled"] is False, found.stderr


def test_the_service_proxy_leads_to_the_scheduler_of_this_process(tenants: Tenants) -> None:
    query = {"kind": "podgroup", "namespace": OURS, "name": "urgent"}
    refused = tenants.ask(f"{PROXY}{WHY}", **query)
    assert refused.code == 403 and 'cannot get resource "services/proxy"' in refused.json["message"]
    rule = {"apiGroups": [""], "resources": ["services/proxy"], "verbs": ["get"],
            "resourceNames": ["https:phalanx-scheduler:https"]}  # fmt: skip
    tenants.cluster.apply({"apiVersion": RBAC, "kind": "Role", "metadata": {"name": "q"}, "rules": [rule]},
                          namespace="phalanx-system")  # fmt: skip
    ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "q"}
    subject = {"kind": "Group", "apiGroup": "rbac.authorization.k8s.io", "name": "system:authenticated"}
    tenants.cluster.apply({"apiVersion": RBAC, "kind": "RoleBinding", "metadata": {"name": "q"}, "roleRef": ref,
                           "subjects": [subject]}, namespace="phalanx-system")  # fmt: skip
    assert tenants.ask(f"{PROXY}{WHY}", **query).json["name"] == "urgent"
    assert tenants.ask(f"{PROXY}{WHY}", **{**query, "namespace": THEIRS}).code == 403
    other = PROXY.replace("phalanx-scheduler", "other")
    missing = tenants.ask(f"{other}{WHY}", token=tenants.cluster.token)
    assert (missing.code, missing.json["message"]) == (404, 'services "other" not found')
