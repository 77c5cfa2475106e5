"""The issuer's policy: read from the mounted file, kept on the issuer's volume, in force at once, never falling open.

A broken file changes nothing. The generation rises only when the content changes and survives restarts, and so does
the policy itself: an issuer that starts beside a broken file goes on with the last good one.
"""

import hashlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field, ValidationError

from kuangchao_contracts.base import Contract
from kuangchao_contracts.errors import InvalidInputError, StorageError
from kuangchao_contracts.minting import PolicyReply
from kuangchao_contracts.policy import BUILT_IN, BUILT_IN_DOCUMENT, Policy, PolicyBook, compile_policy
from kuangchao_operator.policy.reader import read_document
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
        self._seen: str | None = None
        self._problem = ""
        known = self._load()
        self._kept = known or Kept(policy=BUILT_IN, loaded_at=int(clock()), settled=BUILT_IN.generation)
        self.current = self._kept.policy
        self.tick()
        if self._problem and known is None:
            raise InvalidInputError("policy", str(path), f"first start needs a good policy file: {self._problem}")

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
            data = None if self._path is None else self._path.read_bytes()
        except OSError as error:
            self._refuse("", f"{self._path}: {error.strerror}")
            return False
        digest = BUILT_IN.sha256 if data is None else hashlib.sha256(data).hexdigest()
        if digest == self._seen:
            return False
        try:
            document = BUILT_IN_DOCUMENT if data is None else read_document(str(self._path), data)
            changed = self._take(compile_policy(document, self.current.generation + 1, digest))
        except InvalidInputError as error:
            self._refuse(digest, str(error))
            return False
        except OSError as error:
            self._refuse("", f"{self._file}: {error.strerror}")
            return False
        self._seen, self._problem = digest, ""
        return changed

    def _take(self, new: Policy) -> bool:
        """Put a policy in force. Another release may read the same file differently: then it is another policy too."""
        old = self.current
        if (new.sha256, new.rules, new.rights) == (old.sha256, old.rules, old.rights):
            return False
        kept = Kept(policy=new, loaded_at=int(self._clock()), settled=self.stamp())
        write_private(self._file, kept.canonical())  # a generation that a restart could give away again is never used
        self._kept, self.current = kept, new
        log.info("policy generation %d, sha256 %s", new.generation, new.sha256)
        return True

    def _refuse(self, digest: str, problem: str) -> None:
        if problem != self._problem:
            log.warning("policy file is not in force, generation %d stays: %s", self.current.generation, problem)
        self._seen, self._problem = digest, problem[:1024]

    def _load(self) -> Kept | None:
        try:
            return Kept.model_validate_json(self._file.read_bytes())
        except FileNotFoundError:
            return None
        except ValidationError:
            raise StorageError(
                f"{self._file} does not hold a policy; its generation must not be given away again"
            ) from None
