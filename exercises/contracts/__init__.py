"""One contract per check: what a student's own check has to tell apart, and right and wrong code.

`python -m exercises.break_shift --check FILE` grades a check against them, `--fix` hands out one
of the wrong ones to repair.
"""
