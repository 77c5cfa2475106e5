"""Search: from all legal splits of a model to the best one that fits, and why the others lost. Pure.

`space` says what may be chosen, `layouts` lists the ways to cut, `variants` the schedules, cuts, shardings and
recomputations of each, `need` is the memory of one, `rank` how two compare; `best` looks for the best, `reasons` says
why the rest lost, and `rescue` what would fit where nothing does. The global batch is given and never changed.
"""
