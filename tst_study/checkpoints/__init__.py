"""Checkpoints on disk: where they lie (`places`), the digest of each file, the `trained_run` that
one is taken from, what their pickles may hold, and the reader of their weights.
`tst_study.megatron.checkpoint` writes them."""
