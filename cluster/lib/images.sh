# shellcheck shell=bash
# Images. Podman builds them into a store of its own below the cache, without an engine.
#
#   golden    a containerd store that holds the heavy images, each layer unpacked once; every node starts
#             from hard links to it. For what rarely changes: base image, dependencies.
#   registry  in the cluster; `push` sends only the layers golden lacks. For code that changes every minute.

PAUSE_IMAGE=localhost/kuangchao-pause:1
COREDNS_IMAGE=localhost/kuangchao-coredns:1

# pod ARGS: podman in mount and pid namespaces of its own, so that a killed kc leaves no mounts and no processes.
pod() {
  local dir=$KUANGCHAO_CACHE/podman
  if [ ! -s "$dir/storage.conf" ]; then
    mkdir -p "$dir"
    cat > "$dir/storage.conf.new" <<EOF
[storage]
driver = "overlay"
graphroot = "$dir/storage"
runroot = "$dir/run"
[storage.options.overlay]
mountopt = "nodev"
EOF
    mv "$dir/storage.conf.new" "$dir/storage.conf"
  fi
  CONTAINERS_STORAGE_CONF=$dir/storage.conf TMPDIR=${TMPDIR:-/var/tmp} \
    setpriv --pdeathsig KILL unshare -m -p --fork --kill-child=KILL --mount-proc --propagation private podman --cgroup-manager cgroupfs --events-backend none "$@"
}

# pod_build ARGS: one build at a time, so that two that share layers make them once; what a killed build
# left in the store goes first.
pod_build() {
  local left status=0
  mkdir -p "$KUANGCHAO_CACHE"
  exec 7> "$KUANGCHAO_CACHE/build.lock"
  flock 7
  left=$(pod ps -aq --external)
  # shellcheck disable=SC2086
  [ -z "$left" ] || pod rm -f $left >/dev/null 2>&1 || true
  pod build --isolation chroot "$@" || status=$?
  exec 7>&-
  return "$status"
}

# local_name IMAGE: x -> localhost/x:latest, as podman names what it builds.
local_name() {
  local name=$1
  case ${name%%/*} in
    localhost | *:* | *.*) [ "${name#*/}" != "$name" ] || name=localhost/$name ;;
    *) name=localhost/$name ;;
  esac
  case ${name##*/} in *:*) ;; *) name=$name:latest ;; esac
  echo "$name"
}

image_id() { pod image inspect -f '{{.Id}}' "$1" 2>/dev/null; }

# single_binary_image NAME BINARY [USER]: an image that is one static program.
single_binary_image() {
  local dir
  dir=$(mktemp -d)
  ln "$BIN/$2" "$dir/$2" 2>/dev/null || cp "$BIN/$2" "$dir/$2"
  printf 'FROM scratch\nCOPY %s /%s\nENTRYPOINT ["/%s"]\n' "$2" "$2" "$2" > "$dir/Dockerfile"
  pod_build -q --label "kc.binary=$(sha256sum < "$BIN/$2" | cut -c1-16)" -t "$1" "$dir" >/dev/null
  rm -rf "$dir"
}

system_images() {
  [ "$(pod image inspect -f '{{index .Labels "kc.binary"}}' "$PAUSE_IMAGE" 2>/dev/null)" = "$(sha256sum < "$BIN/pause" | cut -c1-16)" ] ||
    single_binary_image "$PAUSE_IMAGE" pause
  [ "$(pod image inspect -f '{{index .Labels "kc.binary"}}' "$COREDNS_IMAGE" 2>/dev/null)" = "$(sha256sum < "$BIN/coredns" | cut -c1-16)" ] ||
    single_binary_image "$COREDNS_IMAGE" coredns
}

# apt_mirror: the first mirror of this machine's apt sources that carries its own release.
apt_mirror() {
  local release
  release=$(. /etc/os-release && echo "$VERSION_CODENAME")
  { cat /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources 2>/dev/null || true; } |
    awk -v release="$release" '
      found { next }
      $1 == "deb" { i = 2; if ($2 ~ /^\[/) { while ($i !~ /\]$/) i++; i++ } if ($(i+1) == release) found = $i }
      $1 == "URIs:" { uri = $2 }
      $1 == "Suites:" { for (i = 2; i <= NF; i++) if ($i == release) found = uri }
      END { print found }'
}

