"""Who won: `question`s declared before their runs, arms paired by seed (`comparison`) at equal
FLOPs, data or loss (`matched`, `length_curve`), whether that was fair (`learning_rate`), and the
one function that decides (`decide`, with `intervals`)."""
