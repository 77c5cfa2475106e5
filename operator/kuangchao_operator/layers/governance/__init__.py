"""Governance: audit queries and metrics. Reads, never changes anything."""
