"""Footprint: what a model needs on one device of every pipeline stage, for every axis. Pure integers, no torch.

`parameters` counts, `layout` places layers, `schedules` says what is in flight, `activations` what a layer keeps,
`states` what a parameter costs, `buffers` what is beside them; `peaks` puts them together, `phases` explains them,
and `budget` compares with a device. What cannot be cut at all is said by the laws (`legality`). Figures that no
arithmetic gives stand in `calibration.json`, one for each framework. It chooses nothing.
"""
