"""Settings come from the environment and reach kopf through one function."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from kuangchao_contracts import names
from kuangchao_operator.app.settings import Settings, kopf_settings

LEAST = {
    "KUANGCHAO_NAMESPACE": "kuangchao-system",
    "KUANGCHAO_GATE_URL": "https://gate:8443",
    "KUANGCHAO_WORKER_IMAGE": "worker:1",
    "KUANGCHAO_ISSUER_SOCKET": "/run/issuer/issuer.sock",
    "KUANGCHAO_AUDIT_DIR": "/var/lib/audit",
}


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name, value in LEAST.items():
        monkeypatch.setenv(name, value)
    return monkeypatch


def load() -> Settings:
    return Settings()


def test_the_least_environment_is_enough(environment: pytest.MonkeyPatch) -> None:
    settings = load()
    assert settings.issuer == "kuangchao/default"
    assert settings.job_namespaces == ()
    assert (settings.gate_port, settings.metrics_port) == (8443, 9090)


@pytest.mark.parametrize("name", sorted(LEAST))
def test_what_is_needed_is_asked_for_by_name(environment: pytest.MonkeyPatch, name: str) -> None:
    environment.delenv(name)
    with pytest.raises(ValidationError, match=name.removeprefix("KUANGCHAO_").lower()):
        load()


def test_namespaces_are_a_comma_separated_list(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("KUANGCHAO_JOB_NAMESPACES", "team-a, team-b")
    assert load().job_namespaces == ("team-a", "team-b")


def test_workers_never_get_a_plain_text_gate(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("KUANGCHAO_GATE_URL", "http://gate:8443")
    with pytest.raises(ValidationError):
        load()


def test_an_empty_tls_directory_means_no_intake(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("KUANGCHAO_AUDIT_TLS_DIR", "")
    assert load().audit_tls_dir is None


def test_kopf_watches_as_we_want_it(environment: pytest.MonkeyPatch) -> None:
    mapped = kopf_settings(load())
    assert mapped.peering.standalone
    assert (mapped.watching.server_timeout, mapped.watching.client_timeout) == (300, 310)
    assert (mapped.watching.connect_timeout, mapped.watching.inactivity_timeout) == (30, 70)
    assert mapped.watching.chunk_size == 500
    assert mapped.queueing.worker_limit is None
    assert not mapped.posting.loggers
    assert not mapped.posting.enabled
    assert mapped.persistence.finalizer != names.FINALIZER, "kopf would take ours off"
    assert not mapped.scanning.disabled


def test_pods_of_others_are_filtered_by_the_server(environment: pytest.MonkeyPatch) -> None:
    mapped = kopf_settings(load())
    assert list(mapped.watching.label_selectors.values()) == ["kuangchao.io/job-uid"]


def test_given_namespaces_need_no_scanning_of_the_cluster(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("KUANGCHAO_JOB_NAMESPACES", "team-a")
    assert kopf_settings(load()).scanning.disabled


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"HOT_DAYS": "30", "RETENTION_DAYS": "30"}, "must exceed"),
        ({"LOW_DISK_PERCENT": "5", "FULL_DISK_PERCENT": "6"}, "must not exceed"),
        ({"STREAM": "stderr"}, "stdout"),
    ],
)
def test_audit_settings_that_contradict_each_other(
    environment: pytest.MonkeyPatch, values: dict[str, str], why: str
) -> None:
    for name, value in values.items():
        environment.setenv(f"KUANGCHAO_AUDIT_{name}", value)
    with pytest.raises(ValidationError, match=why):
        load()


def test_no_calibration_means_the_one_of_this_release(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("KUANGCHAO_CALIBRATION", "")
    assert load().calibration is None
    environment.setenv("KUANGCHAO_CALIBRATION", "/etc/kuangchao/planner/calibration.json")
    assert load().calibration == Path("/etc/kuangchao/planner/calibration.json")
