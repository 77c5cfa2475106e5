"""Settings of the agent from its environment. Nothing secret is ever in there."""

import ipaddress
import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from kuangchao_contracts.errors import InvalidInputError

_PATHS: Final = {
    "token_directory": "KUANGCHAO_TOKEN_DIR",
    "trust_directory": "KUANGCHAO_TRUST_DIR",
    "checkpoints": "KUANGCHAO_CHECKPOINTS",
    "termination_log": "KUANGCHAO_TERMINATION_LOG",
    "run_directory": "KUANGCHAO_RUN_DIR",
    "account_token": "KUANGCHAO_ACCOUNT_TOKEN",
    "shared_forge": "KUANGCHAO_SHARED_FORGE",
}


class Oplog(StrEnum):
    """Where ranks keep the lines of their operation logs; heads and counts are always kept."""

    VOLUME = "volume"
    """With the checkpoints; a job without a checkpoint volume keeps none."""
    ALWAYS = "always"
    """The same, and without a volume in the run directory."""
    OFF = "off"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """See docs/design.md 6. `grace_seconds`: from SIGTERM to the kubelet's SIGKILL."""

    gate_url: str
    pod: str
    pod_index: int
    incarnation: int
    host: str
    token_directory: Path = Path("/var/run/kuangchao/token")
    trust_directory: Path = Path("/var/run/kuangchao/trust")
    checkpoints: Path = Path("/checkpoints")
    termination_log: Path = Path("/dev/termination-log")
    run_directory: Path = Path("/tmp/kuangchao")  # noqa: S108 - an emptyDir of the pod
    account_token: Path | None = None
    """File of the account token that is exchanged for the bundle; None: the bundle is mounted."""
    shared_forge: Path | None = None
    """Socket of the process that all agents of a machine fork their ranks from; None: this pod has one of its own."""
    pod_uid: str = ""
    grace_seconds: float = 30.0
    heartbeat_seconds: float = 1.0
    contact_seconds: float = 600.0
    """How long an agent with nothing left to run waits for a control plane that does not answer."""
    oplog: Oplog = Oplog.VOLUME
    lease_grace_seconds: float = 3_600.0
    """How long ranks go on with leases that nobody renews: an outage of the control plane must not stop training."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> "Settings":
        """Settings of this pod. Raises InvalidInputError naming the variable."""
        settings = cls(
            gate_url=_gate_url(_required(environment, "KUANGCHAO_GATE_URL")),
            pod=_required(environment, "KUANGCHAO_POD"),
            pod_index=_number(environment, "KUANGCHAO_POD_INDEX"),
            incarnation=_number(environment, "KUANGCHAO_INCARNATION"),
            host=environment.get("KUANGCHAO_HOST") or socket.gethostname(),
            pod_uid=environment.get("KUANGCHAO_POD_UID", ""),
        )
        if environment.get("KUANGCHAO_GRACE_SECONDS"):
            settings = replace(settings, grace_seconds=float(_number(environment, "KUANGCHAO_GRACE_SECONDS")))
        if environment.get("KUANGCHAO_LEASE_GRACE_SECONDS"):
            grace = float(_number(environment, "KUANGCHAO_LEASE_GRACE_SECONDS"))
            settings = replace(settings, lease_grace_seconds=grace)
        if environment.get("KUANGCHAO_OPLOG"):
            settings = replace(settings, oplog=_oplog(environment["KUANGCHAO_OPLOG"]))
        paths = {field: Path(environment[name]) for field, name in _PATHS.items() if environment.get(name)}
        return replace(settings, **paths)  # type: ignore[arg-type]  # every field in _PATHS is a Path


def _required(environment: Mapping[str, str], name: str) -> str:
    value = environment.get(name, "")
    if not value:
        raise InvalidInputError(name, value, "must be set in the environment of the agent")
    return value


def _number(environment: Mapping[str, str], name: str) -> int:
    text = _required(environment, name)
    if not text.isdecimal():
        raise InvalidInputError(name, text, "must be a whole number", 0)
    return int(text)


def _oplog(text: str) -> Oplog:
    try:
        return Oplog(text)
    except ValueError:
        words = f"must be one of {', '.join(Oplog)}"
        raise InvalidInputError("KUANGCHAO_OPLOG", text, words, Oplog.VOLUME.value) from None


def _gate_url(url: str) -> str:
    """Tokens travel with every call, so plain HTTP is only for a gate on this machine."""
    parts = urlsplit(url)
    if parts.scheme == "https" and parts.hostname:
        return url.rstrip("/")
    if parts.scheme == "http" and parts.hostname and _is_loopback(parts.hostname):
        return url.rstrip("/")
    raise InvalidInputError(
        "KUANGCHAO_GATE_URL",
        url,
        "must be https, or http on a loopback address",
        f"https://{parts.netloc}" if parts.netloc else None,
    )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
