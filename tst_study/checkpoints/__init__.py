"""Checkpoints: where they lie (`places`), how they are written while a run trains (`checkpoint`,
`writer`), begun from (`fork`), and read without Megatron (`reader`, `pickles`, `trained_run`)."""
