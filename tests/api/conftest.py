"""Fixtures of the API tests: a Writer driven without HTTP, with custom resources or without; webhooks to call."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.api_world import World
from support.crontabs import DEFINITIONS, definition
from support.webhook_endpoint import Endpoint


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


@pytest.fixture
def crons(world: World) -> World:
    world.create(DEFINITIONS, definition())
    return world


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Endpoint]:
    made = Endpoint()
    yield made
    made.server.shutdown()
    made.server.server_close()
