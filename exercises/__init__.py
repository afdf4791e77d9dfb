"""Break it on purpose: one exercise per check, each with known bugs that the check must catch.

python -m exercises                 run them all
python -m exercises.break_shift     one of them, with everything to look at
"""
