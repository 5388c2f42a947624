"""What `docker compose up` would do, read from its files; no container engine is needed, and none runs here."""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from compose_spec import PyOptions

from deploy.grafana.build import FOLDER, path_of
from deploy.grafana.panels import SOURCE_UID
from ledger.cli.serving import STOP_SECONDS
from ledger.config import Settings, is_loopback
from ledger.storage.engine import normalised
from presence import missing

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
OURS = [name for name, service in SERVICES.items() if "build" in service]
ONCE = [
    name
    for service in SERVICES.values()
    for name, how in service.get("depends_on", {}).items()
    if how["condition"].endswith("successfully")
]
PINNED = re.compile(r"[a-z0-9/-]+:v?\d+\.\d+(\.\d+)?(-[a-z0-9.-]+)?")


def interpolated(text: str) -> str:
    """A value as compose reads it where no variable is set."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)


def mounts() -> Iterator[tuple[str, str, str]]:
    for name, service in SERVICES.items():
        for volume in service.get("volumes", []):
            source, target, *_ = volume.split(":")
            yield name, source, target


def inside(service: str, path: str) -> Path:
    """The file of the checkout that a container finds at a path."""
    for name, source, target in mounts():
        if name == service and source.startswith("./") and (path == target or path.startswith(target + "/")):
            return ROOT / source / path.removeprefix(target).lstrip("/")
    raise AssertionError(f"nothing of the checkout is mounted at {path} in {service}")


def test_the_file_is_of_the_compose_specification() -> None:
    found = PyOptions(apply_merge=True).from_yaml((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
    assert {*found.service_names()} == {*SERVICES}
    assert {*(found.volumes or {})} == {*COMPOSE["volumes"]}


@pytest.mark.parametrize("name", SERVICES)
def test_every_image_is_pinned(name: str) -> None:
    assert PINNED.fullmatch(SERVICES[name]["image"]), SERVICES[name]["image"]


def test_images_of_the_dockerfile_are_pinned_and_it_ends_as_an_ordinary_user() -> None:
    images = re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)
    assert images
    assert all(PINNED.fullmatch(image) for image in images), images
    users = re.findall(r"^USER (\S+)", DOCKERFILE, re.MULTILINE)
    assert users
    assert users[-1].isdigit()
    assert users[-1] != "0"


@pytest.mark.parametrize("name", SERVICES)
def test_every_port_is_published_on_loopback_only(name: str) -> None:
    for port in SERVICES[name].get("ports", []):
        host, _published, _inside = port.rsplit(":", 2)
        assert is_loopback(host), port
    assert "network_mode" not in SERVICES[name]


@pytest.mark.parametrize("name", [name for name in SERVICES if name not in ONCE])
def test_every_lasting_service_has_a_health_check_and_comes_back(name: str) -> None:
    service = SERVICES[name]
    assert service["healthcheck"]["test"][0] == "CMD"
    assert service["restart"] == "unless-stopped"


def test_whoever_is_waited_for_exists_and_can_be_waited_for() -> None:
    for service in SERVICES.values():
        for name, how in service.get("depends_on", {}).items():
            assert how["condition"] in ("service_healthy", "service_completed_successfully")
            assert (how["condition"] == "service_healthy") == ("healthcheck" in SERVICES[name])


def test_everything_mounted_exists() -> None:
    for _, source, _ in mounts():
        assert (ROOT / source).is_dir() if source.startswith("./") else source in COMPOSE["volumes"], source


def test_the_schema_is_made_by_command_before_the_service_starts() -> None:
    assert SERVICES["migrate"]["command"] == ["db", "upgrade"]
    assert SERVICES["ledger"]["command"] == ["serve"]
    assert SERVICES["ledger"]["depends_on"]["migrate"] == {"condition": "service_completed_successfully"}
    assert SERVICES["migrate"]["environment"] == SERVICES["ledger"]["environment"]


@pytest.mark.parametrize("name", OURS)
def test_the_environment_names_real_settings_with_values_that_can_be(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = SERVICES[name]["environment"]
    known = {f"LEDGER_{setting.upper()}" for setting in Settings.model_fields}
    assert environment.keys() <= known
    for variable, value in environment.items():
        monkeypatch.setenv(variable, interpolated(value))
    settings = Settings()
    # To be reached by its neighbours it has to be told in words that something else protects the network.
    assert settings.unprotected_network
    assert not is_loopback(settings.host)
    url, postgres = normalised(settings.database_url), SERVICES["postgres"]["environment"]
    assert (url.drivername, url.host) == ("postgresql+psycopg", "postgres")
    assert url.username == postgres["POSTGRES_USER"]
    assert url.database == postgres["POSTGRES_DB"]
    assert url.password == interpolated(postgres["POSTGRES_PASSWORD"])
    monkeypatch.delenv("LEDGER_UNPROTECTED_NETWORK")
    with pytest.raises(ValueError, match="no access control"):
        Settings()


def test_ports_and_times_are_those_of_the_service() -> None:
    port = Settings.model_fields["port"].default
    assert SERVICES["ledger"]["ports"] == [f"127.0.0.1:{port}:{port}"]
    assert f"127.0.0.1:{port}/readyz" in " ".join(SERVICES["ledger"]["healthcheck"]["test"])
    assert f"EXPOSE {port}" in DOCKERFILE
    assert int(SERVICES["ledger"]["stop_grace_period"].removesuffix("s")) > STOP_SECONDS


def test_prometheus_scrapes_the_neighbour_and_otherwise_as_the_plain_file_says() -> None:
    (option,) = (option for option in SERVICES["prometheus"]["command"] if option.startswith("--config.file="))
    mounted = inside("prometheus", option.partition("=")[2])
    composed, plain = (yaml.safe_load(path.read_text(encoding="utf-8")) for path in (mounted, mounted.with_name("prometheus.yml")))
    targets = [config.pop("static_configs") for config in composed["scrape_configs"]]
    local = [config.pop("static_configs") for config in plain["scrape_configs"]]
    assert composed == plain
    port = Settings.model_fields["port"].default
    assert targets == [[{"targets": [f"ledger:{port}"]}]]
    assert local == [[{"targets": [f"127.0.0.1:{port}"]}]]


def test_grafana_finds_its_source_and_its_dashboards() -> None:
    sources = yaml.safe_load((ROOT / "deploy/grafana/provisioning/datasources/prometheus.yml").read_text(encoding="utf-8"))["datasources"]
    (source,) = sources
    host, port = source["url"].removeprefix("http://").split(":")
    assert f"127.0.0.1:{port}:{port}" in SERVICES[host]["ports"]
    assert (source["uid"], source["type"], source["jsonData"]["timeInterval"]) == (SOURCE_UID, "prometheus", "15s")
    provisioning = inside("grafana", "/etc/grafana/provisioning")
    assert {folder.name for folder in provisioning.iterdir()} == {"datasources", "dashboards"}
    providers = yaml.safe_load((provisioning / "dashboards" / "training-ledger.yml").read_text(encoding="utf-8"))["providers"]
    (folder,) = {inside("grafana", provider["options"]["path"]) for provider in providers}
    assert folder == FOLDER
    assert all(provider["allowUiUpdates"] is False for provider in providers)
    assert inside("grafana", SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]) == path_of("fleet")


@pytest.mark.parametrize("name", ["prometheus.yml", "compose.yml"])
def test_prometheus_reads_the_configurations_and_their_rules(name: str) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        missing("promtool")
    configured = ROOT / "deploy/prometheus" / name
    assert [*configured.parent.glob(*yaml.safe_load(configured.read_text(encoding="utf-8"))["rule_files"])]
    ended = subprocess.run([promtool, "check", "config", str(configured)], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "rules found" in ended.stdout


def copied() -> list[str]:
    """What the image's first stage takes from the checkout."""
    lines = re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE)
    return [source for line in lines for source in line.split()]


def test_the_image_gets_what_it_copies_and_nothing_else() -> None:
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").split("\n")
    assert "*" in ignored
    assert {line.removeprefix("!") for line in ignored if line.startswith("!")} == set(copied())
    assert all((ROOT / name).exists() for name in copied())


def test_what_the_image_copies_is_enough_to_build_the_package(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for name in copied():
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, source / name)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(source)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert list(tmp_path.glob("training_ledger-*.whl"))
