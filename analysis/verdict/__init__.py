"""Who won: a `question` is declared before its runs (`planned` answers it), arms are paired by seed
at equal FLOPs (`comparison`), data or loss (`matched`, `length_curve`), `learning_rate` says
whether that was fair, and one function decides (`decide`, with `intervals`)."""
