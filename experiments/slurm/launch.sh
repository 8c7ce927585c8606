# Sourced by every batch script. It starts `launch.py`, which decides everything; there is as little
# shell as can start it and speak where Python cannot.
#
# Set by the script: TST_RUN (the run's folder; empty for a job that trains nothing), TST_PYTHON (the
# interpreter that submitted the job), TST_CODE (the copy of the code).

tst_stop() { # WHY the set-up failed
  trap - EXIT
  echo "set-up failed: $1" >&2
  [ -z "$TST_RUN" ] ||
    PYTHONPATH=$TST_CODE "$TST_PYTHON" -P -m tst_study.experiments.slurm.launch "$TST_RUN" "$1"
  exit 1
}
trap : TERM # Slurm wants the job to end: its ranks, if there are any, write a checkpoint first
trap 'tst_stop "it ended early: a line of setup, or what it sources, calls exit"' EXIT

tst_supervise() { # RETRIES SECONDS EXCLUDED and the words of srun
  local rules=("${@:1:3}")
  shift 3
  if [ -x "$TST_PYTHON" ]; then
    exec "$TST_PYTHON" -P -m tst_study.experiments.slurm.launch "$TST_RUN" "${rules[@]}" \
      "$(type -P srun)" "$@"
  fi
  echo "$TST_PYTHON, which submitted this job, is not on $SLURMD_NODENAME: nothing will requeue the" \
    "job; submit again to go on" >&2
  command srun "$@"
}
