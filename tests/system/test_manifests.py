"""What `kubectl apply -k deploy/` installs: generated from the model, and taken by an API server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from phalanx.base.errors import Invalid
from phalanx.cli.parts import controllers
from phalanx.cli.scheduler import scheduler
from phalanx.model.crds import definitions, manifest
from phalanx.serve.webhook import COMPOSITES_PATH, PATH
from support.cluster_mode import OFF, InCluster
from support.rights import DEPLOY, documents, installed

Json = dict[str, Any]
KINDS = ("Workload", "PodGroup", "CompositePodGroup")


def test_the_custom_resources_are_those_of_the_model() -> None:
    assert (DEPLOY / "components" / "custom-resources" / "10-crds.yaml").read_text() == manifest()
    assert (DEPLOY / "base" / "10-policies.yaml").read_text() == manifest(policies=True)


def test_custom_resources_take_trees_as_deep_as_allowed_and_keep_every_field() -> None:
    async def scenario() -> None:
        cluster = InCluster(OFF)
        try:
            await cluster.start_duties()
            await cluster.install_custom_resources()
            leaf = {"name": "leaf", "schedulingPolicy": {"gang": {"minCount": 4}}, "priorityClassName": "p"}
            node: Json = {"podGroupTemplates": [leaf]}
            for name in ("c", "b", "a"):
                policy = {"gang": {"minGroupCount": 1}}
                template = {"name": name, "schedulingPolicy": policy, "disruptionMode": {"all": {}}, **node}
                node = {"compositePodGroupTemplates": [template]}
            made = await cluster.create("Workload", "deep", spec=node)
            assert made["spec"] == node
            spec = {
                "workloadRef": {"workloadName": "deep", "templateName": "leaf"},
                "parentCompositePodGroupName": "c",
                "schedulingPolicy": {"gang": {"minCount": 4}},
                "schedulingConstraints": {"topology": [{"key": "rack"}]},
                "resourceClaims": [{"name": "gpu", "resourceClaimName": "x"}],
                "priority": 7,
                "preemptionPolicy": "Never",
            }
            assert (await cluster.create("PodGroup", "leaf", spec=spec))["spec"] == spec
            for bad in ({"gang": {"minCount": 0}}, {"gang": {"minCount": "many"}}, {"gang": {}}):
                with pytest.raises(Invalid):
                    await cluster.create("PodGroup", "bad", spec={"schedulingPolicy": bad})
            many = [{**leaf, "name": f"t{number}"} for number in range(9)]
            with pytest.raises(Invalid):
                await cluster.create("Workload", "wide", spec={"podGroupTemplates": many})
        finally:
            await cluster.stop()

    asyncio.run(scenario())


def test_custom_resources_are_not_in_a_group_that_the_api_server_keeps_to_itself() -> None:
    names = [definition["metadata"]["name"] for definition in definitions()]
    plurals = [*(f"{kind.lower()}s" for kind in KINDS), "workloadpolicies"]
    assert names == [f"{plural}.scheduling.phalanx.dev" for plural in plurals]


def test_an_api_server_takes_all_objects_it_knows() -> None:
    async def scenario() -> None:
        cluster = InCluster(OFF)
        known = {kind.kind for kind in cluster.registry.all()}
        taken = []
        try:
            await cluster.start_duties()
            for body in installed():
                if body["kind"] in known:
                    await cluster.apply(body, body["metadata"].get("namespace", ""))
                    taken.append(body["kind"])
        finally:
            await cluster.stop()
        assert taken.count("Deployment") == 2 and taken.count("ClusterRole") == 5 and "Service" in taken

    asyncio.run(scenario())


def test_commands_in_the_manifests_exist() -> None:
    for part, command in (("phalanx-scheduler", scheduler), ("phalanx-controllers", controllers)):
        container = deployment_of(installed(), part)["spec"]["template"]["spec"]["containers"][0]
        name, *arguments = container["args"]
        assert name == command.name
        options = command.make_context(name, list(arguments)).params
        assert options["scheduler_name"] == "phalanx"


def deployment_of(bodies: list[Json], name: str) -> Json:
    (found,) = (body for body in bodies if (body["kind"], body["metadata"]["name"]) == ("Deployment", name))
    return found


def test_every_file_is_part_of_an_install() -> None:
    for folder in ("base", "components/custom-resources", "components/high-availability"):
        listed = documents_of(DEPLOY / folder / "kustomization.yaml")["resources"]
        there = [file.name for file in (DEPLOY / folder).glob("*.yaml") if file.name != "kustomization.yaml"]
        assert sorted(listed) == sorted(there)


def documents_of(file: Path) -> Json:
    found: Json = yaml.safe_load(file.read_text())
    return found


OVERLAYS = {  # -> PodGroups as custom resources, replicas, dashboard
    ".": (True, 2, True),
    "overlays/native": (False, 1, False),
    "overlays/custom-resources": (True, 1, False),
    "overlays/high-availability": (True, 2, False),
    "overlays/dashboard": (True, 1, True),
}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_overlays_differ_in_what_their_names_say(overlay: str) -> None:
    custom, replicas, dashboard = OVERLAYS[overlay]
    bodies = installed(overlay)
    names = {body["metadata"]["name"] for body in bodies if body["kind"] == "CustomResourceDefinition"}
    assert ("podgroups.scheduling.phalanx.dev" in names) == custom
    assert "workloadpolicies.scheduling.phalanx.dev" in names
    for part in ("phalanx-scheduler", "phalanx-controllers"):
        assert deployment_of(bodies, part)["spec"]["replicas"] == replicas
    assert len([body for body in bodies if body["kind"] == "PodDisruptionBudget"]) == (2 if replicas == 2 else 0)
    arguments = deployment_of(bodies, "phalanx-scheduler")["spec"]["template"]["spec"]["containers"][0]["args"]
    assert scheduler.make_context(arguments[0], arguments[1:]).params["dashboard"] == dashboard
    ids = [(body["kind"], body["metadata"].get("namespace"), body["metadata"]["name"]) for body in bodies]
    assert len(ids) == len(set(ids))


def test_roles_are_bound_and_the_webhook_reaches_the_controllers() -> None:
    rbac = documents("20-rbac.yaml")
    accounts = {body["metadata"]["name"] for body in documents("00-namespace.yaml") if body["kind"] == "ServiceAccount"}
    for body in rbac:
        if body["kind"].endswith("Binding"):
            role = body["roleRef"]
            assert any(r["kind"] == role["kind"] and r["metadata"]["name"] == role["name"] for r in rbac)
            assert {subject["name"] for subject in body["subjects"]} <= accounts
    deployment, service = documents("40-controllers.yaml")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    hooks = documents("50-webhook.yaml")[0]["webhooks"]
    assert {hook["clientConfig"]["service"]["path"] for hook in hooks} == {PATH, COMPOSITES_PATH}
    for hook in hooks:
        target = hook["clientConfig"]["service"]
        assert (target["name"], target["namespace"]) == (service["metadata"]["name"], service["metadata"]["namespace"])
        host = f"--webhook-host={target['name']}.{target['namespace']}.svc"
        assert host in deployment["spec"]["template"]["spec"]["containers"][0]["args"]
        assert hook["failurePolicy"] == "Ignore"


def roles() -> Iterator[Json]:
    """All roles of the manifests; the chart makes the same ones."""
    for path in sorted(DEPLOY.rglob("*.yaml")):
        if "helm" not in path.parts:
            for body in yaml.safe_load_all(path.read_text()):
                if (body or {}).get("kind") in ("ClusterRole", "Role") and not body.get("aggregationRule"):
                    yield body


def test_every_right_is_documented() -> None:
    """A row of the table without a role is about the role above."""
    page = (DEPLOY.parent / "docs" / "cluster.md").read_text()
    rows, last = set(), ""
    for line in page.partition("\n## Rights\n")[2].partition("\n## ")[0].splitlines():
        first, rest = line.removeprefix("| ").partition("| ")[::2]
        last = first.strip() or last
        rows.add((last, rest))
    for role in roles():
        meta = role["metadata"]
        name = meta["name"] + (f" (in `{meta.get('namespace', 'NAMESPACE')}`)" if role["kind"] == "Role" else "")
        for rule in role["rules"]:
            groups = ", ".join(group or "core" for group in rule.get("apiGroups", ())) or "URLs"
            what = ", ".join(f"`{each}`" for each in rule.get("resources") or rule["nonResourceURLs"])
            if rule.get("resourceNames"):
                what += " named " + ", ".join(f"`{each}`" for each in rule["resourceNames"])
            row = f"{groups} | {what} | {', '.join(rule['verbs'])} |"
            assert (name, row) in rows, f"docs/cluster.md does not have: {name}: {row}"


def test_every_option_of_cluster_mode_is_documented() -> None:
    text = (DEPLOY.parent / "docs" / "commands.md").read_text()
    options = [
        option.opts[0] for option in controllers.params if (getattr(option, "help", "") or "").startswith("cluster:")
    ]
    assert len(options) == 10
    assert [option for option in options if f"`{option}" not in text] == []


def test_what_is_installed_is_bounded_pinned_and_closed() -> None:
    bodies = installed()
    budgets = {body["metadata"]["name"] for body in bodies if body["kind"] == "PodDisruptionBudget"}
    policies = {body["metadata"]["name"]: body["spec"] for body in bodies if body["kind"] == "NetworkPolicy"}
    assert policies.pop("phalanx-closed") == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    opened = {
        (direction, name, port["port"])
        for name, spec in policies.items()
        for direction in ("ingress", "egress")
        for rule in spec.get(direction, ())
        for port in rule["ports"]
    }
    assert opened == {
        ("egress", "phalanx-to-api-server", 443),
        ("egress", "phalanx-to-api-server", 6443),
        ("egress", "phalanx-to-api-server", 53),
        ("ingress", "phalanx-webhook", "webhook"),
        ("ingress", "phalanx-metrics", "secure"),
        ("ingress", "phalanx-questions", "secure"),
    }
    for body in (body for body in bodies if body["kind"] == "Deployment"):
        name, spec = body["metadata"]["name"], body["spec"]["template"]["spec"]
        (container,) = spec["containers"]
        assert name in budgets
        assert not container["image"].endswith(":latest") and ":" in container["image"]
        assert container["resources"]["limits"]["memory"]
        assert container["securityContext"]["readOnlyRootFilesystem"] and spec["securityContext"]["runAsNonRoot"]
        assert "podAntiAffinity" in spec["affinity"]
        assert container["livenessProbe"]["httpGet"] == {"path": "/livez", "port": "secure", "scheme": "HTTPS"}
        assert all(probe["httpGet"]["scheme"] == "HTTPS" for key, probe in container.items() if key.endswith("Probe"))
        plain = [text for text in container["args"] if text.startswith("--health")]
        assert all(text.startswith("--health=127.0.0.1:") for text in plain), "nothing is said in plain text to others"
        assert {port["name"] for port in container["ports"]} <= {"secure", "webhook"}
