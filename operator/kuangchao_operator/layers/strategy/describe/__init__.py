"""Describe: from a model's published configuration to a model descriptor. Pure: it gets parsed data, reads nothing."""
