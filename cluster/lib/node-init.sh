#!/bin/bash
# PID 1 of one node, in net, mount, pid, uts and ipc namespaces of its own. Killing it is the node's power
# loss: the kernel ends everything in the pid namespace, and the mounts go with the mount namespace.
set -u
I=$1
DIR=$2
BIN=$3
IP=$4
read -r HOST_PID _ < /proc/self/stat        # /proc is still the machine's, so this is the pid seen from there
echo "$HOST_PID" > "$DIR/init.pid"
hostname "node-$I"
mount --make-rprivate /
mount -t proc proc /proc

# The node's own copy of the standard paths. What a reboot would lose is lost.
rm -rf "$DIR/run" "$DIR/lib-cni"
mkdir -p "$DIR"/run/{containerd,netns} "$DIR"/{lib-cni,lib-containerd,lib-kubelet,log-pods,log-containers,etc-cni,etc-kubernetes}
own() {
  mkdir -p "$2"
  mount --bind "$DIR/$1" "$2"
}
own run/containerd /run/containerd
own run/netns /run/netns
own lib-cni /var/lib/cni
own lib-containerd /var/lib/containerd
own lib-kubelet /var/lib/kubelet
own log-pods /var/log/pods
own log-containers /var/log/containers
own etc-cni /etc/cni/net.d
own etc-kubernetes /etc/kubernetes
mount --make-rshared /                      # kubelet and runc want a shared root; its peers are all in this node
sysctl -qw net.ipv4.ip_forward=1 net.bridge.bridge-nf-call-iptables=1 || true

# keep NAME COMMAND...: runs it, and again a second after it ended, unless the file stop-NAME exists.
keep() {
  local name=$1 pid
  shift
  while :; do
    if [ -e "$DIR/stop-$name" ]; then
      sleep 0.2
      continue
    fi
    "$@" >> "$DIR/$name.log" 2>&1 &
    pid=$!
    echo "$pid" > "$DIR/$name.nspid"
    wait "$pid"
    echo "--- $name left with $?" >> "$DIR/$name.log"
    sleep 1
  done
}

keep containerd containerd -c /etc/kubernetes/containerd.toml &
for _ in $(seq 100); do
  [ ! -S /run/containerd/containerd.sock ] || break
  sleep 0.1
done
keep kubelet "$BIN/kubelet" --kubeconfig=/etc/kubernetes/kubelet.conf --config=/etc/kubernetes/kubelet.yaml \
  --hostname-override="node-$I" --node-ip="$IP" --node-labels="kc.cluster/index=$I" &
keep kube-proxy "$BIN/kube-proxy" --config=/etc/kubernetes/kube-proxy.yaml --hostname-override="node-$I" &
while :; do                                 # bash reaps the orphans: shims get PID 1 as their parent
  wait
  sleep 1
done
