#!/bin/bash
# `make demo`: a cluster, the chart and the digits example, followed to its end.
#   CLUSTER=embedded (default) | kind | existing
set -euo pipefail
cd "$(dirname "$0")/.."
JOBS=${JOBS:-team-a}
export CLUSTER=${CLUSTER:-embedded}
say() { printf '\033[1m==> %s\033[0m\n' "$*"; }

hack/deploy.sh "$JOBS"
if [ "$CLUSTER" = embedded ]; then
  KUBECONFIG=$(cluster/kc kubeconfig)
  PATH=$(cluster/kc bin):$PATH
  export KUBECONFIG PATH
fi

say "training: kubectl apply -f examples/digits.yaml"
kubectl -n "$JOBS" delete trainingjob digits --ignore-not-found
kubectl -n "$JOBS" apply -f examples/digits.yaml
.venv/bin/kuangchao get digits -n "$JOBS" --watch

say "what it was: kuangchao describe digits"
.venv/bin/kuangchao describe digits -n "$JOBS"
say "who did what: kuangchao audit query --job digits"
created=$(kubectl -n "$JOBS" get trainingjob digits -o 'jsonpath={.metadata.creationTimestamp}')
.venv/bin/kuangchao audit query --job digits -n "$JOBS" --since "$created"

cat <<TEXT

The cluster stays up. To use it:
  export KUBECONFIG=${KUBECONFIG:-~/.kube/config} PATH=$(cluster/kc bin):\$PATH
  kubectl -n $JOBS get trainingjobs
To stop it: make down
TEXT
