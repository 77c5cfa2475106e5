"""spec.podOverrides: which parts of a pod a user may override, and how they are merged. Pure.

Everything is denied that would leave the sandbox, reach another identity, or undo what fencing relies on.
"""

import re
from collections.abc import Mapping
from copy import deepcopy
from typing import Any, Final

from kuangchao_contracts.errors import InvalidInputError
from kuangchao_contracts.names import GROUP

OUR_VOLUMES: Final = frozenset(
    {"kuangchao-token", "kuangchao-account", "kuangchao-trust", "kuangchao-checkpoints", "tmp", "shm"}
)
OUR_ENV_PREFIX: Final = "KUANGCHAO_"
OUR_CONTAINER: Final = "train"
OUR_PATHS: Final = ("/var/run/kuangchao", "/checkpoints", "/tmp", "/dev/shm")  # noqa: S108 - paths in the pod
SPEC_FIELDS: Final = frozenset(
    {
        "containers",
        "dnsConfig",
        "dnsPolicy",
        "hostAliases",
        "imagePullSecrets",
        "initContainers",
        "preemptionPolicy",
        "priorityClassName",
        "runtimeClassName",
        "securityContext",
        "terminationGracePeriodSeconds",
        "tolerations",
        "volumes",
    }
)
"""Fields of a pod's spec that may be overridden. What is not here is denied, also what Kubernetes adds one day; where a
pod runs (affinity, nodeSelector, schedulerName ...) is the queue's decision."""
CONTAINER_FIELDS: Final = frozenset(
    {
        "args",
        "command",
        "env",
        "envFrom",
        "image",
        "imagePullPolicy",
        "livenessProbe",
        "name",
        "ports",
        "readinessProbe",
        "resources",
        "restartPolicy",
        "securityContext",
        "startupProbe",
        "volumeMounts",
        "workingDir",
    }
)
OUR_CONTAINER_FIELDS: Final = CONTAINER_FIELDS - {
    "args",
    "command",
    "livenessProbe",
    "resources",
    "restartPolicy",
    "startupProbe",
}
"""The training container runs the agent: its command and its restarts are ours. Its resources are the pool's business,
and what it needs beside devices has a typed place in spec.template.resources."""
VOLUME_KINDS: Final = frozenset({"configMap", "emptyDir", "persistentVolumeClaim", "secret", "downwardAPI", "csi"})
_TOKEN_SECRET = re.compile(r"-[0-9a-f]{6}-\d+-tokens(-\d+)?$")
HARDENING: Final[dict[str, Any]] = {
    "runAsNonRoot": True,
    "privileged": False,
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
}
"""securityContext members that may be repeated but not weakened."""
HARMLESS_CONTEXT: Final = frozenset({"supplementalGroups", "fsGroupChangePolicy", "runAsUser", "runAsGroup"})
KEYED: Final = frozenset(
    {"containers", "initContainers", "volumes", "env", "volumeMounts", "imagePullSecrets", "hostAliases"}
)
LIST_KEYS: Final = {"volumeMounts": "mountPath", "hostAliases": "ip"}


def check(overrides: Mapping[str, Any]) -> None:
    """Raise InvalidInputError, naming the path, for anything that may not be overridden."""
    _only(overrides, {"metadata", "spec"}, "podOverrides")
    _metadata(_mapping(overrides.get("metadata", {}), "podOverrides.metadata"))
    spec = _mapping(overrides.get("spec", {}), "podOverrides.spec")
    _only(spec, SPEC_FIELDS, "podOverrides.spec")
    _security(spec.get("securityContext", {}), "podOverrides.spec.securityContext")
    for place, volume in enumerate(_list(spec.get("volumes", []), "podOverrides.spec.volumes")):
        check_volume(volume, f"podOverrides.spec.volumes[{place}]")
    for kind in ("containers", "initContainers"):
        for place, container in enumerate(_list(spec.get(kind, []), f"podOverrides.spec.{kind}")):
            _container(container, f"podOverrides.spec.{kind}[{place}]", main=kind == "containers")


def check_volume(volume: Any, path: str) -> None:
    """Raise InvalidInputError for a volume that bears one of our names or reaches the node."""
    fields = _mapping(volume, path)
    if fields.get("name") in OUR_VOLUMES:
        raise InvalidInputError(f"{path}.name", fields["name"], "is a volume of the operator")
    _only(fields, VOLUME_KINDS | {"name"}, path)
    check_secret(_mapping(fields.get("secret", {}), f"{path}.secret").get("secretName"), f"{path}.secret.secretName")


def check_secret(name: Any, path: str) -> None:
    """Raise InvalidInputError for a Secret that holds tokens of a job: a pod gets its own, and by us alone."""
    if _TOKEN_SECRET.search(str(name)):
        raise InvalidInputError(path, name, "is a token Secret of the operator")


def check_env(env: Mapping[str, Any], path: str) -> None:
    """Raise InvalidInputError for an environment variable that is ours or that would hold a token."""
    if str(env.get("name")).startswith(OUR_ENV_PREFIX):
        raise InvalidInputError(f"{path}.name", env["name"], f"names with {OUR_ENV_PREFIX} belong to the operator")
    source = _mapping(env.get("valueFrom") or {}, f"{path}.valueFrom")
    reference = _mapping(source.get("secretKeyRef", {}), f"{path}.valueFrom.secretKeyRef")
    check_secret(reference.get("name"), f"{path}.valueFrom.secretKeyRef.name")


