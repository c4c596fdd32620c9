"""Makes the fixtures of this folder known to pytest."""

from conftest_kube import run

__all__ = ["run"]
