#!/bin/bash
# Cluster, images, volumes and the chart, each only as far as it is not there yet. `make demo` and the e2e tests use it.
#   hack/deploy.sh [JOB_NAMESPACE]        CLUSTER=embedded (default) | kind | existing
set -euo pipefail
ROOT=$(cd "$(dirname "$0")/.." && pwd)
cd "$ROOT"
JOBS=${1:-team-a}
RELEASE=kuangchao-system
CLUSTER=${CLUSTER:-embedded}
say() { printf '\033[1m==> %s\033[0m\n' "$*"; }

# tree_tag FILE..: a tag that changes exactly when what goes into an image changes
tree_tag() { find "$@" -type f ! -name '*.pyc' | LC_ALL=C sort | xargs sha256sum | sha256sum | cut -c1-12; }
deps_tag() { { cat requirements/worker.txt; sed '/AS worker$/,$d' Dockerfile.worker; } | sha256sum | cut -c1-12; }

DEPS=localhost/kuangchao-worker-deps:$(deps_tag)
OPERATOR=kuangchao-operator:$(tree_tag Dockerfile.operator requirements/operator.txt contracts operator)
WORKER=kuangchao-worker:$(tree_tag Dockerfile.worker requirements/worker.txt contracts worker)

embedded_cluster() {
  cluster/kc doctor >/dev/null || cluster/kc install
  cluster/kc image-base
  cluster/kc podman image exists "$DEPS" || {
    say "building the dependencies of the worker (torch; once)"
    cluster/kc build -q -f Dockerfile.worker --target deps -t "$DEPS" .
  }
  say "starting the cluster"
  cluster/kc up --images "$DEPS"
  for image in "$OPERATOR" "$WORKER"; do
    cluster/kc podman image exists "localhost/$image" || {
      say "building $image"
      cluster/kc build -q -f "Dockerfile.$(echo "${image%%:*}" | cut -d- -f2)" --build-arg "DEPS_IMAGE=$DEPS" -t "localhost/$image" .
    }
    cluster/kc push "$image" >/dev/null
  done
  cluster/kc volume checkpoints "$JOBS" >/dev/null
  cluster/kc audit-tls "$RELEASE" >/dev/null
  PREFIX=127.0.0.1:5000/
  EXTRA=(--set auditWebhook.enabled=true)
}

kind_cluster() {
  docker info >/dev/null 2>&1 || { echo "CLUSTER=kind needs a Docker engine that answers; without one: make demo" >&2; exit 1; }
  mkdir -p /var/tmp/kuangchao-kind && chmod 2777 /var/tmp/kuangchao-kind   # the folder that all nodes share
  kind get clusters | grep -qx kuangchao || kind create cluster --name kuangchao --config hack/kind.yaml
  docker build -q -f Dockerfile.operator -t "$OPERATOR" . && docker build -q -f Dockerfile.worker -t "$WORKER" .
  kind load docker-image --name kuangchao "$OPERATOR" "$WORKER"
  own_clients
  kubectl apply -n "$JOBS" -f hack/kind-checkpoints.yaml >/dev/null
}

existing_cluster() {
  : "${IMAGE_PREFIX:?CLUSTER=existing needs IMAGE_PREFIX: a registry that holds $OPERATOR and $WORKER}"
  own_clients
  kubectl get -n "$JOBS" pvc checkpoints >/dev/null || { echo "CLUSTER=existing needs a ReadWriteMany claim: $JOBS/checkpoints" >&2; exit 1; }
  PREFIX=$IMAGE_PREFIX/
}

own_clients() {
  PREFIX= EXTRA=()
  kubectl() { command kubectl "$@"; }
  helm() { command helm "$@"; }
  kubectl create namespace "$JOBS" --dry-run=client -o yaml | kubectl apply -f - >/dev/null
}

kubectl() { cluster/kc kubectl "$@"; }
helm() { cluster/kc helm "$@"; }
"${CLUSTER}_cluster"

say "installing the chart"
helm upgrade --install kuangchao charts/kuangchao -n "$RELEASE" --create-namespace --wait --timeout 15m \
  --set "image.repository=$PREFIX${OPERATOR%%:*}" --set-string "image.tag=${OPERATOR##*:}" \
  --set "worker.image=$PREFIX$WORKER" --set "jobNamespaces={$JOBS}" "${EXTRA[@]}" >/dev/null
kubectl wait --for=condition=Established crd -l app.kubernetes.io/part-of=kuangchao --timeout=300s >/dev/null
kubectl apply -f examples/pool.yaml >/dev/null
kubectl wait rpool/cpu --for=condition=Ready --timeout=600s >/dev/null
say "ready: $(kubectl get rpool cpu --no-headers)"
