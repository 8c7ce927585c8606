"""One file per study: a function from a scale to the configs of its runs; `catalogue` finds them.

`setting.py` is a training set-up on which studies vary what they study; `scales.py` has one per
scale and `paper_settings.py` the paper's own.
"""
