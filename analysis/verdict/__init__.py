"""Verdicts: which arm won, and how sure that is.

`question` declares what a study asks, `registration` says whether that was before its runs, and
`planned` finds the runs that answer it.
`comparison` pairs arms with their baselines by seed at equal FLOPs. `matched` adds the comparisons
at equal data and at equal loss; for equal loss, `length_curve` interpolates between lengths.
`learning_rate` says whether the rate was tuned fairly. All verdicts come from one function in
`decide`, which takes the intervals from `intervals`, and those over held-out documents, too, from
`documents`.
"""
