# shellcheck shell=bash
# Processes. Everything the cluster starts is recorded twice: its pid in a file, and itself in the cgroup
# tree `kc`. A process writes both before it becomes the program meant, so a script killed at any moment
# leaves nothing unrecorded, and a pid that was given to somebody else is never taken for ours.
#
#   kc/daemons   long-lived processes       kc/scripts   `kc up`, `kc golden` and their helpers
#   kc/node-i    what kubelet i runs (cgroupRoot of that kubelet)

CGROUP_MOUNTS=$(awk '$3 ~ /^cgroup2?$/ {print $2}' /proc/mounts)
CGROUP=$(awk '$3 == "cgroup2" {print $2; exit}' /proc/mounts)/kc

# alive PIDFILE: the recorded process runs, is no zombie, and is ours.
alive() {
  local pid
  pid=$(cat "$1" 2>/dev/null) && [ -n "$pid" ] || return 1
  { read -rn1 _ < "/proc/$pid/cmdline"; } 2>/dev/null && grep -qs '^0::.*/kc/' "/proc/$pid/cgroup"
}

# Limits of waits are long on purpose: a busy machine with a slow disk takes its time, and what is there ends the wait.
#
# gone PIDFILE [TENTHS]: waits until the process has left; a zombie whose threads still hold a port counts as there.
gone() {
  local pid
  pid=$(cat "$1" 2>/dev/null) || return 0
  for _ in $(seq "${2:-300}"); do
    kill -0 "$pid" 2>/dev/null || return 0
    sleep 0.1
  done
  return 1
}

# end PIDFILE [SIGNAL]: signals the recorded process if it is ours and alive.
end() { if alive "$1"; then kill "-${2:-KILL}" "$(cat "$1")" 2>/dev/null || true; fi; }

join() { mkdir -p "$CGROUP/$1" && echo "$BASHPID" > "$CGROUP/$1/cgroup.procs"; }

# daemon PIDFILE LOG COMMAND...: starts a long-lived process in a session of its own.
daemon() {
  (
    echo "$BASHPID" > "$1"
    join daemons
    exec 9>&-
    exec setsid "${@:3}"
  ) >> "$2" 2>&1 < /dev/null &
}

# sweep GROUP: ends whatever is left in kc/GROUP.
sweep() {
  local pids
  for _ in $(seq 300); do
    pids=$(cat "$CGROUP/$1/cgroup.procs" 2>/dev/null) || return 0
    [ -n "$pids" ] || return 0
    # shellcheck disable=SC2086
    kill -9 $pids 2>/dev/null || true
    sleep 0.1
  done
  return 1
}

# lock: one changing command at a time. What a killed one left running is swept first.
lock() {
  [ -z "${KC_LOCKED:-}" ] || return 0
  [ "$(id -u)" = 0 ] || fail "needs root"
  [ "$CGROUP" != /kc ] || fail "needs a cgroup2 mount; see: kc doctor"
  mkdir -p "$RUN" "$LOGS"
  exec 9> "$RUN/lock"
  if ! flock -n 9; then
    if alive "$RUN/script.pid"; then fail "another kc command runs: pid $(cat "$RUN/script.pid")"; fi
    sweep scripts
    flock -w 10 9 || fail "another kc command holds $RUN/lock"
  fi
  sweep scripts
  join scripts
  echo $$ > "$RUN/script.pid"
  KC_LOCKED=1
}

# remove_cgroups DIR: removes an emptied tree below every cgroup mount.
remove_cgroups() {
  local mount
  for mount in $CGROUP_MOUNTS; do
    for _ in $(seq 300); do
      [ -d "$mount/$1" ] || break
      find "$mount/$1" -depth -type d -exec rmdir {} + 2>/dev/null || true
      [ ! -d "$mount/$1" ] || sleep 0.1
    done
  done
}

# make_node_cgroups I: a fresh tree per hierarchy. Stale ones cost the kubelet three seconds each at its start.
make_node_cgroups() {
  local mount dir file
  remove_cgroups "kc/node-$1"
  for mount in $CGROUP_MOUNTS; do
    mkdir -p "$mount/kc/node-$1"
    for dir in "$mount/kc" "$mount/kc/node-$1"; do   # children of a v1 cpuset start empty and refuse processes
      for file in cpuset.cpus cpuset.mems; do
        if [ ! -e "$dir/$file" ] || [ -e "$dir/cgroup.controllers" ]; then continue; fi
        [ -n "$(cat "$dir/$file")" ] || cat "${dir%/*}/$file" > "$dir/$file"
      done
    done
  done
}
