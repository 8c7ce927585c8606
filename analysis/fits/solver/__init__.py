"""Non-linear fits that say when they failed, by numpy and scipy. `problem` states what is fitted,
`solve` finds the optimum from many starts, and `uncertainty` says how well it is known. The laws in
`fits/law/` and `fits/scaling/` use it."""
