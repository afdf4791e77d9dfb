"""Grading a class: `python -m exercises.grade SUBMISSIONS --out grades.csv`."""
