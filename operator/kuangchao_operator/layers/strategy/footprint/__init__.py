"""Footprint: what a model needs on one device of every pipeline stage, for every axis. Pure integers, no torch.

`parameters` counts, `layout` places layers, `schedules` says what is in flight, `activations` what a layer keeps,
`states` what a parameter costs, `buffers` what is beside them; `peaks` puts them together, `phases` explains them,
`budget` compares with a device and `legality` says what cannot be. Figures that no arithmetic gives stand in
`calibration.json`, one for each framework. It chooses nothing.
"""
