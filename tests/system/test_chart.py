"""The Helm chart: rendered where helm is on PATH, it is what the overlays of deploy/ are."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.programs import program
from support.rights import DEPLOY, installed

Json = dict[str, Any]
CHART = DEPLOY / "helm" / "phalanx"
VALUES = {
    ".": {},
    "overlays/native": {"customResources": False, "highAvailability": False, "dashboard": False},
    "overlays/custom-resources": {"highAvailability": False, "dashboard": False},
    "overlays/high-availability": {"dashboard": False},
    "overlays/dashboard": {"highAvailability": False},
}
SMALL = {"customResources": False, "highAvailability": False, "dashboard": False, "createNamespace": True}
COMPONENTS = {  # of deploy/components, with the values that install the same
    "kueue": {"kueue": True},
    "dialects": {"dialects": ["volcano", "coscheduling", "kai"]},
    "provisioning-requests": {"provisioningRequests": "best-effort-atomic-scale-up"},
    "gang-budgets": {"gangBudgets": True},
    "default-gangs": {"defaultGangs": True},
}


def helm(*arguments: str, namespace: str = "phalanx-system", **values: Any) -> subprocess.CompletedProcess[str]:
    chosen = [f"--set-json={name}={json.dumps(value)}" for name, value in values.items()]
    command = [program("helm"), "template", "phalanx", str(CHART), "--namespace", namespace, *chosen, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def rendered(namespace: str = "phalanx-system", **values: Any) -> dict[tuple[str, str, str], Json]:
    """Return the objects of the chart, without the annotation that helm reads on definitions."""
    done = helm(namespace=namespace, **values)
    assert done.returncode == 0, done.stderr
    found = by_name(body for body in yaml.safe_load_all(done.stdout) if body)
    for body in (each for (kind, _, _), each in found.items() if kind == "CustomResourceDefinition"):
        annotations = body["metadata"]["annotations"]
        assert annotations.pop("helm.sh/resource-policy") == "keep", (
            "helm uninstall would delete the groups of all users"
        )
        if not annotations:
            del body["metadata"]["annotations"]
    return found


def by_name(bodies: Any) -> dict[tuple[str, str, str], Json]:
    return {(b["kind"], b["metadata"].get("namespace", ""), b["metadata"]["name"]): b for b in bodies}


def same(found: dict[tuple[str, str, str], Json], wanted: dict[tuple[str, str, str], Json]) -> None:
    assert sorted(found) == sorted(wanted)
    for name, body in wanted.items():
        assert found[name] == body, name


@pytest.mark.parametrize("overlay", VALUES)
def test_the_chart_is_what_the_overlay_is(overlay: str) -> None:
    same(rendered(createNamespace=True, **VALUES[overlay]), by_name(installed(overlay)))


@pytest.mark.parametrize("component", COMPONENTS)
def test_a_value_is_what_the_component_is(component: str, tmp_path: Path) -> None:
    """A kustomization of a user, with one more component."""
    kinds = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"}
    folder = os.path.relpath(DEPLOY, tmp_path.resolve())
    images = yaml.safe_load((DEPLOY / "kustomization.yaml").read_text())["images"]
    chosen = {"resources": [f"{folder}/base"], "components": [f"{folder}/components/{component}"], "images": images}
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump({**kinds, **chosen}))
    command = [program("kubectl"), "kustomize", str(tmp_path)]
    made = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    same(rendered(**SMALL, **COMPONENTS[component]), by_name(body for body in yaml.safe_load_all(made) if body))


def test_the_chosen_dialects_and_class_reach_the_scheduler() -> None:
    found = rendered(dialects=["kai"], provisioningRequests="check-capacity")
    scheduler = found["Deployment", "phalanx-system", "phalanx-scheduler"]["spec"]["template"]["spec"]
    assert {"--dialects=kai", "--provisioning-requests=check-capacity"} <= set(scheduler["containers"][0]["args"])


def test_values_reach_the_deployments() -> None:
    digest = "sha256:" + "0" * 64
    image = {"repository": "example.test/phalanx", "tag": "x", "digest": digest, "pullPolicy": "Always"}
    part = {"extraArgs": ["--log-level=debug"], "resources": {"limits": {"memory": "4Gi"}}}
    found = rendered("elsewhere", image=image, scheduler=part)
    deployment = found["Deployment", "elsewhere", "phalanx-scheduler"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["image"] == f"example.test/phalanx@{digest}"
    assert container["args"][-1] == "--log-level=debug" and "--lease-namespace=elsewhere" in container["args"]
    assert container["resources"] == part["resources"]
    assert not any("phalanx-system" in json.dumps(body) for body in found.values())
    assert "PrometheusRule" in {kind for kind, _, _ in rendered(monitoring=True)}


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"customResource": True}, "customResource"),
        ({"highAvailability": "yes"}, "highAvailability"),
        ({"image": {"repository": "p", "pullPolicy": "Sometimes"}}, "pullPolicy"),
        ({"image": {"repository": "p", "pullPolicy": "Always", "digest": "latest"}}, "digest"),
        ({"scheduler": {"extraArgs": ["rm"]}}, "extraArgs"),
        ({"dialects": ["yunikorn"]}, "dialects"),
        ({"provisioningRequests": "soon"}, "provisioningRequests"),
    ],
)
def test_wrong_values_are_refused_by_name(values: Json, named: str) -> None:
    done = helm(**values)
    assert done.returncode != 0 and named in done.stderr


def test_the_schema_knows_every_value_and_the_chart_every_file() -> None:
    """Without helm, too."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert set(values) == set(schema["properties"]) - {"global"}
    assert set(values["image"]) == set(schema["properties"]["image"]["properties"])
    for part in ("scheduler", "controllers"):
        assert set(values[part]) == set(schema["definitions"]["part"]["properties"])
    for name in ("base", "components", "monitoring"):
        assert (CHART / "files" / name).resolve() == (DEPLOY / name).resolve()
    image = yaml.safe_load((DEPLOY / "kustomization.yaml").read_text())["images"][0]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert values["image"]["tag"] == image["newTag"] == chart["appVersion"]
