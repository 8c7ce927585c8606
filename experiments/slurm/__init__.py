"""Studies on a Slurm cluster.

The `profile` describes the cluster. `submit` decides which runs need a job, and submits them in
arrays. Each array has a `batch_script`, and a `submission`: the record that is written before
`sbatch` is called. In a job, `launch` starts the ranks and decides what becomes of the job; each
rank is a `task`, which runs from a `code_copy`. `commands` calls Slurm's programs. `slurm_launcher`
joins all this into the launcher.
"""
