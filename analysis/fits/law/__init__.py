"""The law of superposition: its form, the rows that it is fitted to, what it predicts of rows held
out beside two nulls, its answer with advice; and what repeated data changes
(`data_constrained`)."""
