"""`kuangchao token revoke, restore, revocations`: writes and reads the ConfigMap of what is taken back.

With the user's own rights at the API server, so that RBAC decides who may and the trail names who did. The operator
follows it; nothing here waits for that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from kuangchao_contracts.errors import ConflictError, InvalidInputError, KuangchaoError, PermissionDeniedError
from kuangchao_operator.cli.options import RELEASE_NAMESPACE, Context, ReleaseNamespace
from kuangchao_operator.cli.output import Format, Output, emit_json, table

if TYPE_CHECKING:
    from kuangchao_operator.cli.cluster import Cluster

ROLE = "kuangchao-security"
COLUMNS = ("kind", "id", "until", "written by")
Jti = Annotated[str | None, typer.Option(help="Id of a token: its jti, which every audit record of it names.")]
Kid = Annotated[str | None, typer.Option(help="Id of a signing key: its kid. Cannot be undone.")]
JobOption = Annotated[str | None, typer.Option("--job", help="NAMESPACE/NAME of a TrainingJob.")]


def revoke(
    jti: Jti = None,
    kid: Kid = None,
    job: JobOption = None,
    context: Context = None,
    release_namespace: ReleaseNamespace = RELEASE_NAMESPACE,
    output: Output = Format.TEXT,
) -> None:
    """Take back a token, all that a key has signed, or all that a job's workers hold. In force within two seconds.

    A denied key is replaced at once and running jobs get new tokens; a revoked job is suspended until it is restored.

    JSON: {"key", "configMap"}
    """
    _write(_one(jti=jti, kid=kid, job=job), context, release_namespace, output, taken_back=True)


def restore(
    jti: Jti = None,
    job: JobOption = None,
    context: Context = None,
    release_namespace: ReleaseNamespace = RELEASE_NAMESPACE,
    output: Output = Format.TEXT,
) -> None:
    """Undo the revocation of a token or a job; a job goes on from its newest checkpoint in a new attempt.

    JSON: {"key", "configMap"}
    """
    _write(_one(jti=jti, job=job), context, release_namespace, output, taken_back=False)


def revocations(
    context: Context = None,
    release_namespace: ReleaseNamespace = RELEASE_NAMESPACE,
    output: Output = Format.TEXT,
) -> None:
    """What is taken back now, until when, and who wrote it.

    JSON: {"revocations": [{kind, id, until, by}], "malformed": [{key, why}]}
    """
    import time

    from kuangchao_operator.cli.cluster import Cluster
    from kuangchao_operator.gate.revocations import read, writers

    body = _request(Cluster(context), "GET", release_namespace)
    reading, who = read(body.get("data") or {}, time.time()), writers(body)
    until = {f"jti.{jti}": end for jti, end in reading.revocations.tokens.items()}
    found = [_entry(key, until.get(key), who.get(key, "")) for key in sorted(reading.revocations.keys())]
    if output is Format.JSON:
        malformed = [{"key": key, "why": why} for key, why in reading.malformed.items()]
        emit_json({"revocations": found, "malformed": malformed})
        return
    print(table(COLUMNS, [(e["kind"], e["id"], _time(e["until"]), e["by"]) for e in found]))
    for key, why in reading.malformed.items():
        typer.echo(f"{key} {why}", err=True)


def _entry(key: str, until: int | None, by: str) -> dict[str, Any]:
    kind, _, name = key.partition(".")
    return {"kind": kind, "id": name, "until": until, "by": by}


def _time(until: int | None) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(until, UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if until is not None else ""


def _one(**given: str | None) -> tuple[str, str]:
    """Kind and name of the one option that was given. Raises InvalidInputError."""
    from kuangchao_operator.gate.revocations import fault

    named = [(kind, name) for kind, name in given.items() if name is not None]
    if len(named) != 1:
        options = " ".join(f"--{kind}" for kind in given)
        raise InvalidInputError("options", [f"--{kind}" for kind, _ in named], "need exactly one", options)
    kind, name = named[0]
    if kind == "job":
        if name.count("/") != 1 or not all(name.split("/")):
            raise InvalidInputError("--job", name, "must be NAMESPACE/NAME")
        return kind, name
    problem = fault(kind, name)
    if problem is not None:
        raise InvalidInputError(f"--{kind}", name, problem)
    return kind, name


def _write(
    wanted: tuple[str, str], context: str | None, release_namespace: str, output: Format, *, taken_back: bool
) -> None:
    from kuangchao_contracts.names import REVOCATIONS
    from kuangchao_operator.cli.cluster import Cluster
    from kuangchao_operator.gate.revocations import key_of

    kind, name = wanted
    cluster = Cluster(context)
    key = key_of(kind, _uid(context, name) if kind == "job" else name)
    if not taken_back and key not in (_request(cluster, "GET", release_namespace).get("data") or {}):
        raise ConflictError(f"{kind} {name} is not revoked")
    _request(cluster, "PATCH", release_namespace, {"data": {key: "" if taken_back else None}})
    if output is Format.JSON:
        emit_json({"key": key, "configMap": f"{release_namespace}/{REVOCATIONS}"})
    else:
        print(f"{kind} {name} {'revoked' if taken_back else 'restored'}")


def _uid(context: str | None, job: str) -> str:
    from kuangchao_operator.cli.cluster import Cluster

    namespace, _, name = job.partition("/")
    return Cluster(context, namespace).job(name).metadata.uid


def _request(cluster: Cluster, method: str, namespace: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """One call on the ConfigMap. Raises PermissionDeniedError with the Role that lacks, NotFoundError."""
    from kuangchao_contracts.names import REVOCATIONS
    from kuangchao_operator.cli.cluster import NotFoundError

    try:
        return dict(cluster.request(method, f"/api/v1/namespaces/{namespace}/configmaps/{REVOCATIONS}", body))
    except PermissionDeniedError as error:
        raise PermissionDeniedError(f"{error}; bind the Role {ROLE} in namespace {namespace}") from None
    except NotFoundError:
        raise _missing(namespace) from None


def _missing(namespace: str) -> KuangchaoError:
    from kuangchao_contracts.names import REVOCATIONS
    from kuangchao_operator.cli.cluster import NotFoundError

    return NotFoundError(f"no ConfigMap {REVOCATIONS} in namespace {namespace}; is it --release-namespace?")
