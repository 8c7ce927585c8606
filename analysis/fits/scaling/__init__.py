"""Loss against size, data and compute: the laws of the field (`scaling_laws`, `chinchilla`,
`power_law`; of a DataFrame of one's own: `frames`)."""
