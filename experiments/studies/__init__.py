"""The studies that this package can run. `catalogue` lists them by name and loads one.

Most are grid files, which `study_file` reads; `tuned` is in Python. `setting` defines a set-up,
which is a training configuration without its superposition and seed, and `grid` what a study in
Python is made of. `scales/` has a set-up for each scale:

| scale | trains for | on |
| --- | --- | --- |
| `smoke` | 200 steps: does everything work? | two cores, a minute |
| `quick` | 1,500 steps of prose | two cores, minutes |
| `laptop` | 5,000 steps of prose | two cores, an hour or so |
| `desktop` | 10,000 steps of prose, more values of s and r | two cores, a night |
| `one-gpu` | the 270M shape, 10,000 steps of 2^18 tokens of FineWeb-Edu | one GPU, days |
| `paper` | the lengths of the paper's runs | the paper's clusters |

A study may set other lengths. Set-ups on two cores have two layers and read the bundled books, at
the rate, the decay and the norms at which the pilot sweep found the baseline at its best
(docs/research/campaign.md, G0). The warm-up has the same number of steps at every length of a
scale. So runs of several lengths can share the steps before the decay, and a comparison of lengths
is not one of warm-ups. Weight decay, gradient clipping, initialisation and seeds, which the paper
does not state, are `tst_study`'s defaults.
"""
