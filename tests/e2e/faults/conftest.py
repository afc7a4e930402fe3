"""One platform with two gateways that all faults share, a load of another function's calls that runs all the while, and
a table of what each fault did to them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.clock_step import SteppedClock
from support.faults import Bystander, Row, loaded, table
from support.folders import short_folder
from support.journeys import Caller
from support.platform import Platform, end, environment, start, wait_ready

ROWS = pytest.StashKey[list[Row]]()


@pytest.fixture(scope="session")
def clock(tmp_path_factory: pytest.TempPathFactory) -> SteppedClock:
    """The wall clock of the shared platform's processes."""
    return SteppedClock(tmp_path_factory.mktemp("clock") / "site")


@pytest.fixture(scope="session")
def broken(clock: SteppedClock) -> Iterator[Platform]:
    """The platform that is broken in every way, with two gateways."""
    with short_folder() as folder:
        platform = start(folder / "data", "--gateways", "2", environ=environment(**clock.environment))
        try:
            yield wait_ready(platform)
        finally:
            end(platform)


@pytest.fixture(scope="session")
def rows(request: pytest.FixtureRequest) -> list[Row]:
    """What every fault did, printed at the end."""
    return request.config.stash.setdefault(ROWS, [])


@pytest.fixture(scope="module")
def victim(broken: Platform) -> Iterator[Caller]:
    """A caller of the platform."""
    with Caller.of(broken) as caller:
        yield caller


@pytest.fixture(scope="module")
def bystander(broken: Platform, victim: Caller, rows: list[Row]) -> Iterator[Bystander]:
    """The other function, called all the while."""
    with loaded(broken, victim, rows) as found:
        yield found


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print what every fault did, for people and for docs/reliability.md."""
    rows = config.stash.get(ROWS, [])
    if rows:
        terminalreporter.section("faults, under the load of another function")
    for line in table(rows) if rows else []:
        terminalreporter.write_line(line)
