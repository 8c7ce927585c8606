"""Checkpoints: where they lie (`places`), how they are written while a run trains (`checkpoint`,
`writer`), and read without Megatron (`reader`, `pickles`) to be used or forked (`trained_run`)."""
