"""Fit: figures of a calibration from measured runs. Pure.

`runs` says what a measured run is, `reading` reads a table of them, `constants` names the figures that may be fitted
and their bounds, `solve` is the least squares, `telling` refuses runs that cannot tell two figures apart, `decide` puts
them together and `report` words the outcome. It never changes a formula, and never a figure that no run depends on.
"""
