"""The law of superposition, which predicts the gain from size, length, s and r: its form and its
fit (`superposition_law`), the rows that it is fitted to (`rows`), its errors on rows left out of
the fit, beside two simpler predictions (`held_out`), and the answer of `tst-study analyse law`
(`law_answer`)."""
