"""Names, labels and annotations: every child's name is a pure function of the job and two counters."""

import hashlib

GROUP = "kuangchao.io"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
FIELD_MANAGER = "kuangchao-operator"
CONTROLLER = f"{GROUP}/operator"
"""Value of spec.managedBy that means us; any other value means that we stand aside."""
FINALIZER = f"{GROUP}/cleanup"

LABEL_JOB = f"{GROUP}/job"
LABEL_JOB_UID = f"{GROUP}/job-uid"
LABEL_ATTEMPT = f"{GROUP}/attempt"
LABEL_INCARNATION = f"{GROUP}/incarnation"
LABEL_POD_INDEX = f"{GROUP}/pod-index"
LABEL_POOL = f"{GROUP}/pool"
LABEL_NODE = f"{GROUP}/node"
LABEL_MANAGED_BY = "app.kubernetes.io/managed-by"
LABEL_TOKEN = f"{GROUP}/token"
ANNOTATION_TOKEN_REVISION = f"{GROUP}/token-rev"
LABEL_DELIVERY = f"{GROUP}/token-delivery"
"""How a pod gets its tokens: by exchange; without the label by its Secret."""
BY_EXCHANGE = "exchange"
REVOCATIONS = "kuangchao-revocations"
"""ConfigMap of the release namespace: which tokens, keys and jobs are taken back."""

POLICY = "kuangchao-policy"
"""ConfigMap of the release namespace: the policy document, mounted into the issuer."""

MAX_JOB_NAME = 45
"""Longest job name whose longest child name, <job>-<uid 6>-<incarnation 4>-<index 5>, is a DNS label still (63)."""
MAX_INCARNATION = 9_999
MAX_PODS = 16_384


def uid_hash(uid: str) -> str:
    """Six hex digits that tell a job from an earlier one of the same name."""
    return hashlib.sha256(uid.encode()).hexdigest()[:6]


def service_name(job: str, uid: str) -> str:
    """The headless Service of a job."""
    return f"{job}-{uid_hash(uid)}"


def secret_name(job: str, uid: str, incarnation: int) -> str:
    """The Secret that holds the tokens of one incarnation, one key per pod."""
    return f"{job}-{uid_hash(uid)}-{incarnation}-tokens"[-253:]


def pod_name(job: str, uid: str, incarnation: int, index: int) -> str:
    """The pod with this index in this incarnation."""
    return f"{job}-{uid_hash(uid)}-{incarnation}-{index}"


def pod_hostname(incarnation: int, index: int) -> str:
    """spec.hostname of a pod; with the Service as subdomain it gives a stable DNS name."""
    return f"w-{incarnation}-{index}"


def plan_name(job: str, uid: str, plan_hash: str) -> str:
    """The ParallelPlan object made for a job at admission."""
    return f"{job}-{uid_hash(uid)}-{plan_hash[:8]}"


def checkpoint_directory(job: str, uid: str) -> str:
    """Default directory of a job below its checkpoint volume; unique per job object."""
    return f"{job}-{uid_hash(uid)}"


def job_resource(namespace: str, job: str) -> str:
    """The gate's resource string of a job."""
    return f"{namespace}/jobs/{job}"
