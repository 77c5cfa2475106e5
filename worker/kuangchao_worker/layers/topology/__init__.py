"""Topology in the rank: builds, checks and destroys the links of a plan. Never looks at what they carry."""
