"""Studies on a Slurm cluster.

The `profile` describes the cluster. `submit` submits the runs that need a job in arrays, and a
`follow_up` job where more runs depend on results. Each array has a `batch_script`, and a
`submission`: the record that is written before `sbatch` is called. In a job, `launch` starts the
ranks (`experiments.rank`) and decides what becomes of the job. `commands` calls Slurm's programs.
`slurm_launcher` joins all this into the launcher.
"""
