{{/* Names are fixed: the CRDs allow one installation per cluster, and certificates carry the Service's name. */}}

{{- define "kuangchao.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: kuangchao
app.kubernetes.io/name: kuangchao
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* (list . "component"): labels that a selector may use; they never change. */}}
{{- define "kuangchao.selector" -}}
app.kubernetes.io/name: kuangchao
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "kuangchao.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end }}

{{- define "kuangchao.workerImage" -}}
{{ .Values.worker.image | default (printf "kuangchao-worker:%s" .Chart.AppVersion) }}
{{- end }}

{{- define "kuangchao.gateUrl" -}}
https://kuangchao-operator.{{ .Release.Namespace }}.svc:8443
{{- end }}

{{- define "kuangchao.allNamespaces" -}}
{{- if has "*" .Values.jobNamespaces }}true{{ end -}}
{{- end }}

{{- define "kuangchao.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "kuangchao.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* The pod's account as a volume of its own, so that it is mounted into the container that needs it and no other. */}}
{{- define "kuangchao.apiToken" -}}
- name: api
  projected:
    defaultMode: 0440
    sources:
      - serviceAccountToken: {path: token, expirationSeconds: 3607}
      - configMap: {name: kube-root-ca.crt, items: [{key: ca.crt, path: ca.crt}]}
      - downwardAPI: {items: [{path: namespace, fieldRef: {fieldPath: metadata.namespace}}]}
{{- end }}

{{/* What the operator may do where jobs are. */}}
{{- define "kuangchao.jobRules" -}}
- apiGroups: [""]
  resources: [pods, services, configmaps]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [secrets]
  verbs: [get, create, patch, delete]
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [get, list]
{{- end }}
