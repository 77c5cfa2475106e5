"""`kuangchao doctor`: what is missing on this machine and in the cluster, each with the command that mends it.

Looks, never mends.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from kuangchao_contracts.errors import KuangchaoError
from kuangchao_operator.cli.options import RELEASE_NAMESPACE, Context, Namespace, ReleaseNamespace
from kuangchao_operator.cli.output import DONE, FAILED, Format, Output, emit_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kuangchao_operator.cli.checks import Check


def doctor(
    local: Annotated[bool, typer.Option("--local", help="Look at this machine only.")] = False,
    namespace: Namespace = None,
    context: Context = None,
    release_namespace: ReleaseNamespace = RELEASE_NAMESPACE,
    output: Output = Format.TEXT,
) -> None:
    """Say what is missing on this machine or in the cluster.

    Each finding names the command that mends it. Exits 1 when something is missing; warnings do not count.

    JSON: {"ok": bool, "checks": [{name, verdict: ok|warn|missing|skip, found, mend}]}
    """
    from kuangchao_operator.cli.checks import Verdict
    from kuangchao_operator.cli.machine_checks import machine_checks

    checks = [*machine_checks(), *(() if local else cluster_checks(context, namespace, release_namespace))]
    healthy = not any(check.verdict is Verdict.MISSING for check in checks)
    if output is Format.JSON:
        emit_json({"ok": healthy, "checks": [check.wire() for check in checks]})
    else:
        for check in checks:
            print(f"{check.verdict:<8} {check.name}: {check.found}")
            if check.mend:
                print(f"         mend: {check.mend}")
    raise typer.Exit(DONE if healthy else FAILED)


def cluster_checks(context: str | None, namespace: str | None, release_namespace: str) -> Iterator[Check]:
    """Checks of the cluster; a single skipped one when none is configured."""
    from kuangchao_operator.cli.checks import Check, Verdict

    try:
        from kuangchao_operator.cli.cluster import Cluster
        from kuangchao_operator.cli.cluster_checks import CHECKS

        cluster = Cluster(context, namespace)
        version = cluster.request("GET", "/version")["gitVersion"]
    except KuangchaoError as error:
        yield Check(
            name="cluster",
            verdict=Verdict.SKIP,
            found=str(error),
            mend="export KUBECONFIG=<file>; in a checkout `make cluster-up` starts a cluster",
        )
        return
    except ModuleNotFoundError as error:
        yield Check(
            name="cluster",
            verdict=Verdict.SKIP,
            found=f"{error.name} is not installed, so no cluster can be reached",
            mend="pip install 'kuangchao[cli]'",
        )
        return
    yield Check(name="cluster", verdict=Verdict.OK, found=f"API server {version} answers")
    for name, check in CHECKS:
        yield _guarded(name, partial(check, cluster, release_namespace))


def _guarded(name: str, check: Callable[[], Check]) -> Check:
    """A check that may itself be refused: that is a finding, not the end."""
    from kuangchao_operator.cli.checks import Check, Verdict

    try:
        return check()
    except KuangchaoError as error:
        return Check(name=name, verdict=Verdict.SKIP, found=f"cannot look: {error}")
