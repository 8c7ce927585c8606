# Sourced by every batch script: what happens around the ranks of one launch, outside any container.
#
# The ranks only train. The first of them leaves an agreed status in job/ended:
#   0 over   1 failed for good   69 stopped after a checkpoint   75 another process has the run
# Anything else is a crash. What was stopped, has crashed or found its run taken goes back into the
# queue: `scontrol` may be missing where the ranks live. Each launch leaves a line in job/launches
# (time, outcome, last checkpoint before and after, first node to fail, what was said of it). Ranks
# that a warning does not reach, or that are slow to obey it, do not matter: shortly before the time
# is up, this script puts its job back itself. A run
# whose launches end without a new checkpoint more than TST_RETRIES times in a row is given up, and
# a node on which it crashed twice is avoided.
#
# Set by the script: TST_RUN (the run's folder; empty for a job that trains nothing), TST_RETRIES,
# TST_SIGNAL (seconds before the end at which Slurm warns the ranks), TST_EXCLUDED (nodes that the
# profile excludes already).

TST_JOB=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}
TST_JOB=${TST_JOB:-${SLURM_JOB_ID:-}}

tst_checkpoint() {
  local step
  step=$(sed -n 's/^ *"last_checkpoint": *\([0-9]*\).*/\1/p' "$TST_RUN/status.json" 2>/dev/null)
  echo "${step:-0}"
}

tst_note() { # OUTCOME NODE WORDS
  local line="$(date +%s) $1 $tst_before $(tst_checkpoint) $2 $3"
  [ -z "$TST_RUN" ] || echo "$line" >>"$TST_RUN/job/launches"
}

tst_say_failed() { # WHY [": \2", to keep what was said last]: for ranks, of which none is left
  local file="$TST_RUN/status.json" beside="$TST_RUN/.status.json.$TST_JOB" d=$'\001'
  local why="${1//[$'\n'\"\\&]/ }"
  [ -n "$TST_RUN" ] || return 0
  ! grep -qsE '^ *"state": "(done|diverged)"' "$file" || return 0
  {
    cat "$file" 2>/dev/null || {
      printf '{\n "state": "",\n "step": 0,\n "steps": 0,\n "last_checkpoint": null,\n'
      printf ' "heartbeat": %s,\n "message": ""\n}\n' "$(date +%s)"
    }
  } | sed -e 's/^\( *"state": \)"[a-z]*"/\1"failed"/' \
    -e "s$d^\( *\"message\": \"\)\(.*\)\(\",*\)\$$d\1$why$2\3$d" \
    -e 's/^\( *"message": ".*\): \(",*\)$/\1\2/' >"$beside" && mv "$beside" "$file"
}

tst_stop() { # WHAT: a line of set-up that failed
  echo "set-up failed: $1" >&2
  tst_note set-up "$SLURMD_NODENAME" "$1"
  tst_say_failed "set-up failed: $1"
  exit 1
}

tst_begin() {
  # Of a job that is told to end, the ranks write their checkpoint first: this script waits.
  trap 'tst_told=1' TERM
  [ -n "$TST_RUN" ] || return 0
  mkdir -p "$TST_RUN/job"
  rm -f "$TST_RUN/job/ended" "$TST_RUN/job/srun.txt" "$TST_RUN/job/limit"
  tst_before=$(tst_checkpoint)
  tst_began=$(date +%s)
  tst_ends=$(tst_end_of_time) || return 0
  tst_watch &
  tst_watcher=$!
}

tst_end_of_time() { # fails for a job that has none
  local end
  end=$(squeue --noheader --jobs="$TST_JOB" --format=%e) && date -d "$end" +%s 2>/dev/null
}

tst_watch() { # beside the ranks: Slurm would end them, this script and the run with the time
  local spare=$((TST_SIGNAL / 4)) left
  [ "$spare" -lt 60 ] || spare=60
  trap 'kill $! 2>/dev/null; exit' TERM
  while left=$((tst_ends - spare - $(date +%s))) && [ "$left" -gt 0 ]; do
    sleep $((left < 600 ? left : 600)) &
    wait $!
    tst_ends=$(tst_end_of_time) || return 0 # it may have been moved
  done
  trap '' TERM
  touch "$TST_RUN/job/limit"
  tst_back limit - "stopped by the limit"
}

