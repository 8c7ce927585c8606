"""Loss against size, data and compute: the laws of the field (`scaling_laws`, `chinchilla`,
`power_law`, `data_constrained`) and along a run (`loss_curve`)."""
