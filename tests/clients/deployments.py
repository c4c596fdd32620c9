"""What the tests of this folder create."""

from __future__ import annotations

from typing import Any


def deployment(name: str = "web", replicas: int = 2) -> dict[str, Any]:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {"containers": [{"name": "c", "image": "nginx"}], "terminationGracePeriodSeconds": 1},
            },
        },
    }
