"""Times of the life cycle that are not a user's to set. Seconds."""

from typing import Final

TICK: Final = 5.0
"""Longest time between two looks at an admitted job, and shortest between two writes of its progress."""
PROGRESS_PERCENT: Final = 5
"""A jump of the percentage by this much is written at once."""
AGENT_LOST: Final = 15.0
"""Agents send a heartbeat every second; one that is silent for this long is lost."""
OPERATOR_GRACE: Final = 60.0
"""When it begins to decide the operator knows no heartbeats. Agents get this long to make themselves heard again: first
it must be found ready, and their nodes must know where it is now."""
AGENT_STUCK: Final = 120.0
"""The same where the end of an agent is seen at once, as on one machine: one that is there and says nothing waits for a
processor. Only if it is stuck for good something must be done."""
STANDSTILL: Final = 5.0
"""A process that looks every second and did not for this long stood still, and heard nobody. What was said meanwhile
is still to be read: for AGENT_LOST after it no fault is found, since the word against it may be on its way."""
REJOIN: Final = 90.0
"""An agent that is to join again says nothing until its pod has been shown the tokens of the new attempt. How soon that
is depends on the kubelet; an agent that is dead beside a pod that lives can wait for it."""
IMAGE_REFUSED: Final = 60.0
"""A registry that refuses an image is asked again for this long: it may just be on its way there."""
MISSING_POD: Final = 30.0
"""A launched pod that is not seen after this long is lost; until then the watch may only be late."""
EARLY_EXIT: Final = 5.0
"""How much later than the first rank the last one may end when the task itself ended before its last step."""
EARLY_EXIT_COMMAND: Final = 30.0
"""The same for `command` jobs, whose steps are not known. Not less: rank 0 often saves or measures alone at the end,
and torchrun waits for that. A script whose rank 0 needs longer wants `successPolicy: Rank0`."""
PEER_LOSS: Final = 17.0
"""A rank that only says that its peer is gone is no cause: wait this long for the cause, longer than AGENT_LOST."""
TOKEN_RENEWAL: Final = 90.0
"""Leases live 300 s and are minted anew at this age."""
TOKENS_LATE: Final = 200.0
"""Leases of this age have missed two renewals; agents that are left with them are refused at 300 s."""
LEASES_OUT: Final = 240.0
"""From this age on leases may have ended (a policy may make them that short): an agent that is refused is silent."""
LEASES_DELIVERED: Final = 90.0
"""Within this time a pod has the leases that were minted after its old ones had ended."""
REPEAT: Final = 5.0
"""A Stop whose effect is not seen is asked for again after this time."""
CLAIM_RETRY: Final = 15.0
"""A storage claim that is missing is looked for again after this time: claims are not watched."""
MIN_WAKE: Final = 0.1
EXPLAINED_POSITIONS: Final = 10
"""Only so many jobs at the head of a queue get exact numbers in status, so that one change never writes to all."""
