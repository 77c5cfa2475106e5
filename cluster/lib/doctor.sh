# shellcheck shell=bash
# kc doctor: one line for each thing that is missing, with the command that mends it.

DOCTOR_FOUND=0
lacks() { # what remedy
  DOCTOR_FOUND=1
  printf 'missing: %s -> %s\n' "$1" "$2"
}

disk_free_gib() { # path
  local path=$1
  while [ ! -e "$path" ]; do path=$(dirname "$path"); done
  df -PB1G "$path" | awk 'NR == 2 {print $4}'
}

same_file_system() { # path path
  local a=$1 b=$2
  while [ ! -e "$a" ]; do a=$(dirname "$a"); done
  while [ ! -e "$b" ]; do b=$(dirname "$b"); done
  [ "$(stat -c %d "$a")" = "$(stat -c %d "$b")" ]
}

doctor() {
  local missing need=2
  [ "$(id -u)" = 0 ] || lacks "root" "sudo -E cluster/kc ... (\`kc api\` needs no root)"
  [ "$CGROUP" != /kc ] || lacks "a cgroup2 mount" "mkdir -p /sys/fs/cgroup/unified && mount -t cgroup2 none /sys/fs/cgroup/unified"
  if [ "$CGROUP" != /kc ] && [ "$(id -u)" = 0 ] && ! { mkdir -p "$CGROUP" && [ -w "$CGROUP/cgroup.procs" ]; }; then
    lacks "a writable cgroup2 tree" "mount -o remount,rw ${CGROUP%/kc}"
  fi
  if command -v dpkg-query >/dev/null; then
    # shellcheck disable=SC2086
    missing=$(missing_packages $APT_PACKAGES)
    [ -z "$missing" ] || lacks "packages ${missing//$'\n'/ }" "cluster/kc install"
  else
    lacks "apt (Debian 12 or a relative)" "install by hand: $APT_PACKAGES"
  fi
  missing=$(binaries_missing kube-apiserver kubectl kube-controller-manager kube-scheduler kubelet kube-proxy kubemark coredns helm pause)
  if [ -n "$missing" ]; then
    need=12
    lacks "binaries ${missing//$'\n'/ }" "cluster/kc install"
    command -v go >/dev/null || lacks "the go command" "install Go 1.26 or newer and put it on PATH"
  fi
  command -v "$KC_PYTHON" >/dev/null || lacks "python3" "apt-get install python3-minimal"
  if [ "$(id -u)" = 0 ] && ! unshare -m -p -n -u -i --fork true 2>/dev/null; then
    lacks "network, mount and pid namespaces" "run on a machine or VM, or in a privileged container"
  fi
  for missing in bridge veth; do
    if [ "$(id -u)" = 0 ] && ! unshare -n ip link add kcprobe type "$missing" 2>/dev/null; then
      lacks "$missing links" "modprobe $missing"
    fi
  done
  grep -qw overlay /proc/filesystems || lacks "the overlay file system" "modprobe overlay"
  [ "$(disk_free_gib "$KUANGCHAO_CACHE")" -ge "$need" ] ||
    lacks "$need GiB free for $KUANGCHAO_CACHE" "free some, or set KUANGCHAO_CACHE (images with PyTorch take another 25 GiB)"
  same_file_system "$KUANGCHAO_CACHE" "$KC_ROOT" ||
    lacks "one file system for $KUANGCHAO_CACHE and $KC_ROOT (hard links)" "export KC_ROOT=${KUANGCHAO_CACHE}/cluster"
  [ "$DOCTOR_FOUND" = 0 ] && echo "nothing is missing"
}
