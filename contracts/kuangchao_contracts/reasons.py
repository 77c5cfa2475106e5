"""The closed sets of condition types, phases and reasons; docs/reasons.md has a heading for each reason."""

from enum import StrEnum


class ConditionType(StrEnum):
    """Conditions of a TrainingJob, all written at the first reconcile."""

    READY = "Ready"
    RECONCILING = "Reconciling"
    STALLED = "Stalled"
    PLANNED = "Planned"
    QUOTA_RESERVED = "QuotaReserved"
    ADMITTED = "Admitted"
    PODS_READY = "PodsReady"
    RESTARTING = "Restarting"
    SUSPENDED = "Suspended"
    COMPLETE = "Complete"
    FAILED = "Failed"
    UNMANAGED = "Unmanaged"


class Phase(StrEnum):
    """`status.phase`, computed from the conditions and never an input to a decision."""

    PENDING = "Pending"
    QUEUED = "Queued"
    ADMITTED = "Admitted"
    STARTING = "Starting"
    RUNNING = "Running"
    RESTARTING = "Restarting"
    SUSPENDING = "Suspending"
    SUSPENDED = "Suspended"
    STALLED = "Stalled"
    COMPLETE = "Complete"
    FAILED = "Failed"


class Reason(StrEnum):
    """Reasons in conditions, events, metrics and docs. Kueue's words where the meaning is Kueue's."""

    # waiting
    PENDING_EVALUATION = "PendingEvaluation"
    WAITING_FOR_QUOTA = "WaitingForQuota"
    EXCEEDS_MAX_QUOTA = "ExceedsMaxQuota"
    TOPOLOGY_PLACEMENT_FAILED = "TopologyPlacementFailed"
    POOL_NOT_FOUND = "PoolNotFound"
    POOL_EMPTY = "PoolEmpty"
    POOL_IN_USE = "PoolInUse"
    NO_RESERVATION = "NoReservation"
    WAIT_FOR_START = "WaitForStart"
    WAIT_FOR_RECOVERY = "WaitForRecovery"
    # good
    PLANNED = "Planned"
    PLANNED_WITHOUT_MEMORY_CHECK = "PlannedWithoutMemoryCheck"
    REPLANNED = "Replanned"
    QUOTA_RESERVED = "QuotaReserved"
    ADMITTED = "Admitted"
    STARTED = "Started"
    RECOVERED = "Recovered"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    RESUMED = "Resumed"
    AS_EXPECTED = "AsExpected"
    # stopped by a person
    SUSPENDING = "Suspending"
    SUSPENDED = "Suspended"
    REVOKED = "Revoked"
    # refused
    INVALID_SPEC = "InvalidSpec"
    INFEASIBLE = "Infeasible"
    CONTRADICTORY_PLAN = "ContradictoryPlan"
    STORAGE_NOT_FOUND = "StorageNotFound"
    CHECKPOINT_PATH_IN_USE = "CheckpointPathInUse"
    RELEASE_NAMESPACE = "ReleaseNamespace"
    NAME_TOO_LONG = "NameTooLong"
    CHILD_CREATION_FAILED = "ChildCreationFailed"
    FORBIDDEN = "Forbidden"
    # faults
    USER_ERROR = "UserError"
    TASK_NOT_FOUND = "TaskNotFound"
    EARLY_EXIT = "EarlyExit"
    OUT_OF_MEMORY = "OutOfMemory"
    RANK_EXITED = "RankExited"
    AGENT_LOST = "AgentLost"
    POD_LOST = "PodLost"
    NODE_LOST = "NodeLost"
    EVICTED = "Evicted"
    HUNG = "Hung"
    IMAGE_PULL = "ImagePull"
    CHECKPOINT_CORRUPT = "CheckpointCorrupt"
    STORAGE = "Storage"
    RESTART_LIMIT_EXCEEDED = "RestartLimitExceeded"
    DEADLINE_EXCEEDED = "DeadlineExceeded"
    START_DEADLINE_EXCEEDED = "StartDeadlineExceeded"
    AUDIT_UNAVAILABLE = "AuditUnavailable"
    TOKENS_EXPIRING = "TokensExpiring"
    LEASE_OVERDUE = "LeaseOverdue"
    LAYOUT_UNMANAGED = "LayoutUnmanaged"
    POLICY_STALE = "PolicyStale"


INFRASTRUCTURE: frozenset[Reason] = frozenset({Reason.NODE_LOST, Reason.POD_LOST, Reason.EVICTED, Reason.AGENT_LOST})
"""Faults of the platform: they restart the job without using the user's restart budget."""
