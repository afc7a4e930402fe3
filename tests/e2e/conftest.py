"""One whole platform for the session: embedded stores, gateway, pool manager, real instances."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.folders import short_folder
from support.journeys import Caller, Run
from support.platform import Platform, environment, running_platform


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


@pytest.fixture
def run(platform: Platform, tmp_path: Path) -> Run:
    """Run `samovar ARGUMENTS` in an empty folder; the platform is found through its data folder alone."""

    def samovar_(*arguments: str, ok: bool = True) -> subprocess.CompletedProcess[str]:
        environ = environment(SAMOVAR_DATA_DIR=str(platform.data_dir), XDG_CACHE_HOME=str(tmp_path / "cache"))
        done = subprocess.run(
            [sys.executable, "-m", "samovar.cli", *arguments],
            cwd=tmp_path,
            env=environ,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=120,
            check=False,
        )
        assert not ok or done.returncode == 0, done.stderr
        return done

    return samovar_
