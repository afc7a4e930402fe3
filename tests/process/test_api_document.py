"""The platform's own OpenAPI document, and many requests made from it: no 5xx, no status that it does not name."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis as redis_sync
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from litestar import Litestar

from samovar_gateway import metrics
from samovar_gateway.admin.router import Admin
from samovar_gateway.api_document import BODIES, BODILESS, OPEN, QUERIES, api_document, handlers_of
from samovar_gateway.health import livez, readyz
from samovar_gateway.jobs import router as jobs
from samovar_storage.objects import ObjectStore
from support.folders import short_folder
from support.gateway import ADMIN_KEY, Gateway, running_gateway
from support.stores import stores_for_a_test
from support.waiting import wait_until

with warnings.catch_warnings():  # its own dependencies' business
    warnings.simplefilter("ignore")
    import schemathesis
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi.checks import (
        content_type_conformance,
        response_schema_conformance,
        status_code_conformance,
    )

pytestmark = pytest.mark.process

AUTHORISED = {"authorization": f"Bearer {ADMIN_KEY}"}
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
POSITIVE, NEGATIVE = schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE
NUM_EXAMPLES = 10


@pytest.fixture(scope="module")
def gateway(valkey: Any, seaweed: Any) -> Iterator[Gateway]:
    stores = stores_for_a_test(valkey, seaweed, 8)
    with redis_sync.Redis.from_url(stores.redis_url) as redis:
        redis.flushdb()
    with short_folder() as folder:
        store = ObjectStore.from_settings(stores.settings(folder))
        store.ensure_bucket()
        with running_gateway(stores, store, folder) as running:
            running.log = folder / "gateway.log"  # type: ignore[attr-defined]
            running.start_instance(running.deploy("echo").ref, 4)
            wait_until(lambda: running.metric("samovar_ready_instances") == 1)
            yield running
        store.close()


def test_every_route_says_what_it_reads() -> None:
    routes = [livez, readyz, metrics.metrics_route, api_document, *Admin.handlers, *jobs.HANDLERS]
    handlers = dict(
        (handler.handler_name, handler) for _, handler in handlers_of(Litestar(routes, openapi_config=None))
    )
    posts = {name for name, handler in handlers.items() if handler.http_methods & {"POST", "PUT"}}
    assert posts == BODIES.keys() | set(BODILESS)
    assert handlers.keys() >= QUERIES.keys() | set(OPEN)


def test_requests_made_from_the_document_get_answers_that_are_in_it(gateway: Gateway) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = gateway.client.get("/openapi.json").json()
        schema = schemathesis.openapi.from_dict(found)
        schema.config.update(base_url=gateway.url)
        operations: list[Any] = [result.ok() for result in schema.get_all_operations()]  # type: ignore[union-attr]
        asked: Counter[str] = Counter()
        broken = [problem for operation in operations for problem in answers_to(operation, asked)]
    assert broken == [], "\n\n".join(broken)
    assert len(asked) == len(operations) and sum(asked.values()) > 10 * len(operations)
    log = Path(gateway.log).read_text()  # type: ignore[attr-defined]
    assert "Traceback" not in log, log[-5000:]


def answers_to(operation: Any, asked: Counter[str]) -> list[str]:
    """Return what is wrong with the answers to requests made for one operation, sound ones and others."""
    problems: list[str] = []
    for mode in POSITIVE, NEGATIVE:
        try:
            strategy = operation.as_strategy(generation_mode=mode)

            @settings(
                max_examples=NUM_EXAMPLES,
                phases=[Phase.generate],
                deadline=None,
                database=None,
                derandomize=True,
                suppress_health_check=[*HealthCheck],
            )
            @given(case=strategy)
            def check(case: Any) -> None:
                if case.path_parameters and "name" in case.path_parameters and operation.method.upper() != "DELETE":
                    case.path_parameters["name"] = "echo"
                if case.query and "follow" in case.query:
                    case.query["follow"] = "0"
                case.headers = {**sane(case.headers or {}), **AUTHORISED}
                response = case.call()
                asked[operation.label] += 1
                case.validate_response(response, checks=CHECKS)

            check()
        except Unsatisfiable:
            assert mode is NEGATIVE, "an operation that takes nothing cannot be asked wrongly"
        except (AssertionError, BaseExceptionGroup) as error:
            problems.append(f"{operation.label}: {error}")
    return problems


def sane(headers: Any) -> dict[str, Any]:
    """Return the headers without a deadline that nobody could meet: 503 and 504 are right then."""
    try:
        is_short = 0 < float(headers.get("Samovar-Timeout-Ms", 0)) < 1000
    except (TypeError, ValueError):
        is_short = False
    return {name: value for name, value in headers.items() if not (is_short and name == "Samovar-Timeout-Ms")}
