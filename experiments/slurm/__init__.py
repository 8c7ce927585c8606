"""Studies on a Slurm cluster.

`profile` says how jobs are asked for; `handing_over` decides which runs need one and hands them
over in arrays, each a `batch_script` and a `submission` written down before `sbatch` is called;
`task` is what a job runs, from a `code_copy`; `jobs` asks Slurm what has become of them, and reads
what they noted themselves; `commands` calls Slurm's programs; the `launcher` joins all of it.
"""
