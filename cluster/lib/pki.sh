# shellcheck shell=bash
# Keys and certificates: one CA for the cluster, one for API aggregation, a key for ServiceAccount tokens.
# Every file is moved into place whole, so a kill never leaves half a certificate. Works in the folder $PKI.

new_ca() { # name subject
  [ ! -s "$PKI/$1.crt" ] || return 0
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout "$PKI/$1.key" -out "$PKI/$1.crt.new" \
    -days 3650 -subj "$2" -addext keyUsage=critical,keyCertSign,cRLSign 2>/dev/null
  mv "$PKI/$1.crt.new" "$PKI/$1.crt"
}

new_token_key() {
  [ ! -s "$PKI/sa.pub" ] || return 0
  openssl genrsa -out "$PKI/sa.key" 2048 2>/dev/null
  openssl rsa -in "$PKI/sa.key" -pubout -out "$PKI/sa.pub.new" 2>/dev/null
  mv "$PKI/sa.pub.new" "$PKI/sa.pub"
}

new_cert() { # name subject [subjectAltName [ca]]
  [ ! -s "$PKI/$1.crt" ] || return 0
  local base=$PKI/$1 ca=$PKI/${4:-ca}
  {
    echo "extendedKeyUsage=clientAuth,serverAuth"
    echo "keyUsage=digitalSignature"
    [ -z "${3:-}" ] || echo "subjectAltName=$3"
  } > "$base.ext"
  openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout "$base.key" -out "$base.csr" -subj "$2" 2>/dev/null
  openssl x509 -req -in "$base.csr" -CA "$ca.crt" -CAkey "$ca.key" -set_serial "0x$(openssl rand -hex 16)" \
    -days 3650 -out "$base.crt.new" -extfile "$base.ext" 2>/dev/null
  rm "$base.ext" "$base.csr"
  mv "$base.crt.new" "$base.crt"
}

new_kubeconfig() { # certificate file server
  cat > "$2.new" <<EOF
apiVersion: v1
kind: Config
clusters: [{name: kc, cluster: {server: "$3", certificate-authority-data: $(base64 -w0 "$PKI/ca.crt")}}]
users: [{name: u, user: {client-certificate-data: $(base64 -w0 "$PKI/$1.crt"), client-key-data: $(base64 -w0 "$PKI/$1.key")}}]
contexts: [{name: kc, context: {cluster: kc, user: u}}]
current-context: kc
EOF
  chmod 600 "$2.new"
  mv "$2.new" "$2"
}

SERVICE_NAMES=DNS:localhost,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:kubernetes.default.svc.cluster.local

# pki_cluster: what the whole cluster needs; the nodes' own certificates included.
pki_cluster() {
  local i
  mkdir -p "$PKI"
  chmod 700 "$PKI"
  new_ca ca /CN=kc-ca
  new_ca front-ca /CN=kc-front-ca
  new_token_key
  new_cert apiserver /CN=kube-apiserver "IP:$KC_NET.1,IP:$KC_SVC.0.1,IP:127.0.0.1,$SERVICE_NAMES"
  new_cert apiserver-kubelet /O=system:masters/CN=apiserver-kubelet
  new_cert front-proxy /CN=front-proxy-client "" front-ca
  new_cert audit /CN=kube-apiserver-audit
  new_cert admin /O=system:masters/CN=admin
  new_kubeconfig admin "$ADMIN_CONF" "https://127.0.0.1:$KC_PORT"
  new_kubeconfig admin "$PKI/admin-inside.conf" "$API"
  new_cert kcm /CN=system:kube-controller-manager
  new_kubeconfig kcm "$PKI/kcm.conf" "$API"
  new_cert scheduler /CN=system:kube-scheduler
  new_kubeconfig scheduler "$PKI/scheduler.conf" "$API"
  new_cert kube-proxy /CN=system:kube-proxy
  new_kubeconfig kube-proxy "$PKI/kube-proxy.conf" "$API"
  for i in $(seq "$KC_NODES"); do
    new_cert "node-$i" "/O=system:nodes/CN=system:node:node-$i"
    new_kubeconfig "node-$i" "$PKI/node-$i.conf" "$API"
    new_cert "node-$i-server" "/CN=node-$i" "IP:$(node_ip "$i"),DNS:node-$i"
  done
}

# audit_tls NAMESPACE: the serving certificate of the operator's audit listener, as Secret kuangchao-audit-tls.
# ca.crt is the cluster's CA, which also signs kubelets and components: the listener must check that the
# client's common name is kube-apiserver-audit, a valid chain alone proves too little.
audit_tls() {
  local namespace=${1:?audit-tls NAMESPACE} i names=DNS:localhost,IP:127.0.0.1
  for i in $(seq 1 "$((KC_NODES > 16 ? KC_NODES : 16))"); do names=$names,IP:$(node_ip "$i"); done
  names=$names,DNS:kuangchao-operator.$namespace.svc,DNS:kuangchao-operator.$namespace.svc.cluster.local
  new_cert "audit-server.$namespace" /CN=kuangchao-audit "$names"
  kubectl create namespace "$namespace" --dry-run=client -o yaml | kubectl apply -f - >/dev/null
  kubectl -n "$namespace" apply -f - <<EOF
apiVersion: v1
kind: Secret
metadata: {name: kuangchao-audit-tls}
type: kubernetes.io/tls
data:
  tls.crt: $(base64 -w0 "$PKI/audit-server.$namespace.crt")
  tls.key: $(base64 -w0 "$PKI/audit-server.$namespace.key")
  ca.crt: $(base64 -w0 "$PKI/ca.crt")
EOF
}
