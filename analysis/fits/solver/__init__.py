"""Non-linear fits, computed with numpy and scipy, that say when they failed. `problem` states what
is fitted, `solve` finds the optimum from many starts, and `uncertainty` says how well it is known.
The laws in `fits/law/` and `fits/scaling/` use this package."""
