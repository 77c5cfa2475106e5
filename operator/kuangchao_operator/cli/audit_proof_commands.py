"""`kuangchao audit verify`, `prove` and `check-proof`: is the record whole, and is this record in it. Read only.

Offline they need the store's directory. Against a cluster governance reads the store, while keys and anchor are read
here from the API server, so that the record is held against something that it cannot change itself.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kuangchao_contracts.errors import InvalidInputError, UnavailableError
from kuangchao_operator.cli.options import RELEASE_NAMESPACE, Context, ReleaseNamespace
from kuangchao_operator.cli.output import FAILED, Format, Output, emit_json

if TYPE_CHECKING:
    from kuangchao_contracts.auditproof import ProveReply, ProveRequest, VerifyReport
    from kuangchao_contracts.notes import AuditKeys
    from kuangchao_operator.cli.cluster import Cluster
    from kuangchao_operator.cli.portforward import PodPort

VERIFY_PATH, PROVE_PATH = "/v1/audit/verify", "/v1/audit/prove"
TRUST, TRUST_KEY = "kuangchao-trust", "audit-keys.json"
ANCHOR, ANCHOR_KEY, BROKEN = "kuangchao-audit-head", "checkpoint", "broken."
MAX_ANCHORS = 64
Directory = Annotated[
    Path | None,
    typer.Option(exists=True, file_okay=False, help="A store, or a copy of one; without it: the cluster's."),
]
KeyFile = Annotated[
    Path | None, typer.Option("--audit-key", exists=True, dir_okay=False, help="Public keys: audit-keys.json.")
]


def verify(
    directory: Directory = None,
    anchor: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="Checkpoints noted elsewhere: notes or log lines.")
    ] = None,
    audit_key: KeyFile = None,
    context: Context = None,
    release_namespace: ReleaseNamespace = RELEASE_NAMESPACE,
    output: Output = Format.TEXT,
) -> None:
    """Check every record, every day's checkpoints and that the record continues what was noted elsewhere.

    JSON: {ok, files, records, checkpoints, first, last, head, unsigned, problems[], anchors, signaturesChecked}
    """
    keys, anchors = read_keys(audit_key), read_anchors(anchor)
    if directory is None:
        report, keys, anchors = _verify_cluster(context, release_namespace, keys, anchors)
    else:
        from kuangchao_operator.audit.verify import verify as verify_store

        report = verify_store(directory, keys, anchors)
        if report.ok and not report.files:
            raise InvalidInputError("--directory", str(directory), "holds no day of an audit store", "RUN/audit")
    if output is Format.JSON:
        emit_json(report.wire() | {"anchors": len(anchors), "signaturesChecked": keys is not None})
    else:
        show(report, len(anchors))
    if keys is None:
        typer.echo("signatures were not checked; give --audit-key", err=True)
    if not anchors:
        typer.echo("nothing shows that the whole store was not set back to an older state; give --anchor", err=True)
    if not report.ok:
        raise typer.Exit(FAILED)


def prove(
    seq: Annotated[int, typer.Argument(min=1, help="Number of a record.", show_default=False)],
    directory: Directory = None,
    context: Context = None,
    release_namespace: ReleaseNamespace = RELEASE_NAMESPACE,
) -> None:
    """Write a proof that a record is in the audit record; `check-proof` checks it with public keys alone.

    JSON: {kind, seq, index, body, proof[], checkpoint}
    """
    from kuangchao_contracts.auditproof import ProveRequest

    request = ProveRequest(seq=seq)
    if directory is not None:
        from kuangchao_operator.audit.prove import prove as prove_record

        reply = prove_record(directory, request)
    else:
        from kuangchao_operator.cli.audit_commands import governance
        from kuangchao_operator.cli.cluster import Cluster

        with governance(Cluster(context), release_namespace) as port:
            reply = proven(port, request)
    if reply.inclusion is None:
        raise UnavailableError("governance answered without a proof")
    emit_json(reply.inclusion.wire())


def check_proof(
    file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="What `audit prove` wrote.")],
    audit_key: Annotated[
        Path, typer.Option("--audit-key", exists=True, dir_okay=False, help="Public keys: audit-keys.json.")
    ],
    output: Output = Format.TEXT,
) -> None:
    """Check a proof. Needs the public keys and nothing else.

    JSON: {seq, previous, record, checkpoint: {day, size, root, time}}
    """
    from kuangchao_contracts.auditproof import InclusionProof

    keys = read_keys(audit_key)
    assert keys is not None, "the option is required"
    stored, checkpoint = _parsed("FILE", file, InclusionProof).check(keys)
    if output is Format.JSON:
        emit_json(stored.wire() | {"checkpoint": checkpoint.wire()})
        return
    signed = datetime.fromtimestamp(checkpoint.time, UTC).isoformat()
    print(f"record {stored.seq} is one of the {checkpoint.size} of {checkpoint.day}, signed {signed}")
    print(json.dumps(stored.record.wire(), indent=2))


def show(report: VerifyReport, anchors: int) -> None:
    """The report for people: what was checked, then what is wrong."""
    print(
        f"{report.records} records of {report.files} days (to record {report.last}), {report.checkpoints} checkpoints, "
        f"{anchors} anchors"
    )
    if report.unsigned:
        print(f"the newest {report.unsigned} records wait for a checkpoint")
    for problem in report.problems:
        print(f"PROBLEM {problem}")
    print("whole" if report.ok else f"NOT WHOLE: {len(report.problems)} problems")


def read_keys(path: Path | None) -> AuditKeys | None:
    """Keys from a file. Raises InvalidInputError."""
    from kuangchao_contracts.notes import AuditKeys

    return None if path is None else _parsed("--audit-key", path, AuditKeys)


def read_anchors(path: Path | None) -> tuple[str, ...]:
    """Checkpoints from a file: notes one after the other, or log lines with a member `checkpoint`.

    Raises InvalidInputError.
    """
    from kuangchao_contracts.notes import BadNoteError, parse_all

    if path is None:
        return ()
    text = path.read_text("utf-8", errors="replace")
    try:
        found = [*parse_all("".join(_noted(text)) if text.lstrip().startswith("{") else text)]
    except (BadNoteError, ValueError, KeyError, TypeError) as error:
        raise InvalidInputError("--anchor", str(path), f"holds no checkpoints: {error}") from None
    if not found:
        raise InvalidInputError("--anchor", str(path), "holds no checkpoint")
    return tuple(found)


def verified(port: PodPort, keys: AuditKeys, anchors: tuple[str, ...]) -> VerifyReport:
    """Have governance check the store part by part, then check here that it continues the anchors."""
    from kuangchao_contracts import notes
    from kuangchao_contracts.auditproof import MAX_PROBLEMS, ProveRequest, VerifyReport, VerifyRequest
    from kuangchao_contracts.errors import KuangchaoError

    request = VerifyRequest(keys=keys, anchors=anchors)
    parts = [_part(port, request)]
    while (position := parts[-1].position) is not None:
        parts.append(_part(port, request.replace(position=position)))
    problems = [problem for part in parts for problem in part.problems]
    for anchor in anchors:
        try:
            extension = proven(port, ProveRequest(anchor=anchor)).extension
            if extension is None:
                problems.append("anchor: the answer has no proof that the record continues it")
            else:
                extension.check(notes.check(anchor, keys), keys)
        except KuangchaoError as error:
            problems.append(f"anchor: {error}")
    last = parts[-1]
    return VerifyReport(
        ok=all(part.ok for part in parts) and not problems,
        files=sum(part.files for part in parts),
        records=sum(part.records for part in parts),
        checkpoints=sum(part.checkpoints for part in parts),
        first=parts[0].first,
        last=last.last,
        head=last.head,
        unsigned=last.unsigned,
        problems=tuple(dict.fromkeys(problems))[:MAX_PROBLEMS],
    )


def proven(port: PodPort, request: ProveRequest) -> ProveReply:
    """Proofs from governance."""
    from kuangchao_contracts.auditproof import ProveReply

    return ProveReply.from_reply(port.get(PROVE_PATH, {"request": request.canonical().decode()}))


def _part(port: PodPort, request: Any) -> VerifyReport:
    from kuangchao_contracts.auditproof import VerifyReport

    return VerifyReport.from_reply(port.get(VERIFY_PATH, {"request": request.canonical().decode()}))


def _verify_cluster(
    context: str | None, namespace: str, keys: AuditKeys | None, anchors: tuple[str, ...]
) -> tuple[VerifyReport, AuditKeys, tuple[str, ...]]:
    from kuangchao_contracts.notes import AuditKeys
    from kuangchao_operator.cli.audit_commands import governance
    from kuangchao_operator.cli.cluster import Cluster

    cluster = Cluster(context)
    if keys is None:
        keys = AuditKeys.model_validate_json(_published(cluster, namespace, TRUST, TRUST_KEY))
    # read before the store is, so that it can only have grown since
    anchors = anchors or _noted_outside(cluster, namespace)
    with governance(cluster, namespace) as port:
        return verified(port, keys, anchors), keys, anchors


def _noted_outside(cluster: Cluster, namespace: str) -> tuple[str, ...]:
    """The newest checkpoint, and those that the operator found not to be continued. Raises UnavailableError."""
    newest = _published(cluster, namespace, ANCHOR, ANCHOR_KEY)
    broken = [note for key, note in sorted(_data(cluster, namespace, ANCHOR).items()) if key.startswith(BROKEN)]
    return (newest, *broken[: MAX_ANCHORS - 1])


def _published(cluster: Cluster, namespace: str, name: str, key: str) -> str:
    """A value of a ConfigMap, read from the API server. Raises UnavailableError while it is not there."""
    value = _data(cluster, namespace, name).get(key)
    if not value:
        raise UnavailableError(f"ConfigMap {namespace}/{name} has no {key} yet")
    return value


def _data(cluster: Cluster, namespace: str, name: str) -> dict[str, str]:
    found = cluster.request("GET", f"/api/v1/namespaces/{namespace}/configmaps/{name}")
    return dict(found.get("data") or {})


def _noted(text: str) -> list[str]:
    return [json.loads(line)["checkpoint"] for line in text.splitlines() if line.strip()]


def _parsed(field: str, path: Path, model: Any) -> Any:
    from pydantic import ValidationError

    try:
        return model.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"])) or "content"
        raise InvalidInputError(field, str(path), f"{where}: {first['msg']}") from None
