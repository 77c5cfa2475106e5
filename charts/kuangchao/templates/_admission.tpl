{{/*
Parts of the ValidatingAdmissionPolicies: who is who, as text of CEL. Accounts are compared by the whole name that the API
server gives them, never by a part of it.
*/}}

{{- define "kuangchao.operatorAccounts" -}}
{{- $account := printf "system:serviceaccount:%s:kuangchao-operator" .Release.Namespace -}}
{{- concat (list $account) .Values.admission.operatorAccounts | uniq | toJson -}}
{{- end }}

{{/* What Kubernetes itself does to any object: collect garbage, empty a namespace, rewrite it in a newer version. */}}
{{- define "kuangchao.systemAccounts" -}}
{{- list
  "system:serviceaccount:kube-system:generic-garbage-collector"
  "system:serviceaccount:kube-system:namespace-controller"
  "system:serviceaccount:kube-system:storage-version-migrator-controller"
  "system:kube-controller-manager" | toJson -}}
{{- end }}

{{- define "kuangchao.byOperator" -}}
request.userInfo.username in {{ include "kuangchao.operatorAccounts" . }}
{{- end }}

{{- define "kuangchao.bySystem" -}}
request.userInfo.username in {{ include "kuangchao.systemAccounts" . }}
{{- end }}

{{- define "kuangchao.byGitops" -}}
request.userInfo.username in {{ .Values.people.gitops | toJson }}
{{- end }}

{{- define "kuangchao.byAdministrator" -}}
(request.userInfo.username in {{ .Values.people.administrators.users | toJson }} || (has(request.userInfo.groups) && request.userInfo.groups.exists(g, g in {{ .Values.people.administrators.groups | toJson }})))
{{- end }}

{{/* Not empty if somebody is named an administrator; with nobody named, RBAC alone decides what they would. */}}
{{- define "kuangchao.administered" -}}
{{- if or .Values.people.administrators.users .Values.people.administrators.groups }}true{{ end -}}
{{- end }}

{{/* (list . "suffix"): metadata of a policy or of its binding. */}}
{{- define "kuangchao.policyMetadata" -}}
name: {{ (index . 0).Release.Name }}-{{ index . 1 }}
labels:
  {{- include "kuangchao.labels" (index . 0) | nindent 2 }}
  app.kubernetes.io/component: admission
{{- end }}

{{/* (list . "suffix"): the binding that puts a policy into force everywhere. */}}
{{- define "kuangchao.policyBinding" -}}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  {{- include "kuangchao.policyMetadata" . | nindent 2 }}
spec:
  policyName: {{ (index . 0).Release.Name }}-{{ index . 1 }}
  validationActions: [Deny]
{{- end }}
