"""Texts of strangers made safe to show. Imports nothing, so that every command can afford it."""

_CONTROL = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"}
_NOT_RECORDED = dict.fromkeys((*range(32), 127), "?")


def printable(text: str) -> str:
    """A text of a stranger, safe for a terminal: control characters but newline and tab are written out, as \\x1b."""
    return text.translate(_CONTROL)


def recordable(text: str, limit: int) -> str:
    """A text of a stranger as a record holds it: ASCII without control characters, cut to `limit`."""
    ascii_only = text[:limit].encode("ascii", "backslashreplace").decode()
    return ascii_only.translate(_NOT_RECORDED)[:limit]
