"""The law of superposition: its form, the rows that it is fitted to, what it predicts of rows held
out beside two nulls, and its answer with advice."""