# image_base: a small Debian with python, pip, venv and user 65532, for `ARG BASE_IMAGE` of the Dockerfiles.
image_base() {
  local dir mirror
  if pod image exists "$KC_BASE_IMAGE" && [ "${1:-}" != --force ]; then
    echo "$KC_BASE_IMAGE is there; image-base --force makes it anew"
    return 0
  fi
  lock
  mirror=$(apt_mirror)
  [ -n "$mirror" ] || fail "no mirror of this release in /etc/apt/sources.list*"
  dir=$KUANGCHAO_CACHE/base.tmp
  rm -rf "$dir"
  mkdir -p "$dir"
  unshare -m --propagation private debootstrap --variant=minbase \
    --include=python3,python3-venv,python3-pip,ca-certificates "$KC_BASE_SUITE" "$dir" "$mirror" > "$LOGS/debootstrap.log" 2>&1 ||
    fail "debootstrap failed; its log: $LOGS/debootstrap.log"
  rm -f "$dir"/usr/lib/python3*/EXTERNALLY-MANAGED   # the container is the environment: plain pip install works, as in python:3.11-slim
  ln -s /usr/bin/python3 "$dir/usr/local/bin/python"
  ln -s /usr/bin/python3 "$dir/usr/local/bin/python3"
  rm -rf "$dir"/var/cache/apt/archives/*.deb "$dir"/var/lib/apt/lists/* "$dir"/usr/share/{doc,man,locale}/* "$dir"/var/log/*
  echo "nonroot:x:65532:" >> "$dir/etc/group"
  echo "nonroot:x:65532:65532:nonroot:/home/nonroot:/usr/sbin/nologin" >> "$dir/etc/passwd"
  mkdir -p "$dir/home/nonroot"
  chown 65532:65532 "$dir/home/nonroot"
  tar -C "$dir" -c . | pod import -q --change 'CMD ["python3"]' --change 'ENV PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin' \
    --change 'ENV PYTHONUNBUFFERED=1' - "$KC_BASE_IMAGE" >/dev/null
  rm -rf "$dir"
  say "made $KC_BASE_IMAGE"
}

# pip_mounts DIR: volume flags that give a build this machine's pip settings (index, certificates, local
# wheels) for its RUN steps only. Nothing of it enters the image but the empty mount points.
pip_mounts() {
  local conf=$1/pip.conf key value
  printf '[global]\nno-cache-dir = true\ndisable-pip-version-check = true\n' > "$conf"
  printf '%s\n' -v "$conf:/etc/pip.conf:ro"
  "$KC_PYTHON" -m pip config list > "$1/settings" 2>/dev/null || pip config list > "$1/settings" 2>/dev/null || true
  for key in index-url extra-index-url trusted-host timeout default-timeout cert find-links; do
    value=$(sed -n "s/^[^.]*\.$key='\(.*\)'\$/\1/p" "$1/settings" | tail -n 1)
    value=${value:-$(sed -n "s/^:env:\.$key='\(.*\)'\$/\1/p" "$1/settings" | tail -n 1)}
    [ -n "$value" ] || continue
    case $key in
      cert)
        cp -L "$value" "$1/ca.crt"
        printf '%s\n' -v "$1/ca.crt:/run/kuangchao-build/ca.crt:ro"
        value=/run/kuangchao-build/ca.crt ;;
      find-links)
        if [ -d "$value" ]; then printf '%s\n' -v "$value:/run/kuangchao-build/wheels:ro"; value=/run/kuangchao-build/wheels; fi ;;
      default-timeout) key=timeout ;;
    esac
    echo "$key = ${value//\\n/ }" >> "$conf"
  done
}

# image_build ARGS: as `podman build`. The default base image of the Dockerfiles is replaced by ours.
image_build() {
  local dir mounts args=()
  dir=$(mktemp -d)
  chmod 755 "$dir"
  mapfile -t mounts < <(pip_mounts "$dir")
  case " $* " in *" BASE_IMAGE="* | *"=BASE_IMAGE="*) ;; *) args=(--build-arg "BASE_IMAGE=$KC_BASE_IMAGE") ;; esac
  local status=0
  pod_build --network host "${mounts[@]}" "${args[@]}" "$@" || status=$?
  rm -rf "$dir"
  return "$status"
}

# golden IMAGE.. | --drop IMAGE.. | --reset: nodes that run are made anew (power loss and boot) when the store changed.
golden() {
  lock
  case ${1:-} in
    "") cat "$GOLDEN.list" ;;
    --reset)
      ! ls -d "$KC_ROOT"/nodes/node-* >/dev/null 2>&1 || fail "nodes exist; first: kc down --purge"
      rm -rf "$GOLDEN" "$GOLDEN.list" ;;
    --drop)
      shift
      golden_run golden_drop "$@"
      nodes_renew ;;
    *)
      golden_add "$@"
      nodes_renew ;;
  esac
}

# golden_add IMAGE..: imports those that are not there with the same id.
golden_add() {
  local image id need=()
  for image in "$@"; do
    image=$(local_name "$image")
    id=$(image_id "$image") || fail "no image $image; build it first: kc build"
    grep -qsxF "$image $id" "$GOLDEN.list" || need+=("$image $id")
  done
  [ "${#need[@]}" -gt 0 ] || return 0
  golden_run golden_import "${need[@]}"
}

golden_import() { # "image id"...
  local line started
  for line in "$@"; do
    started=$SECONDS
    pod save "${line% *}" | ctr -a "$socket" -n k8s.io images import - > /dev/null
    golden_relist "${line% *}" "$line"   # listed only when complete
    say "golden: ${line% *} in $((SECONDS - started)) s"
  done
}

golden_drop() { # image..
  local image
  for image in "$@"; do
    image=$(local_name "$image")
    golden_relist "$image"
    ctr -a "$socket" -n k8s.io images rm --sync "$image"
  done
}

# golden_relist IMAGE [LINE]: replaces the image's line in the list of what golden holds.
golden_relist() {
  {
    grep -v "^$1 " "$GOLDEN.list" 2>/dev/null || true
    [ -z "${2:-}" ] || echo "$2"
  } > "$GOLDEN.list.new"
  mv "$GOLDEN.list.new" "$GOLDEN.list"
}

# golden_run COMMAND..: runs it with a containerd on the golden store; its socket is $socket.
golden_run() (
  tmp=$RUN/golden
  socket=$tmp/containerd.sock
  rm -rf "$tmp"
  mkdir -p "$tmp" "$GOLDEN"
  cat > "$tmp/containerd.toml" <<EOF
version = 2
root = "$GOLDEN"
state = "$tmp/state"
oom_score = 0
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs"]
[grpc]
  address = "$socket"
EOF
  unshare -m --propagation private containerd -c "$tmp/containerd.toml" > "$LOGS/golden.log" 2>&1 &
  containerd=$!
  trap 'kill $containerd 2>/dev/null; wait $containerd 2>/dev/null; rm -rf "$tmp"' EXIT
  for _ in $(seq 600); do
    [ ! -S "$socket" ] || break
    sleep 0.1
  done
  "$@"
)

# nodes_renew: nodes whose store is older than golden lose power and come back with a new one.
nodes_renew() {
  local dir
  for dir in "$KC_ROOT"/nodes/node-*; do
    if [ ! -d "$dir/lib-containerd" ] || cmp -s "$GOLDEN.list" "$dir/golden.list"; then continue; fi
    if alive "$dir/init.pid"; then
      node_crash "${dir##*-}"
      node_boot "${dir##*-}"
      say "node-${dir##*-} made anew with the images added"
    fi
  done
}

# image_push IMAGE..: localhost/x:1 becomes 127.0.0.1:PORT/x:1 in the registry; pods may use either name.
# Layers golden holds are hard-linked into the registry first, so podman finds them there.
image_push() {
  local image name repo digest hash blobs=$GOLDEN/io.containerd.content.v1.content/blobs/sha256
  local registry=$KC_ROOT/registry/docker/registry/v2
  [ $# -gt 0 ] || fail "push IMAGE.."
  alive "$RUN/registry.pid" || fail "the registry does not run; first: kc up"
  for image in "$@"; do
    image=$(local_name "$image")
    name=${image#*/}
    repo=${name%:*}
    for digest in $(pod image inspect -f '{{range .RootFS.Layers}}{{println .}}{{end}}' "$image"); do
      hash=${digest#sha256:}
      [ -f "$blobs/$hash" ] || continue
      mkdir -p "$registry/blobs/sha256/${hash:0:2}/$hash" "$registry/repositories/$repo/_layers/sha256/$hash"
      [ -f "$registry/blobs/sha256/${hash:0:2}/$hash/data" ] || ln "$blobs/$hash" "$registry/blobs/sha256/${hash:0:2}/$hash/data"
      printf '%s' "$digest" > "$registry/repositories/$repo/_layers/sha256/$hash/link"
    done
    pod push -q --tls-verify=false "$image" "127.0.0.1:$KC_REGISTRY_PORT/$name"
    echo "127.0.0.1:$KC_REGISTRY_PORT/$name"
  done
}
