"""Policy: which kind of subject may ever hold which operation. Rights are a table and a look-up; no language, no I/O.

`document` is what people write, `compiled` turns it into the `Policy` of `model` that everyone asks, `book` is where a
process keeps the one in force. Reading files and following changes is the business of the processes.
"""

from kuangchao_contracts.policy.book import PolicyBook
from kuangchao_contracts.policy.builtin import BUILT_IN_DOCUMENT
from kuangchao_contracts.policy.compiled import BUILT_IN, compile_policy
from kuangchao_contracts.policy.document import PolicyDocument, parse_document
from kuangchao_contracts.policy.model import READ_ONLY, Policy, Right, RuleChanges, Selector, changes, role

__all__ = [
    "BUILT_IN",
    "BUILT_IN_DOCUMENT",
    "READ_ONLY",
    "Policy",
    "PolicyBook",
    "PolicyDocument",
    "Right",
    "RuleChanges",
    "Selector",
    "changes",
    "compile_policy",
    "parse_document",
    "role",
]
