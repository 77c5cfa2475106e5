"""Settings of the operator process, from the environment, and their one mapping onto kopf's."""

from pathlib import Path
from typing import Annotated, Any, Literal, Self

import kopf
from pydantic import Field, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from kuangchao_contracts import names


class Settings(BaseSettings):
    """One variable each, KUANGCHAO_<NAME>."""

    model_config = SettingsConfigDict(env_prefix="KUANGCHAO_", frozen=True, extra="ignore")

    namespace: Annotated[str, Field(min_length=1)]
    """The release's namespace; TrainingJobs in it are refused."""
    cluster_name: Annotated[str, Field(min_length=1, max_length=200)] = "default"
    """Part of the token issuer's name."""
    gate_url: Annotated[str, Field(pattern="^https://")]
    """Where workers reach the gate."""
    worker_image: Annotated[str, Field(min_length=1)]
    """Image of training pods where a job names none."""
    issuer_socket: Path
    audit_dir: Path
    audit_hot_days: Annotated[int, Field(ge=1, le=365)] = 7
    """Older audit days become Parquet."""
    audit_retention_days: Annotated[int, Field(ge=2, le=36_500)] = 90
    """Older audit days leave a tombstone only."""
    audit_low_disk_percent: Annotated[float, Field(ge=0, le=100)] = 10.0
    """With less free space successful reads are not recorded."""
    audit_full_disk_percent: Annotated[float, Field(ge=0, le=100)] = 5.0
    """With less free space control calls are refused."""
    audit_stream: Literal["off", "stdout"] = "off"
    """Where each stored record is copied to as a line of JSON."""
    audit_tls_dir: Path | None = None
    """tls.crt, tls.key and ca.crt of the API server's audit intake; unset: no intake."""
    job_namespaces: Annotated[tuple[str, ...], NoDecode] = ()
    """Namespaces that may hold jobs, comma-separated; empty: all."""
    operation_logs: Literal["volume", "off"] = "volume"
    """Whether ranks keep their operation logs with their checkpoints, or heads and counts only."""
    lease_grace_seconds: Annotated[int, Field(ge=0, le=86_400)] = 3_600
    """How long ranks go on with leases that nobody renews; 0: not at all."""
    exchange_above_pods: Annotated[int, Field(ge=0, le=names.MAX_PODS)] = 64
    """Jobs with more pods than this get no token Secrets: each pod exchanges an account token of its own."""
    calibration: Path | None = None
    """Calibration of the planner's memory model; unset: the one of this release."""
    host: str = "0.0.0.0"  # noqa: S104 - a pod's address is not known beforehand
    gate_port: Annotated[int, Field(ge=0, le=65_535)] = 8443
    metrics_port: Annotated[int, Field(ge=0, le=65_535)] = 9090
    audit_port: Annotated[int, Field(ge=0, le=65_535)] = 9444
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"

    @field_validator("job_namespaces", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value

    @field_validator("audit_tls_dir", "calibration", mode="before")
    @classmethod
    def _unset(cls, value: Any) -> Any:
        return value or None

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.audit_retention_days <= self.audit_hot_days:
            raise ValueError(
                f"audit_retention_days={self.audit_retention_days} must exceed {self.audit_hot_days} hot days"
            )
        if self.audit_full_disk_percent > self.audit_low_disk_percent:
            raise ValueError("audit_full_disk_percent must not exceed audit_low_disk_percent")
        return self

    @property
    def issuer(self) -> str:
        """Name of the token issuer."""
        return f"kuangchao/{self.cluster_name}"


def kopf_settings(settings: Settings) -> kopf.OperatorSettings:
    """How kopf watches."""
    mapped = kopf.OperatorSettings()
    mapped.peering.standalone = True
    # a watch that has gone silent behind a load balancer is closed by us, not waited for
    mapped.watching.server_timeout = 300
    mapped.watching.client_timeout = 310
    mapped.watching.connect_timeout = 30
    mapped.watching.inactivity_timeout = 70
    mapped.watching.reconnect_backoff = 0.5
    mapped.watching.chunk_size = 500
    # 64,000 pods of others must not even reach us
    mapped.watching.label_selectors["", "v1", "pods"] = names.LABEL_JOB_UID
    mapped.networking.request_timeout = 30
    mapped.networking.connect_timeout = 5
    # fewer workers than objects would deadlock the first listing
    mapped.queueing.worker_limit = None
    # not ours: kopf takes its finalizer off every object that none of its own handlers holds
    mapped.persistence.finalizer = f"{names.GROUP}/kopf"
    mapped.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=names.GROUP, v1=False)
    mapped.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix=names.GROUP, v1=False)
    mapped.posting.enabled = False
    mapped.posting.loggers = False
    mapped.posting.reporting_component = names.FIELD_MANAGER
    mapped.execution.default_backoff = 15
    # namespaces are given or all of them; kinds are ours and there before us
    mapped.scanning.disabled = bool(settings.job_namespaces)
    return mapped
