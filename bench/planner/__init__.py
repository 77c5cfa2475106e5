"""The memory model against published rows: `python -m bench.planner --truth CSV --json`."""
