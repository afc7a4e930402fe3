"""The files in deploy/: everything about them that can be checked without a network or a container engine."""

import importlib.util
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from samovar.settings import PREFIX, Settings, describe, read
from samovar_gateway.settings import GatewaySettings
from samovar_jobs.settings import JobsSettings
from samovar_pool.settings import PoolSettings

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
MODULES: dict[str, type[Settings]] = {
    "samovar_gateway": GatewaySettings,
    "samovar_jobs": JobsSettings,
    "samovar_pool": PoolSettings,
}
# what Compose itself allows in a service, of the Compose Specification
SERVICE_KEYS = {
    "build", "command", "depends_on", "environment", "healthcheck", "image", "init", "ports", "restart",
    "stop_grace_period", "volumes",
}  # fmt: skip


def variables(*processes: type[Settings]) -> set[str]:
    return {variable for process in processes for variable, _, _ in describe(process)} | {PREFIX + "CONFIG"}


# Containerfile ----------------------------------------------------------------------------------------------------


def instructions() -> list[tuple[str, str]]:
    text = re.sub(r"\\\n\s*", " ", (DEPLOY / "Containerfile").read_text())
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(line.split(None, 1)[0], line.split(None, 1)[1]) for line in lines]


def test_containerfile_has_only_known_instructions_and_starts_from_something() -> None:
    found = [name for name, _ in instructions()]
    assert found[0] == "FROM"
    assert set(found) <= {"FROM", "RUN", "COPY", "ARG", "ENV", "USER", "WORKDIR", "VOLUME", "EXPOSE", "CMD"}


def test_every_path_the_containerfile_copies_exists() -> None:
    for name, rest in instructions():
        if name == "COPY" and not rest.startswith("--from="):
            for source in rest.split()[:-1]:
                assert (ROOT / source).exists(), source


def test_the_image_does_not_run_as_root() -> None:
    users = [rest for name, rest in instructions() if name == "USER"]
    assert users and users[-1] not in ("root", "0")


def test_the_containerfile_installs_an_extra_that_exists_and_runs_a_module_of_ours() -> None:
    extras = [extra for name, rest in instructions() if name == "RUN" for extra in re.findall(r"\.\[(\w+)\]", rest)]
    pyproject = (ROOT / "pyproject.toml").read_text()
    assert extras and all(re.search(rf"^{extra} = \[", pyproject, re.MULTILINE) for extra in extras)
    command = json.loads(next(rest for name, rest in instructions() if name == "CMD"))
    check_command(command)


def test_the_containerfile_sets_only_known_variables() -> None:
    text = (DEPLOY / "Containerfile").read_text()
    assert set(re.findall(r"SAMOVAR_\w+", text)) <= variables(*MODULES.values())


def check_command(command: list[str]) -> str:
    """Return the module of `python -m MODULE`, which can be run."""
    assert Path(command[0]).name == "python" and command[1] == "-m", command
    assert command[2] in MODULES
    assert importlib.util.find_spec(f"{command[2]}.__main__") is not None
    return command[2]


# compose ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return loaded


def test_compose_is_of_the_right_shape(compose: dict[str, Any]) -> None:
    assert {key for key in compose if not key.startswith("x-")} == {"name", "services", "volumes"}
    for name, service in compose["services"].items():
        assert set(service) <= SERVICE_KEYS, name
        assert service.get("image"), name
        for other, condition in service.get("depends_on", {}).items():
            assert "healthcheck" in compose["services"][other]
            assert condition == {"condition": "service_healthy"}
        for volume in service.get("volumes", ()):
            assert volume.split(":")[0] in compose["volumes"]
        build = service.get("build")
        assert build is None or (DEPLOY / build["context"] / build["dockerfile"]).is_file()


def test_compose_runs_the_platform_with_settings_each_process_knows(compose: dict[str, Any]) -> None:
    ran = set()
    for name in ("gateway", "jobs", "pool"):
        service = compose["services"][name]
        module = check_command(service["command"])
        ran.add(module)
        assert set(service["environment"]) <= variables(MODULES[module]), name
    assert ran == set(MODULES)


def test_compose_has_no_secret_in_it_and_names_those_it_needs(compose: dict[str, Any]) -> None:
    readme = (DEPLOY / "README.md").read_text()
    for variable in set(re.findall(r"\$\{(\w+)", (DEPLOY / "compose.yaml").read_text())):
        assert f"{variable}=" in readme, variable
    for service in compose["services"].values():
        for key, value in service.get("environment", {}).items():
            if re.search("PASSWORD|SECRET|_KEY", key):
                assert str(value).startswith("${"), key


def test_compose_publishes_on_loopback_only(compose: dict[str, Any]) -> None:
    ports = [port for service in compose["services"].values() for port in service.get("ports", ())]
    assert ports and all(port.startswith("127.0.0.1:") for port in ports)


# systemd ----------------------------------------------------------------------------------------------------------


def unit_lines(path: Path) -> Iterator[tuple[str, str, str]]:
    section = ""
    for line in path.read_text().splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif line and not line.startswith("#"):
            key, _, value = line.partition("=")
            yield section, key, value


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_units_run_our_modules_as_a_user_of_their_own(path: Path) -> None:
    service = {key: value for section, key, value in unit_lines(path) if section == "Service"}
    module = check_command(service["ExecStart"].split())
    assert path.stem == module.replace("_", "-")
    assert service["User"] not in ("", "root")
    assert service["NoNewPrivileges"] == "yes" and service["ProtectSystem"] == "strict"
    assert service["RestartPreventExitStatus"] == "10"
    assert set(re.findall(r"SAMOVAR_\w+", path.read_text())) <= variables(MODULES[module])


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_systemd_accepts_the_units(path: Path, tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        assert all(section in ("Unit", "Service", "Install") and key for section, key, _ in unit_lines(path))
        return
    here = tmp_path / path.name
    # the interpreter of the installation is not there: another that is stands in
    text = path.read_text().replace("/opt/samovar/bin/python", shutil.which("python3") or "/bin/sh")
    here.write_text(text.replace("User=samovar", "User=daemon").replace("Group=samovar", "Group=daemon"))
    done = subprocess.run([analyze, "verify", "--man=no", str(here)], capture_output=True, text=True, check=False)
    # systemd below 254 does not know the key and says that it goes on without it
    ours = [line for line in done.stderr.splitlines() if path.name in line and "DelegateSubgroup" not in line]
    assert done.returncode == 0 and not ours, done.stderr


def test_the_example_settings_are_settings() -> None:
    path = DEPLOY / "systemd" / "settings.example.json"
    known = {field for process in MODULES.values() for field in process.__struct_fields__}
    assert set(json.loads(path.read_text())) <= known
    for process in MODULES.values():
        read(process, {"config": str(path)}, environ={})
