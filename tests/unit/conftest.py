"""Makes the fixtures of this folder known to pytest."""

from support.http_client import run

__all__ = ["run"]
