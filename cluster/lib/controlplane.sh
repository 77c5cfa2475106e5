# shellcheck shell=bash
# The control plane, in namespace kc-cp: registry, etcd, API server, controller manager, scheduler.

# apiserver_identity_flags: who may call and what is admitted, one flag a line; the same for cluster and API tier.
apiserver_identity_flags() {
  cat <<EOF
--client-ca-file=$PKI/ca.crt
--tls-cert-file=$PKI/apiserver.crt
--tls-private-key-file=$PKI/apiserver.key
--service-account-issuer=https://kubernetes.default.svc.cluster.local
--service-account-key-file=$PKI/sa.pub
--service-account-signing-key-file=$PKI/sa.key
--service-cluster-ip-range=$KC_SVC.0.0/16
--authorization-mode=Node,RBAC
--enable-admission-plugins=NodeRestriction
--allow-privileged=true
--requestheader-client-ca-file=$PKI/front-ca.crt
--requestheader-allowed-names=front-proxy-client
--requestheader-username-headers=X-Remote-User
--requestheader-group-headers=X-Remote-Group
--requestheader-extra-headers-prefix=X-Remote-Extra-
EOF
}

# audit_flags: the webhook is a NodePort of a node; the API server runs as well while nobody listens there.
audit_flags() {
  [ -n "$KC_AUDIT_URL" ] || return 0
  cat > "$RUN/audit.conf.new" <<EOF
apiVersion: v1
kind: Config
clusters: [{name: sink, cluster: {server: "$KC_AUDIT_URL", certificate-authority: "$PKI/ca.crt"}}]
users: [{name: apiserver, user: {client-certificate: "$PKI/audit.crt", client-key: "$PKI/audit.key"}}]
contexts: [{name: sink, context: {cluster: sink, user: apiserver}}]
current-context: sink
EOF
  mv "$RUN/audit.conf.new" "$RUN/audit.conf"
  if [ "${KC_AUDIT_URL#https:}" = "$KC_AUDIT_URL" ]; then   # plain http takes no certificates
    sed -i -e 's/, certificate-authority: "[^"]*"//' -e '/^users:/d' -e 's/user: apiserver/user: ""/' "$RUN/audit.conf"
  fi
  # shellcheck disable=SC2086
  printf '%s\n' "--audit-policy-file=$KC_AUDIT_POLICY" "--audit-webhook-config-file=$RUN/audit.conf" $KC_AUDIT_ARGS
}

# component NAME COMMAND...: starts it unless it runs.
component() { alive "$RUN/$1.pid" || daemon "$RUN/$1.pid" "$LOGS/$1.log" "${@:2}"; }
component_in_cp() { component "$1" nsenter --net=/run/netns/kc-cp "${@:2}"; }

start_forwarder() {
  local port specs=()
  specs+=("127.0.0.1:$KC_PORT=kc-cp/$KC_NET.1:6443" "127.0.0.1:$KC_REGISTRY_PORT=kc-cp/$KC_NET.1:$KC_REGISTRY_PORT")
  for port in $KC_REVERSE; do specs+=("kc-cp/0.0.0.0:$port=127.0.0.1:$port"); done
  component forwarder "$KC_PYTHON" "$KC_HOME/lib/forward.py" "${specs[@]}"
}

start_registry() {
  cat > "$RUN/registry.yml" <<EOF
version: 0.1
log: {level: warn, accesslog: {disabled: true}}
storage: {filesystem: {rootdirectory: "$KC_ROOT/registry"}, delete: {enabled: true}}
http: {addr: "$KC_NET.1:$KC_REGISTRY_PORT"}
EOF
  component_in_cp registry docker-registry serve "$RUN/registry.yml"
}

