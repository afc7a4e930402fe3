"""Fixtures of the process tests: one zygote, and one pool manager, for all of them; both take seconds to start."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from samovar_storage.embedded import EmbeddedSeaweed, EmbeddedValkey
from support.instance_driver import Zygote
from support.pool import Pool, running_pool
from support.stores import stores_for_a_test

if TYPE_CHECKING:
    from openai import OpenAI

    from support.openai_gateway import Platform

POOL_DATABASE = 15  # beyond those handed to tests, which are flushed in between


@pytest.fixture(scope="session")
def shared_pool(
    valkey: EmbeddedValkey, seaweed: EmbeddedSeaweed, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pool]:
    stores = stores_for_a_test(valkey, seaweed, 0)
    url = valkey.redis_url.rsplit("/", 1)[0] + f"/{POOL_DATABASE}"
    with running_pool(replace(stores, redis_url=url), tmp_path_factory.mktemp("pool")) as pool:
        yield pool


@pytest.fixture
def pool(shared_pool: Pool) -> Pool:
    """The pool, running, with nothing deployed and nothing demanded."""
    shared_pool.reset()
    if not shared_pool.is_running():
        shared_pool.start()
    return shared_pool


@pytest.fixture(scope="session")
def session_zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    """One zygote for the session."""
    with Zygote(tmp_path_factory.mktemp("zygote")) as zygote:
        yield zygote


@pytest.fixture(scope="module")
def client(platform: Platform) -> Iterator[OpenAI]:
    """OpenAI's own client of what the module calls its `platform`."""
    with platform.client() as client:
        yield client


@pytest.fixture
def zygote(session_zygote: Zygote) -> Iterator[Zygote]:
    """The session's zygote; every instance forked from it is gone after the test."""
    yield session_zygote
    session_zygote.clean()
