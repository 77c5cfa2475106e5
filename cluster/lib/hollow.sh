# shellcheck shell=bash
# Hollow nodes: kubemark kubelets beside the control plane. They accept pods and report them Running, and
# never run a process. Tainted kc.cluster/hollow, eight to a rack (label kc.cluster/rack).
# They renew their leases every 10 s: use KC_GRACE=40s or so with many of them.

hollow() {
  case ${1:-} in
    up) hollow_up "${2:?hollow up COUNT}" ;;
    down) hollow_down ;;
    *) fail "hollow up COUNT | hollow down" ;;
  esac
}

hollow_up() {
  local dir=$KC_ROOT/hollow i
  mkdir -p "$dir"
  for i in $(seq "$1"); do
    ! alive "$dir/$i.pid" || continue
    TMPDIR=$dir daemon "$dir/$i.pid" "$dir/$i.log" nsenter --net=/run/netns/kc-cp "$BIN/kubemark" --morph=kubelet \
      --name="hollow-$i" --kubeconfig="$PKI/admin-inside.conf" \
      --kubelet-port=$((20000 + i)) --kubelet-read-only-port=$((30000 + i)) \
      --use-host-image-service=false --extended-resources="$KC_HOLLOW_RESOURCES" \
      --node-labels="kc.cluster/hollow=true,kc.cluster/rack=r$(((i - 1) / 8))" \
      --register-with-taints=kc.cluster/hollow=true:NoSchedule
  done
}

hollow_down() {
  local file
  for file in "$KC_ROOT"/hollow/*.pid; do end "$file"; done
  kubectl delete node -l kc.cluster/hollow=true --wait=false 2>/dev/null || true
  rm -rf "$KC_ROOT/hollow"
}
