"""Resource: what exists and how healthy it is. Never allocates, never edits what it has published."""