# An API server that lost its etcd backs off for up to half a minute after the return: starting it anew is faster.
start_etcd() {
  if ! alive "$RUN/etcd.pid" && alive "$RUN/apiserver.pid"; then control_plane_kill apiserver; fi
  component_in_cp etcd etcd --data-dir "$KC_ROOT/etcd" --unsafe-no-fsync \
    --listen-client-urls http://127.0.0.1:2379 --advertise-client-urls http://127.0.0.1:2379 \
    --listen-peer-urls http://127.0.0.1:2380
}

# Controllers that rode out an API outage back off for up to a minute, and with their stale view of the leases
# they would call live nodes lost all that time: they start anew together with the API server.
#
# Aggregator routing: there is no kube-proxy beside the API server, so it dials the endpoints of a
# webhook's or APIService's Service itself.
start_apiserver() {
  local flags
  if ! alive "$RUN/apiserver.pid"; then
    control_plane_kill kcm
    control_plane_kill scheduler
  fi
  mapfile -t flags < <(apiserver_identity_flags; audit_flags)
  # shellcheck disable=SC2086
  component_in_cp apiserver "$BIN/kube-apiserver" --etcd-servers=http://127.0.0.1:2379 \
    --bind-address="$KC_NET.1" --advertise-address="$KC_NET.1" --secure-port=6443 "${flags[@]}" \
    --kubelet-client-certificate="$PKI/apiserver-kubelet.crt" --kubelet-client-key="$PKI/apiserver-kubelet.key" \
    --kubelet-certificate-authority="$PKI/ca.crt" --kubelet-preferred-address-types=InternalIP \
    --proxy-client-cert-file="$PKI/front-proxy.crt" --proxy-client-key-file="$PKI/front-proxy.key" \
    --enable-aggregator-routing=true \
    --default-not-ready-toleration-seconds="$KC_TOLERATION" \
    --default-unreachable-toleration-seconds="$KC_TOLERATION" $KC_APISERVER_ARGS
}

wait_apiserver() {
  for _ in $(seq 600); do
    ! kubectl get --raw /readyz >/dev/null 2>&1 || return 0
    sleep 0.2
  done
  tail -n 5 "$LOGS/apiserver.log" >&2
  fail "the API server did not come up; its log: $LOGS/apiserver.log"
}

start_controllers() {
  # shellcheck disable=SC2086
  component_in_cp kcm "$BIN/kube-controller-manager" --kubeconfig="$PKI/kcm.conf" --use-service-account-credentials \
    --service-account-private-key-file="$PKI/sa.key" --root-ca-file="$PKI/ca.crt" \
    --cluster-signing-cert-file="$PKI/ca.crt" --cluster-signing-key-file="$PKI/ca.key" \
    --leader-elect=false --bind-address=127.0.0.1 --allocate-node-cidrs=false \
    --node-monitor-grace-period="$KC_GRACE" --node-monitor-period="$KC_MONITOR" $KC_KCM_ARGS
  # shellcheck disable=SC2086
  component_in_cp scheduler "$BIN/kube-scheduler" --kubeconfig="$PKI/scheduler.conf" \
    --leader-elect=false --bind-address=127.0.0.1 $KC_SCHEDULER_ARGS
  component provisioner "$KC_PYTHON" "$KC_HOME/lib/provisioner.py" "https://127.0.0.1:$KC_PORT" "$PKI" "$VOLUMES" "$KC_VOLUME_GID"
}

# control_plane_kill COMPONENT: at once; a polite TERM keeps the API server draining watches for a minute.
control_plane_kill() {
  case ${1:-} in
    forwarder | registry | etcd | apiserver | kcm | scheduler | provisioner) ;;
    *) fail "kill-cp forwarder|registry|etcd|apiserver|kcm|scheduler|provisioner" ;;
  esac
  end "$RUN/$1.pid"
  gone "$RUN/$1.pid"
}

control_plane_down() {
  local name
  for name in provisioner scheduler kcm apiserver registry forwarder; do end "$RUN/$name.pid"; done
  end "$RUN/etcd.pid" TERM
  gone "$RUN/etcd.pid" || true
}
