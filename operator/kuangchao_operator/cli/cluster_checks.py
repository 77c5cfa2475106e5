"""What jobs need of a cluster, each as one question to the API server."""

from collections.abc import Callable

from kuangchao_contracts.api import ParallelPlanObject, ResourceDescriptorObject, ResourcePool, TrainingJob
from kuangchao_contracts.names import GROUP
from kuangchao_operator.cli.checks import Check, Verdict
from kuangchao_operator.cli.cluster import Cluster, NotFoundError

INSTALL = "helm upgrade --install kuangchao charts/kuangchao -n {} --create-namespace"
POOL = "kubectl apply -f examples/pool.yaml"


def crds(cluster: Cluster, _release: str) -> Check:
    """The four kinds are established."""
    kinds = (TrainingJob, ParallelPlanObject, ResourcePool, ResourceDescriptorObject)
    missing = [f"{kind.plural}.{GROUP}" for kind in kinds if not _established(cluster, f"{kind.plural}.{GROUP}")]
    if missing:
        return Check(
            name="CRDs",
            verdict=Verdict.MISSING,
            found=f"{', '.join(missing)} not established",
            mend="kubectl apply --server-side -f crds/",
        )
    return Check(name="CRDs", verdict=Verdict.OK, found=f"{len(kinds)} established")


def _established(cluster: Cluster, name: str) -> bool:
    try:
        crd = cluster.request("GET", f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}")
    except NotFoundError:
        return False
    conditions = crd.get("status", {}).get("conditions", ())
    return any(c["type"] == "Established" and c["status"] == "True" for c in conditions)


def operator(cluster: Cluster, release: str) -> Check:
    """The operator's deployment has a ready replica."""
    return _deployment(cluster, release, "kuangchao-operator")


def namespace(cluster: Cluster, release: str) -> Check:
    """The operator looks for jobs in the namespace that commands use."""
    try:
        found = cluster.request("GET", f"/apis/apps/v1/namespaces/{release}/deployments/kuangchao-operator")
    except NotFoundError:
        return Check(name="namespace", verdict=Verdict.SKIP, found="no operator, so no job namespaces")
    containers = found["spec"]["template"]["spec"]["containers"]
    env = {item["name"]: item.get("value", "") for container in containers for item in container.get("env", ())}
    served = [name for name in env.get("KUANGCHAO_JOB_NAMESPACES", "").split(",") if name]
    if cluster.namespace == release or (served and cluster.namespace not in served):
        return Check(
            name="namespace",
            verdict=Verdict.WARN,
            found=f"jobs may not run in {cluster.namespace}; they may in {', '.join(served) or 'every other'}",
            mend="use -n with one of these, or add the namespace to the chart's value jobNamespaces",
        )
    return Check(name="namespace", verdict=Verdict.OK, found=f"jobs may run in {cluster.namespace}")


def governance(cluster: Cluster, release: str) -> Check:
    """Audit queries are answered."""
    return _deployment(cluster, release, "kuangchao-governance")


def _deployment(cluster: Cluster, release: str, name: str) -> Check:
    label = name.removeprefix("kuangchao-")
    try:
        found = cluster.request("GET", f"/apis/apps/v1/namespaces/{release}/deployments/{name}")
    except NotFoundError:
        return Check(
            name=label,
            verdict=Verdict.MISSING,
            found=f"no deployment {name} in {release}",
            mend=INSTALL.format(release),
        )
    ready = found.get("status", {}).get("readyReplicas", 0)
    if ready:
        return Check(name=label, verdict=Verdict.OK, found=f"{ready} ready in {release}")
    return Check(
        name=label,
        verdict=Verdict.MISSING,
        found="no replica is ready",
        mend=f"kubectl -n {release} describe deployment {name}; kubectl -n {release} logs deployment/{name}",
    )


def descriptors(cluster: Cluster, release: str) -> Check:
    """Every node has published what it has."""
    nodes = {item["metadata"]["name"] for item in cluster.items("/api/v1/nodes")}
    without = sorted(nodes - {item.spec.node for item in cluster.descriptors()})
    if not without:
        return Check(name="node descriptors", verdict=Verdict.OK, found=f"{len(nodes)} nodes described")
    verdict = Verdict.MISSING if len(without) == len(nodes) else Verdict.WARN
    shown = ", ".join(without[:5]) + (f" and {len(without) - 5} more" if len(without) > 5 else "")
    return Check(
        name="node descriptors",
        verdict=verdict,
        found=f"none for {shown}",
        mend=f"kubectl -n {release} rollout status daemonset/kuangchao-node-agent",
    )


def pools(cluster: Cluster, _release: str) -> Check:
    """There is a pool with devices."""
    found = cluster.pools()
    if not found:
        return Check(name="pools", verdict=Verdict.MISSING, found="no ResourcePool", mend=POOL)
    totals = {pool.metadata.name: pool.status.total if pool.status else 0 for pool in found}
    text = ", ".join(f"{name} with {total} devices" for name, total in sorted(totals.items()))
    if any(totals.values()):
        return Check(name="pools", verdict=Verdict.OK, found=text)
    return Check(
        name="pools",
        verdict=Verdict.MISSING,
        found=text,
        mend="kubectl describe resourcepool; compare spec.nodeSelector with `kubectl get nodes --show-labels`",
    )


def storage(cluster: Cluster, _release: str) -> Check:
    """Claims that jobs of this namespace name for checkpoints exist; otherwise a class to make one with."""
    claims = f"/api/v1/namespaces/{cluster.namespace}/persistentvolumeclaims"
    bound = {item["metadata"]["name"] for item in cluster.items(claims)}
    wanted = {
        job.spec.checkpoint.storage.claim_name for job in cluster.jobs(cluster.namespace) if job.spec.checkpoint.storage
    }
    if wanted - bound:
        return Check(
            name="storage",
            verdict=Verdict.MISSING,
            found=f"no claim {', '.join(sorted(wanted - bound))} in {cluster.namespace}",
            mend=f"kubectl -n {cluster.namespace} apply -f <PersistentVolumeClaim with accessModes ReadWriteMany>",
        )
    if bound:
        return Check(
            name="storage", verdict=Verdict.OK, found=f"claims in {cluster.namespace}: {', '.join(sorted(bound))}"
        )
    classes = cluster.items("/apis/storage.k8s.io/v1/storageclasses")
    names = ", ".join(sorted(item["metadata"]["name"] for item in classes))
    return Check(
        name="storage",
        verdict=Verdict.WARN,
        found=f"no claims in {cluster.namespace}; storage classes: {names or 'none'}; jobs run without checkpoints",
        mend=f"kubectl -n {cluster.namespace} apply -f <PersistentVolumeClaim with accessModes ReadWriteMany>",
    )


CHECKS: tuple[tuple[str, Callable[[Cluster, str], Check]], ...] = (
    ("CRDs", crds),
    ("operator", operator),
    ("namespace", namespace),
    ("governance", governance),
    ("node descriptors", descriptors),
    ("pools", pools),
    ("storage", storage),
)
