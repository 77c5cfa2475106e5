# shellcheck shell=bash
# Volumes are folders of the machine, which every node sees at the same path: directory mode 2770 and
# group $KC_VOLUME_GID. They are hostPath volumes, as the kubelet then leaves owners alone, like most
# network file systems do: a pod gets in as uid 65532, or by fsGroup or supplementalGroups of that group.
#
# Claims of class kc-shared (the default class) get a volume by themselves from provisioner.py, in any
# access mode; deleting the claim deletes the folder. `kc volume` makes one that outlives its claim.

storage_class() {
  kubectl apply -f - >/dev/null <<EOF
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata:
  name: kc-shared
  annotations: {storageclass.kubernetes.io/is-default-class: "true"}
provisioner: kc.cluster/folder
volumeBindingMode: Immediate
reclaimPolicy: Delete
EOF
}

volume() { # name [namespace [size]]
  local name=$1 namespace=${2:-default} size=${3:-10Gi} dir
  dir=$VOLUMES/$namespace.$name
  mkdir -p "$dir"
  chown "$KC_VOLUME_GID:$KC_VOLUME_GID" "$dir"
  chmod 2770 "$dir"
  kubectl create namespace "$namespace" --dry-run=client -o yaml | kubectl apply -f - >/dev/null 2>&1
  # A volume whose claim was deleted stays bound to the uid of that claim; this frees it for the new one. Never while
  # the claim lives: the claim would be Lost for good.
  if [ "$(kubectl get pv "$namespace.$name" -o 'jsonpath={.status.phase}' --ignore-not-found)" = Released ]; then
    kubectl patch pv "$namespace.$name" --type=json -p '[{"op": "remove", "path": "/spec/claimRef/uid"}]' >/dev/null
  fi
  kubectl apply -f - <<EOF
apiVersion: v1
kind: PersistentVolume
metadata: {name: "$namespace.$name"}
spec:
  capacity: {storage: $size}
  accessModes: [ReadWriteMany, ReadWriteOnce]
  storageClassName: kc-shared
  persistentVolumeReclaimPolicy: Retain
  claimRef: {apiVersion: v1, kind: PersistentVolumeClaim, namespace: "$namespace", name: "$name"}
  hostPath: {path: "$dir", type: Directory}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: "$name", namespace: "$namespace"}
spec:
  accessModes: [ReadWriteMany]
  storageClassName: kc-shared
  volumeName: "$namespace.$name"
  resources: {requests: {storage: $size}}
EOF
}
