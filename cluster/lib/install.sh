# shellcheck shell=bash disable=SC2086   # lists of names are words on purpose
# Installation: Debian packages, and Kubernetes, CoreDNS and Helm built from pinned Go modules.

missing_packages() { # names...
  local name
  for name in "$@"; do
    dpkg-query -W -f '${Status}' "$name" 2>/dev/null | grep -q 'install ok installed' || echo "$name"
  done
}

# install_packages NAMES: installs what is missing and lets no package start or enable its service.
install_packages() {
  local missing policy=/usr/sbin/policy-rc.d
  missing=$(missing_packages "$@")
  [ -n "$missing" ] || return 0
  command -v apt-get >/dev/null || fail "no apt-get; install by hand:" $missing
  [ "$(id -u)" = 0 ] || fail "needs root to install:" $missing
  say "apt packages:" $missing
  if [ ! -e "$policy" ]; then
    trap 'rm -f /usr/sbin/policy-rc.d' EXIT
    printf '#!/bin/sh\nexit 101\n' > "$policy"
    chmod 755 "$policy"
  fi
  apt_install $missing || { apt-get update -qq && apt_install $missing; } || fail "apt could not install:" $missing
  if [ -d /run/systemd/system ]; then
    for unit in etcd docker-registry containerd podman.socket; do
      case " ${missing//$'\n'/ } " in
        *" ${unit%%.*}"*) systemctl disable --quiet "$unit" 2>/dev/null || true ;;
      esac
    done
  fi
  if [ "$(trap -p EXIT)" ]; then rm -f "$policy"; trap - EXIT; fi
}

apt_install() {
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

module_version() { # folder module
  awk -v m="$2" '{for (i = 1; i < NF; i++) if ($i == m && $(i+1) ~ /^v[0-9]/) {print $(i+1); exit}}' "$KC_HOME/tools/$1/go.mod"
}

# go_build FOLDER PACKAGE NAME [LDFLAGS]: one binary, unless it is there; moved into place when complete.
go_build() {
  [ ! -x "$BIN/$3" ] || return 0
  local part=$BIN/.$3.$$ started=$SECONDS
  (
    cd "$KC_HOME/tools/$1"
    export CGO_ENABLED=0 GOFLAGS="-buildvcs=false -modcacherw" GOCACHE=$GO_DIR/build GOMODCACHE=$GO_DIR/mod
    nice -n 5 go build -mod=readonly -trimpath -ldflags "-s -w ${4:-}" -o "$part" "$2"
  ) || { rm -f "$part"; fail "go build of $3 failed; run it again to resume"; }
  mv "$part" "$BIN/$3"
  say "built $3 in $((SECONDS - started)) s"
}

go_build_kubernetes() { # names...
  local name version
  version=$(module_version kubernetes k8s.io/kubernetes)
  for name in "$@"; do
    go_build kubernetes "k8s.io/kubernetes/cmd/$name" "$name" "-X k8s.io/component-base/version.gitVersion=$version"
  done
}

# install [--api-only]: with it, what `kc api` and tests of charts on it need
install_all() {
  local kubernetes="kube-apiserver kubectl kube-controller-manager" packages=$APT_PACKAGES_API
  if [ "${1:-}" != --api-only ]; then
    packages=$APT_PACKAGES
    kubernetes="$kubernetes kube-scheduler kubelet kube-proxy kubemark"   # each reuses packages of those before
  fi
  install_packages $packages
  mkdir -p "$BIN"
  exec 8> "$KUANGCHAO_CACHE/install.lock"
  flock 8
  rm -f "$BIN"/.*.[0-9]*
  GO_DIR=$KUANGCHAO_CACHE/go
  if [ "$(binaries_missing $kubernetes helm)" ]; then
    command -v go >/dev/null || fail "no go command; install Go 1.26 or newer and put it on PATH"
  fi
  go_build_kubernetes $kubernetes
  go_build helm helm.sh/helm/v3/cmd/helm helm "-X helm.sh/helm/v3/internal/version.version=$(module_version helm helm.sh/helm/v3)"
  if [ "${1:-}" != --api-only ]; then
    go_build pause . pause
    go_build coredns github.com/coredns/coredns coredns
    rm -rf "$GO_DIR"   # everything is built: 9 GB that nothing needs any more
  fi
  exec 8>&-
}

binaries_missing() { # names...
  local name
  for name in "$@"; do [ -x "$BIN/$name" ] || echo "$name"; done
}

need_binaries() { # names...
  local missing
  missing=$(binaries_missing "$@")
  [ -z "$missing" ] || fail "not built yet:" $missing "- run: cluster/kc install"
}
