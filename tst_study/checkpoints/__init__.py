"""Checkpoints: their paths (`places`), saving and resuming a run (`checkpoint`), their files
(`writer`, `reader`), and using a run's checkpoint elsewhere (`trained_run`)."""
