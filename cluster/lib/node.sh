# shellcheck shell=bash
# Nodes. Node i has its own namespaces (see node-init.sh), containerd, kubelet and kube-proxy.

node_dir() { echo "$KC_ROOT/nodes/node-$1"; }

node_enter() { nsenter -t "$(cat "$(node_dir "$1")/init.pid")" -m -p -n -u -i -- "${@:2}"; }
node_exec() { node_enter "$@"; }
node_ctr() { ctr -a "$(node_dir "$1")/run/containerd/containerd.sock" -n k8s.io "${@:2}"; }

# node_boot I: starts the node unless it runs; also one whose boot was interrupted.
node_boot() {
  local i=$1 dir
  dir=$(node_dir "$i")
  for _ in $(seq 600); do
    if alive "$dir/init.pid"; then return 0; fi
    alive "$dir/unshare.pid" || break
    sleep 0.1
  done
  [ -s "$PKI/node-$i.conf" ] || fail "no node-$i; KC_NODES is $KC_NODES"
  mkdir -p "$dir"/etc-{cni,kubernetes}
  network_node "$i"
  make_node_cgroups "$i"
  node_config "$i" "$dir/etc-kubernetes" "$dir/etc-cni"
  node_store "$dir"
  rm -f "$dir"/stop-* "$dir/init.pid"
  daemon "$dir/unshare.pid" "$dir/init.log" nsenter --net="/run/netns/kc-node-$i" unshare -m -p -u -i --fork \
    bash "$KC_HOME/lib/node-init.sh" "$i" "$dir" "$BIN" "$(node_ip "$i")"
  for _ in $(seq 600); do
    [ ! -s "$dir/init.pid" ] || return 0
    sleep 0.1
  done
  fail "node-$i did not start; its log: $dir/init.log"
}

# node_store DIR: the node's image store, made of hard links to the golden store. Blobs and unpacked layers
# are never written again, so sharing is safe; the two database files are real copies.
node_store() {
  local store=$1/lib-containerd new=$1/lib-containerd.new file
  [ -d "$GOLDEN" ] || return 0
  if [ -d "$store" ]; then
    if cmp -s "$GOLDEN.list" "$1/golden.list"; then return 0; fi
    rm -rf "$store"
  fi
  rm -rf "$new"
  cp -al "$GOLDEN" "$new"
  find "$new" -name '*.db' -printf '%P\n' | while read -r file; do
    cp --remove-destination "$GOLDEN/$file" "$new/$file"
  done
  cp "$GOLDEN.list" "$1/golden.list"
  mv "$new" "$store"
}

node_crash() {
  local dir
  dir=$(node_dir "$1")
  ip -n kc-net link set "kcv$1" down || true
  end "$dir/init.pid"
  gone "$dir/init.pid"
}

node_stop_kubelet() {
  touch "$(node_dir "$1")/stop-kubelet"
  node_enter "$1" kill -9 "$(cat "$(node_dir "$1")/kubelet.nspid")"
}
node_start_kubelet() { rm -f "$(node_dir "$1")/stop-kubelet"; }

# node_gpus I COUNT: extended resources nobody backs; the kubelet keeps them over its own restarts.
node_gpus() {
  kubectl patch node "node-$1" --subresource=status --type=merge \
    -p "{\"status\":{\"capacity\":{\"nvidia.com/gpu\":\"$2\"},\"allocatable\":{\"nvidia.com/gpu\":\"$2\"}}}"
}

nodes_wait() {
  local i names=()
  for i in $(seq "$KC_NODES"); do
    names+=("node/node-$i")
    for _ in $(seq 600); do
      ! kubectl get node "node-$i" >/dev/null 2>&1 || break
      sleep 0.2
    done
  done
  kubectl wait --for=condition=Ready "${names[@]}" --timeout=600s >/dev/null
}

nodes_down() {
  local file
  for file in "$KC_ROOT"/nodes/node-*/init.pid; do end "$file"; done
}

# node_config I KUBERNETES-DIR CNI-DIR: the files of one node.
node_config() {
  local i=$1 etc=$2 host
  cp "$PKI/ca.crt" "$etc/ca.crt"
  cp "$PKI/node-$i-server.crt" "$etc/kubelet-server.crt"
  cp "$PKI/node-$i-server.key" "$etc/kubelet-server.key"
  cp "$PKI/node-$i.conf" "$etc/kubelet.conf"
  cp "$PKI/kube-proxy.conf" "$etc/kube-proxy.conf"
  cat > "$3/10-kc.conflist" <<EOF
{"cniVersion": "0.4.0", "name": "kc", "plugins": [
  {"type": "bridge", "bridge": "cni0", "isDefaultGateway": true, "hairpinMode": true, "ipMasq": false,
   "ipam": {"type": "host-local", "ranges": [[{"subnet": "$KC_PODNET.$i.0/24"}]]}},
  {"type": "portmap", "capabilities": {"portMappings": true}},
  {"type": "bandwidth", "capabilities": {"bandwidth": true}}]}
EOF
  # Both names of an image, localhost/x:1 and 127.0.0.1:PORT/x:1, lead to the cluster's registry.
  for host in "127.0.0.1:$KC_REGISTRY_PORT" localhost; do
    mkdir -p "$etc/certs.d/$host"
    cat > "$etc/certs.d/$host/hosts.toml" <<EOF
server = "http://$KC_NET.1:$KC_REGISTRY_PORT"
[host."http://$KC_NET.1:$KC_REGISTRY_PORT"]
  capabilities = ["pull", "resolve"]
EOF
  done
  # oom_score 0 and restrict_oom_score_adj: lowering the score takes a capability that sandboxes lack.
  cat > "$etc/containerd.toml" <<EOF
version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
oom_score = 0
disabled_plugins = ["io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs"]
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "$PAUSE_IMAGE"
  restrict_oom_score_adj = true
  stream_server_address = "127.0.0.1"
  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = "/etc/kubernetes/certs.d"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "$KC_CNI_BIN"
    conf_dir = "/etc/cni/net.d"
EOF
  cat > "$etc/kubelet.yaml" <<EOF
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: $(node_ip "$i")
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
cgroupDriver: cgroupfs
cgroupRoot: /kc/node-$i
failCgroupV1: false
failSwapOn: false
oomScoreAdj: 0
enforceNodeAllocatable: []
systemReserved: {cpu: "$KC_RESERVED_CPU", memory: "$KC_RESERVED_MEMORY"}
evictionHard: {memory.available: "100Mi"}
imageGCHighThresholdPercent: 100
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: /etc/kubernetes/ca.crt}}
authorization: {mode: Webhook}
tlsCertFile: /etc/kubernetes/kubelet-server.crt
tlsPrivateKeyFile: /etc/kubernetes/kubelet-server.key
clusterDNS: [$DNS_IP]
clusterDomain: cluster.local
resolvConf: ""
syncFrequency: $KC_SYNC
configMapAndSecretChangeDetectionStrategy: Watch
nodeStatusUpdateFrequency: $KC_STATUS_FREQ
nodeLeaseDurationSeconds: $KC_LEASE
maxPods: $KC_MAX_PODS
EOF
  cat > "$etc/kube-proxy.yaml" <<EOF
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: $KC_PROXY_MODE
clientConnection: {kubeconfig: /etc/kubernetes/kube-proxy.conf}
clusterCIDR: $KC_PODNET.0.0/16
detectLocalMode: ClusterCIDR
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
healthzBindAddress: 127.0.0.1:10256
metricsBindAddress: 127.0.0.1:10249
EOF
}
