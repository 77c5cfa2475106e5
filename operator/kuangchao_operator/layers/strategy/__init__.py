"""Strategy: how a job is split over its devices. Pure: no clock, no run-time state, no I/O; executes nothing."""
