"""One whole platform for the session: embedded stores, gateway, pool manager, real instances."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.folders import short_folder
from support.journeys import Caller
from support.platform import Platform, running_platform


@pytest.fixture(scope="session")
def platform() -> Iterator[Platform]:
    """A ready platform that the session's tests share; each deploys functions of its own names."""
    with short_folder() as folder, running_platform(folder / "data") as running:
        yield running


@pytest.fixture(scope="session")
def caller(platform: Platform) -> Iterator[Caller]:
    """A client of it with the admin key."""
    with Caller.of(platform) as caller:
        yield caller
