# shellcheck shell=bash disable=SC2034
# Settings of the embedded cluster. Each can be overridden from the environment.
# `kc up` records the values it used; the other commands read them from there, so that
# only `kc up` needs the environment variables.

set -a
: "${KUANGCHAO_CACHE:=${HOME:-/root}/.cache/kuangchao}"   # binaries, images, golden store: kept by `kc down --purge`
: "${KC_ROOT:=/var/lib/kuangchao}"   # state of the cluster: keys, etcd, nodes, registry, volumes, logs
if [ "${KC_COMMAND:-}" != up ] && [ -r "$KC_ROOT/run/settings" ]; then
  # shellcheck disable=SC1091
  . "$KC_ROOT/run/settings"
fi

# ---- size and addresses
: "${KC_NODES:=3}"
: "${KC_PORT:=6443}"            # the API server on the machine's loopback
: "${KC_REGISTRY_PORT:=5000}"   # the image registry on the machine's loopback
: "${KC_REVERSE:=}"             # loopback ports of the machine that the cluster reaches as $KC_NET.1:PORT
: "${KC_NET:=172.30.0}"         # /24 of the nodes: .1 is the control plane, .(10+i) is node-i
: "${KC_PODNET:=10.244}"        # node-i gives its pods addresses of $KC_PODNET.i.0/24
: "${KC_SVC:=10.96}"            # service addresses $KC_SVC.0.0/16; cluster DNS is .0.10

# ---- node loss. Kubernetes' own defaults (grace 50s, monitor 5s, lease 40, status 10s, toleration 300,
# sync 1m) would make every test of a lost node last six minutes.
: "${KC_GRACE:=16s}"            # controller manager: silence until a node counts as lost
: "${KC_MONITOR:=1s}"           # controller manager: how often it looks
: "${KC_LEASE:=8}"              # kubelet: lease seconds, renewed every quarter of it
: "${KC_STATUS_FREQ:=2s}"       # kubelet: how often node status is computed
: "${KC_TOLERATION:=5}"         # seconds a pod stays on a lost node before it is marked for deletion
: "${KC_SYNC:=1s}"              # kubelet: how soon a changed Secret reaches the files of a pod

# ---- nodes
: "${KC_RESERVED_CPU:=0}"       # taken off each node's allocatable CPU; every node sees all CPUs of the machine
: "${KC_RESERVED_MEMORY:=0}"    # the same for memory, e.g. 16Gi
: "${KC_MAX_PODS:=100}"
: "${KC_PROXY_MODE:=nftables}"
: "${KC_CNI_BIN:=/usr/lib/cni}"

# ---- control plane
: "${KC_APISERVER_ARGS:=}"      # further flags
: "${KC_KCM_ARGS:=}"
: "${KC_SCHEDULER_ARGS:=}"
: "${KC_AUDIT_URL=https://$KC_NET.11:30443/v1/k8s-audit}"   # audit webhook (mutual TLS); empty: no audit
: "${KC_AUDIT_POLICY:=$KC_HOME/manifests/audit-policy.yaml}"
: "${KC_AUDIT_ARGS:=--audit-webhook-batch-max-wait=1s --audit-webhook-initial-backoff=1s}"

# ---- images and volumes
: "${KC_IMAGES:=}"              # images every node holds from the start, as with `kc up --images`
: "${KC_BASE_IMAGE:=localhost/kuangchao-base:1}"
: "${KC_BASE_SUITE:=bookworm}"
: "${KC_VOLUME_GID:=65532}"     # group that may write to volumes
: "${KC_HOLLOW_RESOURCES:=nvidia.com/gpu=8}"
: "${KC_PYTHON:=$(command -v /usr/bin/python3 || command -v python3 || echo python3)}"   # 3.9 or newer, standard library only
set +a

KC_RECORDED="KC_NODES KC_PORT KC_REGISTRY_PORT KC_REVERSE KC_NET KC_PODNET KC_SVC KC_GRACE KC_MONITOR KC_LEASE
KC_STATUS_FREQ KC_TOLERATION KC_SYNC KC_RESERVED_CPU KC_RESERVED_MEMORY KC_MAX_PODS KC_PROXY_MODE KC_CNI_BIN
KC_APISERVER_ARGS KC_KCM_ARGS KC_SCHEDULER_ARGS KC_AUDIT_URL KC_AUDIT_POLICY KC_AUDIT_ARGS KC_IMAGES KC_VOLUME_GID"

# ---- derived
PKI=$KC_ROOT/pki
RUN=$KC_ROOT/run
LOGS=$KC_ROOT/log
VOLUMES=$KC_ROOT/volumes        # every node sees it at this path
GOLDEN=$KUANGCHAO_CACHE/golden
API=https://$KC_NET.1:6443      # as the nodes, the controller manager and the scheduler see it
ADMIN_CONF=$KC_ROOT/admin.conf
BRIDGE=kcbr0                    # in namespace kc-net, with one port kcv$i per node and kcvcp for the control plane
DNS_IP=$KC_SVC.0.10
APT_PACKAGES="podman containerd runc containernetworking-plugins etcd-server docker-registry nftables iproute2 debootstrap openssl util-linux ca-certificates"
APT_PACKAGES_API="etcd-server openssl util-linux"

node_ip() { echo "$KC_NET.$((10 + $1))"; }

# bin_dir: where the binaries of this version of cluster/tools are or will be.
bin_dir() {
  local hash
  hash=$(cd "$KC_HOME/tools" && find . -type f ! -name '*.md' | LC_ALL=C sort | xargs sha256sum | sha256sum)
  echo "$KUANGCHAO_CACHE/bin/${hash:0:16}"
}
BIN=$(bin_dir)

# record_settings: keeps the values of this `kc up`, each only a default for the commands to come.
record_settings() {
  local name
  for name in $KC_RECORDED; do
    # shellcheck disable=SC2016
    printf '[ -n "${%s+set}" ] || %s=%q\n' "$name" "$name" "${!name}"
  done > "$RUN/settings.new"
  mv "$RUN/settings.new" "$RUN/settings"
}

say() { printf '%6.1fs  %s\n' "$(awk -v now="${EPOCHREALTIME/,/.}" -v then="$KC_STARTED" 'BEGIN{print now-then}')" "$*"; }
fail() { echo "kc: $*" >&2; exit 1; }
KC_STARTED=${EPOCHREALTIME/,/.}
