"""The law of superposition, which predicts the gain from size, length, s and r.

`superposition_law` has the form of the law and fits it; `rows` makes the rows to fit. `held_out`
measures the errors of the law, and of two simpler predictions, on rows that were left out of the
fit. `law_answer` makes the answer of `tst-study analyse law`."""
