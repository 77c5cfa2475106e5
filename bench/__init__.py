"""Benchmarks. A figure that has a peer is a ratio, measured side by side in one run; see `python -m bench --help`."""
