# shellcheck shell=bash
# The API tier: etcd and an API server on loopback, for tests that need a real API and no nodes.
# Plain processes under one supervisor, no root, no namespaces; any number of them side by side, each in
# a folder of its own. Without --controllers nothing removes namespaces, collects garbage, makes the
# `default` ServiceAccounts or aggregates ClusterRoles.

API_CONTROLLERS=namespace-controller,serviceaccount-controller,serviceaccount-token-controller,garbage-collector-controller
API_CONTROLLERS=$API_CONTROLLERS,clusterrole-aggregation-controller,root-ca-certificate-publisher-controller,resourcequota-controller

api_usage() { fail "api up [--dir DIR] [--port PORT] [--watch-pid PID] [--controllers] | api down [--dir DIR]"; }

# free_ports COUNT: none that the kernel gives to outgoing connections, which could take one before its server is up.
free_ports() {
  "$KC_PYTHON" - "$1" <<'EOF'
import random, socket, sys
count = int(sys.argv[1])
low, high = map(int, open("/proc/sys/net/ipv4/ip_local_port_range").read().split())
candidates = [port for port in range(10_000, 30_000) if not low <= port <= high] or [0] * count
held = []
for port in random.sample(candidates, len(candidates)):
    probe, mark = socket.socket(), socket.socket(socket.AF_UNIX)
    try:
        probe.bind(("127.0.0.1", port))
        mark.bind(f"\0kuangchao-port-{probe.getsockname()[1]}")   # a process of tests may have chosen it: tests/ports.py
        held.append(probe)
    except OSError:
        continue
    finally:
        mark.close()
    if len(held) == count:
        break
print(*(s.getsockname()[1] for s in held))
EOF
}

# start_time PID: pid and start time together name one process for good.
start_time() { sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | cut -d' ' -f20; }

api_alive() { # dir
  local pid started
  { read -r pid started < "$1/supervisor"; } 2>/dev/null && [ -n "$started" ] && [ "$(start_time "$pid")" = "$started" ] \
    && { read -rn1 _ < "/proc/$pid/cmdline"; } 2>/dev/null   # a zombie has none
}

api_main() {
  local action=${1:-} dir="" port="" watch=0 controllers=""
  shift || true
  while [ $# -gt 0 ]; do
    case $1 in
      --dir) dir=${2:?} && shift ;;
      --port) port=${2:?} && shift ;;
      --watch-pid) watch=${2:?} && shift ;;
      --controllers) controllers=1 ;;
      *) api_usage ;;
    esac
    shift
  done
  dir=$(realpath -m "${dir:-${TMPDIR:-/tmp}/kuangchao-api-$(id -u)}")
  case $action in
    up) api_up "$dir" "$port" "$watch" "$controllers" ;;
    down) api_down "$dir" ;;
    *) api_usage ;;
  esac
}

api_up() { # dir port watch-pid controllers
  local dir=$1 port=$2 pid command ports
  need_binaries kube-apiserver kubectl
  [ -z "$4" ] || need_binaries kube-controller-manager
  if api_alive "$dir"; then
    echo "$dir/kubeconfig"
    return 0
  fi
  PKI=$dir/pki
  mkdir -p "$PKI"
  chmod 700 "$dir" "$PKI"
  read -r -a ports <<< "$(free_ports 4)"
  port=${port:-${ports[0]}}
  new_ca ca /CN=kc-api-ca
  new_ca front-ca /CN=kc-api-front-ca
  new_token_key
  new_cert apiserver /CN=kube-apiserver "IP:127.0.0.1,IP:$KC_SVC.0.1,$SERVICE_NAMES"
  new_cert admin /O=system:masters/CN=admin
  new_kubeconfig admin "$dir/kubeconfig" "https://127.0.0.1:$port"
  command=(
    "$(command -v etcd || echo /usr/bin/etcd)" --data-dir "$dir/etcd" --unsafe-no-fsync
    --listen-client-urls "http://127.0.0.1:${ports[1]}" --advertise-client-urls "http://127.0.0.1:${ports[1]}"
    --listen-peer-urls "http://127.0.0.1:${ports[2]}"
    --initial-advertise-peer-urls "http://127.0.0.1:${ports[2]}" --initial-cluster "default=http://127.0.0.1:${ports[2]}"
    --- "$BIN/kube-apiserver" "--etcd-servers=http://127.0.0.1:${ports[1]}"
    --bind-address=127.0.0.1 --advertise-address=127.0.0.1 "--secure-port=$port" --endpoint-reconciler-type=none
  )
  mapfile -t -O "${#command[@]}" command < <(apiserver_identity_flags)
  if [ -n "$4" ]; then
    command+=(--- "$BIN/kube-controller-manager" "--kubeconfig=$dir/kubeconfig" "--controllers=$API_CONTROLLERS"
      "--service-account-private-key-file=$PKI/sa.key" "--root-ca-file=$PKI/ca.crt" --use-service-account-credentials
      --leader-elect=false --bind-address=127.0.0.1 "--secure-port=${ports[3]}")
  fi
  rm -f "$dir"/*.log
  setsid "$KC_PYTHON" "$KC_HOME/lib/supervise.py" --dir "$dir" --watch-pid "$3" -- "${command[@]}" \
    > "$dir/supervisor.log" 2>&1 < /dev/null &
  pid=$!
  echo "$pid $(start_time "$pid")" > "$dir/supervisor"
  api_wait "$dir" || { tail -n 5 "$dir"/*.log >&2; api_down "$dir"; fail "the API server did not come up"; }
  echo "$dir/kubeconfig"
}

api_wait() { # dir
  for _ in $(seq 600); do
    KUBECONFIG=$1/kubeconfig "$BIN/kubectl" get --raw /readyz >/dev/null 2>&1 && return 0
    api_alive "$1" || return 1
    sleep 0.1
  done
  return 1
}

# api_down DIR: ends the supervisor, which ends the rest, and removes the folder it made.
api_down() {
  local pid
  if api_alive "$1"; then
    read -r pid _ < "$1/supervisor"
    kill "$pid"
    for _ in $(seq 600); do   # it has killed the others and waits for them, which write into the folder until then
      api_alive "$1" || break
      sleep 0.05
    done
  fi
  rm -rf "$1"/{pki,etcd,kubeconfig,supervisor} "$1"/*.log
  rmdir "$1" 2>/dev/null || true
}
