# Sourced by every batch script. It starts `launch.py`, which decides everything; there is as little
# shell as can start it and speak where Python cannot.
#
# Set by the script: TST_RUN (the run's folder), TST_PYTHON (the interpreter that submitted the job),
# TST_CODE (the copy of the code).

tst_launch() {
  exec "$TST_PYTHON" -P -m tst_study.experiments.slurm.launch "$TST_RUN" "$@"
}
tst_stop() { # WHY the set-up failed
  [ $? != 137 ] || set -- "$1: killed, for its memory? Raise memory_gb"
  trap - EXIT
  echo "set-up failed: $1" >&2
  PYTHONPATH=$TST_CODE tst_launch "$1"
}
trap : TERM # Slurm wants the job to end: its ranks, if there are any, write a checkpoint first
trap 'tst_stop "it ended early: a line of setup, or what it sources, calls exit"' EXIT
