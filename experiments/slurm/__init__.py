"""Studies on a Slurm cluster.

The `profile` describes the cluster. `submit` decides which runs need a job and submits them in
arrays; each array has a `batch_script` and a `submission`, which is recorded before `sbatch` is
called. In a job, `launch` starts the ranks and decides what becomes of the job; each rank is a
`task` from a `code_copy`. `commands` calls Slurm's programs, and `slurm_launcher` joins all of
it.
"""
