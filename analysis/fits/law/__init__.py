"""The law of superposition: its form, the rows that it is fitted to, its predictions of held-out
rows beside two nulls, and its answer with advice."""
