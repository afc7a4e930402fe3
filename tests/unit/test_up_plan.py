"""What the supervisor tells its children, and what it keeps from them."""

import json
from pathlib import Path

import pytest

from samovar.errors import ConfigError
from samovar.settings import Secret
from samovar_gateway.settings import GatewaySettings
from samovar_pool.settings import PoolSettings
from samovar_up import plan
from samovar_up.settings import UpSettings


def test_children_see_no_setting_in_their_environment_but_the_file() -> None:
    given = {"PATH": "/bin", "SAMOVAR_S3_SECRET_KEY": "hush", "SAMOVAR_URL": "x"}
    assert plan.child_environ(given, Path("/d/settings.json")) == {
        "PATH": "/bin",
        "SAMOVAR_CONFIG": "/d/settings.json",
        "PYTHONUNBUFFERED": "1",
    }


def test_what_is_given_for_the_children_is_passed_on_and_the_last_word_wins(tmp_path: Path) -> None:
    file = tmp_path / "given.json"
    file.write_text(json.dumps({"min_blanks": 3, "max_blanks": 9, "nobody_knows": 1}))
    flags = {"config": str(file), "min_blanks": "5", "cache_bytes": None, "ready_timeout_s": "9"}
    found = plan.passed_on(flags, {"SAMOVAR_MAX_BLANKS": "7", "SAMOVAR_ELSE": "x"}, (GatewaySettings, PoolSettings))
    assert found == {"min_blanks": "5", "max_blanks": "7"}


def test_a_damaged_settings_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "broken.json").write_text("[1]")
    with pytest.raises(ConfigError, match=r"broken\.json"):
        plan.passed_on({"config": str(tmp_path / "broken.json")}, {}, (PoolSettings,))


def test_the_childrens_settings_are_plain_json_with_secrets_revealed() -> None:
    settings = UpSettings(data_dir=Path("/d"), redis_url=Secret("redis://:pw@h/0"), s3_secret_key=Secret("s"))
    found = json.loads(json.dumps(plan.child_settings(settings, "sv_key")))
    assert (found["data_dir"], found["redis_url"], found["s3_secret_key"]) == ("/d", "redis://:pw@h/0", "s")
    assert found["admin_key"] == "sv_key"


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:1"),
        ("0.0.0.0", "http://127.0.0.1:1"),
        ("::", "http://[::1]:1"),
        ("::1", "http://[::1]:1"),
        ("box", "http://box:1"),
    ],
)
def test_the_address_people_are_told_can_be_reached(host: str, url: str) -> None:
    assert plan.url_of(UpSettings(host=host, port=1)) == url


def test_secrets_are_written_for_the_owner_alone(tmp_path: Path) -> None:
    plan.write_secret_file(tmp_path / "x.json", {"a": 1})
    assert (tmp_path / "x.json").stat().st_mode & 0o777 == 0o600
    assert json.loads((tmp_path / "x.json").read_text()) == {"a": 1}


@pytest.mark.parametrize(
    ("given", "cap_s", "longest_s"),
    [
        ({}, 0.0, 3600.0),
        ({}, 30.0, 30.0),
        ({"max_timeout_s": "120"}, 0.0, 120.0),
        ({"max_timeout_s": 120}, 300.0, 300.0),
    ],
)
def test_a_child_may_take_as_long_to_end_as_its_longest_call(
    given: dict[str, object], cap_s: float, longest_s: float
) -> None:
    """Nothing the supervisor waits for is shorter than a deadline that a call may have, but by the operator's cap."""
    settle_s = GatewaySettings().drain_settle_s
    assert longest_s + settle_s < plan.longest_stop_s(given, cap_s) < longest_s + settle_s + 30