def check_mount(mount_path: Any, path: str) -> None:
    """Raise InvalidInputError for a mount that would cover one of ours."""
    text = "/" + "/".join(p for p in str(mount_path).split("/") if p)
    if any(
        text == ours or text.startswith(f"{ours}/") or ours.startswith(f"{text.rstrip('/')}/") for ours in OUR_PATHS
    ):
        raise InvalidInputError(path, mount_path, "covers a mount of the operator")


def merge(base: Any, patch: Any, key: str = "") -> Any:
    """Strategic merge: objects by member (null removes), named lists by their key, all other values replaced."""
    if isinstance(base, dict) and isinstance(patch, dict):
        merged = {k: deepcopy(v) for k, v in base.items() if not (k in patch and patch[k] is None)}
        for name, value in patch.items():
            if value is not None:
                merged[name] = merge(merged[name], value, name) if name in merged else deepcopy(value)
        return merged
    if key in KEYED and isinstance(base, list) and isinstance(patch, list):
        return _merge_list(base, patch, LIST_KEYS.get(key, "name"))
    if key == "tolerations" and isinstance(base, list) and isinstance(patch, list):
        return deepcopy([*base, *patch])
    return deepcopy(patch)


def _merge_list(base: list[Any], patch: list[Any], key: str) -> list[Any]:
    merged = deepcopy(base)
    places = {entry.get(key): place for place, entry in enumerate(merged)}
    for entry in patch:
        if entry.get(key) in places:
            merged[places[entry[key]]] = merge(merged[places[entry[key]]], entry)
        else:
            merged.append(deepcopy(entry))
    return merged


def _metadata(metadata: Mapping[str, Any]) -> None:
    _only(metadata, {"labels", "annotations"}, "podOverrides.metadata")
    for kind in ("labels", "annotations"):
        path = f"podOverrides.metadata.{kind}"
        for name in _mapping(metadata.get(kind, {}), path):
            check_label(name, str(metadata[kind][name]), path)


def check_label(name: str, value: str, path: str) -> None:
    """Raise InvalidInputError for a label or annotation in a domain that is ours or Kubernetes' own."""
    domain = name.partition("/")[0] if "/" in name else ""
    if domain == GROUP or domain.endswith(f".{GROUP}") or name == "app.kubernetes.io/managed-by":
        raise InvalidInputError(
            f"{path}.{name}", value, f"is a name of the operator's own; leave out {domain or name}/..."
        )


def _container(container: Any, path: str, *, main: bool) -> None:
    fields = _mapping(container, path)
    ours = main and fields.get("name") == OUR_CONTAINER
    if not isinstance(fields.get("name"), str):
        raise InvalidInputError(f"{path}.name", fields.get("name"), "is needed to merge", OUR_CONTAINER)
    _only(fields, OUR_CONTAINER_FIELDS if ours else CONTAINER_FIELDS, path)
    _security(fields.get("securityContext", {}), f"{path}.securityContext")
    for place, env in enumerate(_list(fields.get("env", []), f"{path}.env")):
        check_env(_mapping(env, f"{path}.env[{place}]"), f"{path}.env[{place}]")
    for place, source in enumerate(_list(fields.get("envFrom", []), f"{path}.envFrom")):
        where = f"{path}.envFrom[{place}]"
        reference = _mapping(_mapping(source, where).get("secretRef", {}), f"{where}.secretRef")
        check_secret(reference.get("name"), f"{where}.secretRef.name")
    for place, mount in enumerate(_list(fields.get("volumeMounts", []), f"{path}.volumeMounts")):
        where = f"{path}.volumeMounts[{place}]"
        if _mapping(mount, where).get("name") in OUR_VOLUMES - {"tmp", "shm", "kuangchao-checkpoints"}:
            raise InvalidInputError(f"{where}.name", mount["name"], "is a volume of the operator")
        check_mount(mount.get("mountPath"), f"{where}.mountPath")
    for place, port in enumerate(_list(fields.get("ports", []), f"{path}.ports")):
        if _mapping(port, f"{path}.ports[{place}]").get("hostPort"):
            raise InvalidInputError(
                f"{path}.ports[{place}].hostPort", port["hostPort"], "would leave the pod's network"
            )


def _security(context: Any, path: str) -> None:
    for name, value in _mapping(context, path).items():
        allowed = name in HARMLESS_CONTEXT or (name in HARDENING and value == HARDENING[name])
        if not allowed or (name in ("runAsUser", "runAsGroup") and value == 0):
            raise InvalidInputError(f"{path}.{name}", value, "would weaken the pod's sandbox", HARDENING.get(name))


def _only(fields: Mapping[str, Any], allowed: frozenset[str] | set[str], path: str) -> None:
    for name in fields:
        if name not in allowed:
            raise InvalidInputError(f"{path}.{name}", fields[name], "may not be overridden")


def _mapping(value: Any, path: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise InvalidInputError(path, value, "must be an object")
    return value


def _list(value: Any, path: str) -> list[Any]:
    if not isinstance(value, list):
        raise InvalidInputError(path, value, "must be a list")
    return value
