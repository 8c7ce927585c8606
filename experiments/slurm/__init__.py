"""Studies on a Slurm cluster.

`profile` says how jobs are asked for; `launcher` decides which runs need one and hands them over
in arrays, each a `submission` written down before `sbatch` is called; `task` is what a job runs;
`jobs` asks Slurm what has become of them; `commands` calls its programs.
"""