tst_end() { # STATUS of srun
  local said first node
  [ -z "$tst_watcher" ] || kill "$tst_watcher" 2>/dev/null
  if [ -e "$TST_RUN/job/limit" ]; then
    wait "$tst_watcher" || exit
    tst_wait_for_the_end
  fi
  cat "$TST_RUN/job/srun.txt" >&2 2>/dev/null
  said=$(cat "$TST_RUN/job/ended" 2>/dev/null)
  # srun names the tasks that ended badly, the first to do so first.
  first=$(sed -n 's/^srun: error: \([^ ]*: tasks* .*\)/\1/p' "$TST_RUN/job/srun.txt" | head -n 1)
  case $said in
    0 | 1) exit "$said" ;;
    69 | early) case $first in '' | *' 69') first= ;; *) said= ;; esac ;; # or another rank died before
    75) ;;
    *) said= ;;
  esac
  node=${first%%:*}
  [ "$SLURM_JOB_NUM_NODES" != 1 ] || node=$SLURM_JOB_NODELIST
  # The warning came before anybody listened to it.
  [ -n "$said" ] || [[ $first != *'User defined signal 2' ]] || said=early
  if [ "$said" = early ]; then
    first="$(($(date +%s) - tst_began)) s"
    # Slurm warns up to a minute early; before that, the job was preempted.
    [ "$(date +%s)" -gt $((${tst_ends:-0} - TST_SIGNAL - 90)) ] || said=69
  fi
  [ -z "$said" ] || node=
  tst_back "${said:-crash}" "${node:--}" "${first:-status $1}"
  tst_wait_for_the_end
}

tst_back() { # OUTCOME NODE WORDS: into the queue, if it gets anywhere
  local idle
  tst_wait_for_an_answer
  if [ "$tst_state" != RUNNING ] || [ -e "$TST_RUN/job/cancelled" ]; then
    echo "not requeued: job $TST_JOB is ${tst_state:-not to be found}" >&2
    exit 69
  fi
  if ! tst_note "$1" "$2" "$3"; then
    # Launches that leave no line are not counted, and would be made for ever.
    echo "not requeued: $TST_RUN/job/launches cannot be written; submit again to go on" >&2
    exit 1
  fi
  idle=$(awk '$2 != 75 { n = $3 == $4 ? n + 1 : 0 } END { print n + 0 }' "$TST_RUN/job/launches")
  if [ "$idle" -gt "$TST_RETRIES" ]; then
    case $1 in
      69) tst_give_up "launches in a row without a new checkpoint: $idle" ;;
      early) tst_give_up "no time left after a start-up of $3: say more time in [resources]" ;;
      *) tst_give_up "launches in a row without a new checkpoint: $idle ($3)" ;;
    esac
  fi
  tst_requeue
}

tst_wait_for_an_answer() { # ten minutes for a controller that is being started again
  local try
  for try in $(seq 60); do
    tst_state=$(squeue --noheader --jobs="$TST_JOB" --format=%T) && return 0
    sleep 10
  done
}

tst_give_up() { # WHY
  echo "given up: $1" >&2
  # Ranks that are slow to obey must not have the last word.
  [ ! -e "$TST_RUN/job/limit" ] || scancel --signal=KILL "$TST_JOB"
  tst_say_failed "given up: $1" ': \2'
  exit 1
}

tst_requeue() {
  local bad said try
  bad=$(tst_bad_nodes)
  for try in $(seq 60); do
    said=$(scontrol requeue "$TST_JOB" 2>&1) && break
    case $said in
      *ontact* | *onnect* | *imed\ out*) sleep 10 ;;
      *)
        echo "not requeued: $said; submit again to go on" >&2
        exit 69
        ;;
    esac
  done
  # Only a job in the queue can be told which nodes to leave out, and by now the controller ends
  # this one: what must still be done is deaf to it.
  [ -z "$bad" ] || (
    trap '' TERM
    scontrol update JobId="$TST_JOB" ExcNodeList="${TST_EXCLUDED:+$TST_EXCLUDED,}$bad" &&
      echo "$bad" >"$TST_RUN/job/avoided"
  )
}

tst_wait_for_the_end() { # an exit before the controller's signal would have the job noted as failed
  local try
  for try in $(seq 60); do
    [ -z "$tst_told" ] || exit 69
    sleep 1
  done
}

tst_bad_nodes() { # those on which this run crashed twice, as long as enough others are left
  local bad others
  bad=$(awk '$2 == "crash" && $5 != "-" { n[$5]++ }
    END { for (node in n) if (n[node] > 1) print node }' "$TST_RUN/job/launches")
  [ -n "$bad" ] || return 0
  others=$(sinfo --noheader --Node --partition="$SLURM_JOB_PARTITION" --format=%N \
    --states=idle,mixed,allocated,completing | sort -u | grep -cvxF "$bad")
  [ "$others" -lt "$SLURM_JOB_NUM_NODES" ] || echo "$bad" | paste -sd ,
}
