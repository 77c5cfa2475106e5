"""The issuer's policy: read from the mounted file, kept on the issuer's volume, in force at once, never falling open.

A broken file changes nothing. The generation rises only when the content changes and survives restarts, and so does
the policy itself: an issuer that starts beside a broken file goes on with the last good one.
"""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field, ValidationError

from kuangchao_contracts.base import Contract
from kuangchao_contracts.errors import InvalidInputError, StorageError
from kuangchao_contracts.minting import PolicyReply
from kuangchao_contracts.policy import BUILT_IN, Policy, PolicyBook
from kuangchao_operator.policy.reader import MAX_BYTES, read_policy
from kuangchao_operator.signing.files import private_directory, write_private

log = logging.getLogger(__name__)
PUBLISH_SECONDS: Final = 120
"""Within this time every verifier has the new policy: operators follow in seconds, mounted copies in ranks lag."""


class Kept(Contract):
    """Content of `policy.json`. `settled` is the newest generation that all verifiers knew when this one came."""

    policy: Policy
    loaded_at: Annotated[int, Field(ge=0)]
    settled: Annotated[int, Field(ge=0)]


class PolicyKeeper(PolicyBook):
    """The policy of one issuer. `path` None: the built-in one. Another file than before is found by `tick`."""

    def __init__(self, directory: Path, path: Path | None, clock: Callable[[], float]) -> None:
        """Raises InvalidInputError when there is neither a good file nor a policy from an earlier start."""
        super().__init__()
        self._file, self._path, self._clock = private_directory(directory) / "policy.json", path, clock
        self._seen: bytes | None = None
        self._problem = ""
        known = self._load()
        self._kept = known or Kept(policy=BUILT_IN, loaded_at=int(clock()), settled=BUILT_IN.generation)
        self.current = self._kept.policy
        if known is not None:
            self.tick()
            return
        try:
            self._follow()
        except InvalidInputError as error:
            raise InvalidInputError(f"first start: {error.field}", error.value, error.why, error.nearest) from None

    def stamp(self) -> int:
        """The generation that new tokens carry.

        As a key is published before it signs, a generation is in use before it stands in a token: else a rank whose
        mounted copy is a minute late would refuse a token that every policy allows. What a token may hold is decided
        under the current policy always.
        """
        settled = self._clock() >= self._kept.loaded_at + PUBLISH_SECONDS
        return self.current.generation if settled else self._kept.settled

    def reply(self) -> PolicyReply:
        """What the operator is told."""
        return PolicyReply(policy=self.current, loaded_at=self._kept.loaded_at, problem=self._problem)

    def tick(self) -> bool:
        """Take over a changed file. Whether the policy changed."""
        try:
            return self._follow()
        except InvalidInputError as error:
            self._refuse(str(error))
        except OSError as error:
            self._seen = None  # the file may be good and the volume full: try again
            self._refuse(f"{self._file}: {error.strerror}")
        return False

    def _follow(self) -> bool:
        if self._path is None:
            return self._take(BUILT_IN.replace(generation=self.current.generation + 1))
        try:
            with self._path.open("rb") as file:
                data = file.read(MAX_BYTES + 1)
        except OSError as error:
            self._seen = None
            raise InvalidInputError("policy file", str(self._path), error.strerror or "cannot be read") from None
        if data == self._seen:
            return False
        self._seen = data
        return self._take(read_policy(str(self._path), data, self.current.generation + 1))

    def _take(self, new: Policy) -> bool:
        """Put a policy in force. Another release may read the same file differently: then it is another policy too."""
        old, self._problem = self.current, ""
        if (new.sha256, new.rules, new.rights) == (old.sha256, old.rules, old.rights):
            return False
        kept = Kept(policy=new, loaded_at=int(self._clock()), settled=self.stamp())
        # first the volume: a generation that a restart could give away once more is never in force
        write_private(self._file, kept.canonical())
        self._kept, self.current = kept, new
        log.info("policy generation %d, sha256 %s", new.generation, new.sha256)
        return True

    def _refuse(self, problem: str) -> None:
        problem = problem[:1024]
        if problem != self._problem:
            log.warning("policy file is not in force, generation %d stays: %s", self.current.generation, problem)
        self._problem = problem

    def _load(self) -> Kept | None:
        try:
            return Kept.model_validate_json(self._file.read_bytes())
        except FileNotFoundError:
            return None
        except ValidationError:
            raise StorageError(
                f"{self._file} does not hold a policy; its generation must not be given away again"
            ) from None
