"""Fixtures of the process tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.instance_driver import Zygote


@pytest.fixture(scope="session")
def session_zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    """One zygote for the session."""
    with Zygote(tmp_path_factory.mktemp("zygote")) as zygote:
        yield zygote


@pytest.fixture
def zygote(session_zygote: Zygote) -> Iterator[Zygote]:
    """The session's zygote; every instance forked from it is gone after the test."""
    yield session_zygote
    session_zygote.clean()
