# shellcheck shell=bash
# The cluster as a whole: up, down, status.

cluster_up() { # [--images IMAGE..]
  local images=() i
  if [ "${1:-}" = --images ]; then shift; images=("$@"); elif [ $# -gt 0 ]; then fail "up [--images IMAGE..]"; fi
  need_binaries kube-apiserver kubectl kube-controller-manager kube-scheduler kubelet kube-proxy coredns pause
  lock
  mkdir -p "$VOLUMES" "$KC_ROOT"/{nodes,etcd,registry}
  chmod 700 "$KC_ROOT/etcd"
  record_settings
  pki_cluster
  network_up
  start_forwarder
  start_registry
  start_etcd
  start_apiserver
  wait_apiserver
  say "API server ready"
  start_controllers
  storage_class
  system_images
  # shellcheck disable=SC2086
  golden_add "$PAUSE_IMAGE" "$COREDNS_IMAGE" $KC_IMAGES "${images[@]}"
  nodes_renew
  for i in $(seq "$KC_NODES"); do node_boot "$i"; done
  say "node processes started"
  nodes_wait
  say "$KC_NODES nodes Ready"
  sed "s/@DNS_IP@/$DNS_IP/" "$KC_HOME/manifests/coredns.yaml" | kubectl apply -f - >/dev/null
  kubectl -n kube-system rollout status deploy/coredns --timeout=600s >/dev/null
  say "cluster DNS ready"
  echo "export KUBECONFIG=$ADMIN_CONF"
}

# cluster_down: recorded pids first, then what is left in the cluster's cgroups, then the namespaces.
cluster_down() { # [--purge]
  [ "$(id -u)" = 0 ] || fail "needs root"
  [ "$CGROUP" != /kc ] || fail "needs a cgroup2 mount; see: kc doctor"
  [ -z "${1:-}" ] || [ "$1" = --purge ] || fail "down [--purge]"
  sweep scripts || true
  nodes_down
  control_plane_down
  sweep daemons || true
  rm -f "$RUN"/*.pid "$KC_ROOT"/nodes/node-*/*.pid "$KC_ROOT"/hollow/*.pid
  network_down
  remove_cgroups kc
  rm -rf "$RUN/golden" "$KUANGCHAO_CACHE/base.tmp"
  if [ "${1:-}" = --purge ]; then
    rm -rf "$KC_ROOT"/{nodes,etcd,registry,volumes,hollow,run,pki,log,admin.conf}
    rmdir "$KC_ROOT" 2>/dev/null || true
  fi
}

cluster_status() {
  local name state
  printf 'control plane:'
  for name in forwarder registry etcd apiserver kcm scheduler provisioner; do
    if alive "$RUN/$name.pid"; then state=up; else state=DOWN; fi
    printf '  %s %s' "$name" "$state"
  done
  printf '\nprocesses: %s   memory available: %s MiB   load: %s\n' \
    "$(grep -c . "$CGROUP"/daemons/cgroup.procs 2>/dev/null || true)" \
    "$(awk '/MemAvailable/ {print int($2 / 1024)}' /proc/meminfo)" "$(cut -d' ' -f1-3 /proc/loadavg)"
  printf 'disk: cache %s (%s)   state %s (%s)\n' "$(du -sh "$KUANGCHAO_CACHE" 2>/dev/null | cut -f1)" "$KUANGCHAO_CACHE" \
    "$(du -sh "$KC_ROOT" 2>/dev/null | cut -f1)" "$KC_ROOT"
  printf 'golden images: %s\n' "$(cut -d' ' -f1 "$GOLDEN.list" 2>/dev/null | tr '\n' ' ')"
  if in_ns kc-net nft list table bridge kc 2>/dev/null | grep -q drop; then echo "links cut by partition; undo: kc heal"; fi
  alive "$RUN/apiserver.pid" || return 0
  kubectl get nodes -o wide --request-timeout=5s 2>&1 | cut -c1-150 || true
  echo "pods that are not running:"
  kubectl get pods -A --request-timeout=5s --no-headers --field-selector=status.phase!=Running,status.phase!=Succeeded 2>&1 | head -n 15 || true
}
