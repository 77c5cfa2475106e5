"""The tokens of this pod, as the kubelet mounts them or the agent pulls them. Never logs, prints or copies a token
anywhere else.

The bundle is replaced atomically (the kubelet switches the `..data` link, the agent renames), so each read opens the
path anew.
"""

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from kuangchao_contracts.errors import UnavailableError
from kuangchao_contracts.layers import Layer
from kuangchao_contracts.tokens import Claims, parse_claims, parse_strict
from kuangchao_contracts.wire import TOKEN_BUNDLE, TokenBundle

POLL_SECONDS: Final = 0.2


class TokenFile:
    """Reads the token bundle."""

    def __init__(self, directory: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._clock = directory / TOKEN_BUNDLE, clock

    def read(self) -> TokenBundle:
        """The bundle as it is now. Raises UnavailableError while there is none that can be read."""
        try:
            return TokenBundle.model_validate_json(self._path.read_bytes())
        except OSError as error:
            raise UnavailableError(f"token bundle {self._path}: {error.strerror}") from None
        except ValidationError:
            # the message of pydantic would quote the content, and the content is secret
            raise UnavailableError(f"token bundle {self._path} is not a token bundle") from None

    def replace(self, bundle: TokenBundle) -> None:
        """Put a bundle in place, readable by this pod's account alone and by rename, so that no reader sees half of it.

        For pods that mount no Secret. Raises OSError.
        """
        part = self._path.with_suffix(".part")
        part.unlink(missing_ok=True)
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400)
        with os.fdopen(descriptor, "wb") as file:
            file.write(bundle.canonical())
        part.rename(self._path)

    def token(self, role: str, layer: Layer) -> str:
        """The lease of a role (agent or rank) for a layer. Raises UnavailableError when the pod has none."""
        name = f"{role}/{layer.audience}"
        token = self.read().tokens.get(name)
        if token is None:
            raise UnavailableError(f"token bundle {self._path} has no token {name}")
        return token

    def identity(self) -> Claims:
        """Claims of the agent's own token: which job this pod belongs to. Not verified; the gate does that."""
        return parse_claims(parse_strict(self.token("agent", Layer.EXECUTION))[1])

    async def wait_for_attempt(self, attempt: int, seconds: float) -> TokenBundle:
        """The first bundle for this attempt or a later one. Raises UnavailableError after so many seconds."""
        deadline = self._clock() + seconds
        while True:
            try:
                bundle = self.read()
                if bundle.attempt >= attempt:
                    return bundle
                problem = f"the mounted tokens are for attempt {bundle.attempt}"
            except UnavailableError as error:
                problem = str(error)
            if self._clock() >= deadline:
                raise UnavailableError(f"no tokens for attempt {attempt} within {seconds:.0f} s: {problem}")
            await asyncio.sleep(POLL_SECONDS)
