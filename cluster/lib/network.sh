# shellcheck shell=bash
# Network. Namespace kc-net holds only the bridge and the table of cut links; kc-cp the control plane;
# kc-node-i one node. The machine's own namespace gets no link, address, route or rule: only two loopback
# listeners of forward.py. Never dial a pod or node address from there: without a route the packet would
# take the default route and leave the machine. Use `kc cp`, `kc kubectl port-forward` or the API server's proxy.

in_ns() { nsenter --net="/run/netns/$1" "${@:2}"; }

make_ns() {
  if ! in_ns "$1" true 2>/dev/null; then
    ip netns del "$1" 2>/dev/null || true   # the name without the namespace, left by a kill
    ip netns add "$1"
  fi
  ip -n "$1" link set lo up
}

# plug NAMESPACE PORT ADDRESS/24: a cable from eth0 of the namespace to the bridge.
plug() {
  make_ns "$1"
  ip -n kc-net link show "$2" >/dev/null 2>&1 || ip -n kc-net link add "$2" type veth peer name eth0 netns "$1"
  ip -n kc-net link set "$2" master "$BRIDGE"
  ip -n kc-net link set "$2" up
  ip -n "$1" addr replace "$3" dev eth0
  ip -n "$1" link set eth0 up
}

network_up() {
  make_ns kc-net
  ip -n kc-net link show "$BRIDGE" >/dev/null 2>&1 || ip -n kc-net link add "$BRIDGE" type bridge
  ip -n kc-net link set "$BRIDGE" up
  plug kc-cp kcvcp "$KC_NET.1/24"
}

# network_node I: the node's cable and the routes between pod ranges.
network_node() {
  local other
  plug "kc-node-$1" "kcv$1" "$(node_ip "$1")/24"
  ip -n "kc-node-$1" route replace default via "$KC_NET.1"
  for other in $(seq "$KC_NODES"); do
    [ "$other" = "$1" ] || ip -n "kc-node-$1" route replace "$KC_PODNET.$other.0/24" via "$(node_ip "$other")"
  done
  ip -n kc-cp route replace "$KC_PODNET.$1.0/24" via "$(node_ip "$1")"
}

# network_down: the cables, the bridge and its table vanish with the namespaces.
network_down() {
  local path
  for path in /run/netns/kc-net /run/netns/kc-cp /run/netns/kc-node-*; do
    [ ! -e "$path" ] || ip netns del "${path##*/}" || true
  done
  # The mount `ip netns add` makes for its folder, if nobody else has a namespace there.
  if [ -d /run/netns ] && [ -z "$(ls /run/netns)" ]; then umount /run/netns 2>/dev/null || true; fi
}

link() {
  case ${2:-} in up | down) ;; *) fail "link I|cp up|down" ;; esac
  ip -n kc-net link set "kcv$1" "$2"
}

# partition I J|cp: cuts only the traffic between two ports of the bridge, both ways.
partition() {
  [ -n "${2:-}" ] || fail "partition I J|cp"
  in_ns kc-net nft add table bridge kc
  in_ns kc-net nft 'add chain bridge kc cut { type filter hook forward priority 0; }'
  in_ns kc-net nft add rule bridge kc cut iifname "kcv$1" oifname "kcv$2" drop
  in_ns kc-net nft add rule bridge kc cut iifname "kcv$2" oifname "kcv$1" drop
}

heal() {
  local port
  in_ns kc-net nft delete table bridge kc 2>/dev/null || true
  for port in $(seq "$KC_NODES") cp; do
    ip -n kc-net link set "kcv$port" up 2>/dev/null || true
  done
}
