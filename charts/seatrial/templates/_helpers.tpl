{{- define "seatrial.fullname" -}}
{{- default (ternary .Release.Name (printf "%s-seatrial" .Release.Name) (contains "seatrial" .Release.Name)) .Values.fullnameOverride | trunc 50 | trimSuffix "-" }}
{{- end }}

{{- define "seatrial.serviceAccount" -}}
{{- default (include "seatrial.fullname" .) .Values.serviceAccount.name }}
{{- end }}

{{- define "seatrial.selector" -}}
app.kubernetes.io/name: seatrial
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end }}

{{- define "seatrial.labels" -}}
app.kubernetes.io/name: seatrial
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: seatrial
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- /* An image: repository with digest, else with tag, else with the chart's appVersion. Takes (dict "image" … "root" $). */}}
{{- define "seatrial.image" -}}
{{- if .image.digest -}}
{{ .image.repository }}@{{ .image.digest }}
{{- else -}}
{{ .image.repository }}:{{ default .root.Chart.AppVersion .image.tag }}
{{- end }}
{{- end }}

{{- define "seatrial.signingSecret" -}}
{{- default (printf "%s-signing" (include "seatrial.fullname" .)) .Values.signingKey.existingSecret }}
{{- end }}

{{- /* Namespaces of trials, as a JSON list. */}}
{{- define "seatrial.trialNamespaces" -}}
{{- default .Values.networkPolicies.namespaces .Values.namespaces | toJson }}
{{- end }}

{{- /* Rights in the namespaces of trials; tests/chart holds the same table. */}}
{{- define "seatrial.trialRules" -}}
- apiGroups: [seatrial.dev]
  resources: [evaljobs, tasks, tasksets]
  verbs: [get, list, watch]
# For ttlSecondsAfterFinished.
- apiGroups: [seatrial.dev]
  resources: [evaljobs]
  verbs: [delete]
- apiGroups: [seatrial.dev]
  resources: [evaljobs/status, tasks/status, tasksets/status]
  verbs: [patch]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, create, delete]
- apiGroups: [""]
  resources: [secrets]
  verbs: [create]
- apiGroups: [""]
  resources: [events]
  verbs: [list]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create, patch]
{{- if .Values.kueue.enabled }}
- apiGroups: [kueue.x-k8s.io]
  resources: [workloads]
  verbs: [get, create, patch]
- apiGroups: [kueue.x-k8s.io]
  resources: [workloads/status]
  verbs: [patch]
{{- end }}
{{- end }}

{{- /* Where the object store is, as a list of NetworkPolicy peers. */}}
{{- define "seatrial.s3Peers" -}}
{{- $host := (urlParse .Values.s3.endpoint).host | regexFind "^(\\[[^]]*\\]|[^:]*)" }}
{{- if .Values.networkPolicies.s3.to }}
{{- toYaml .Values.networkPolicies.s3.to }}
{{- else if regexMatch "^[0-9.]+$" $host -}}
- ipBlock: {cidr: {{ $host }}/32}
{{- else if regexMatch "^[^.]+\\.[^.]+\\.svc(\\.|$)" $host -}}
- namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: {{ index (splitList "." $host) 1 }}}}
{{- else }}
{{- fail (printf "networkPolicies.s3.to: say where %s is (it is neither a Service nor an address), or set networkPolicies.create to false" .Values.s3.endpoint) }}
{{- end }}
{{- end }}

{{- define "seatrial.s3Port" -}}
{{- $url := urlParse .Values.s3.endpoint }}
{{- $port := regexFind ":[0-9]+$" $url.host | trimPrefix ":" }}
{{- .Values.networkPolicies.s3.port | default $port | default (ternary 443 80 (eq $url.scheme "https")) }}
{{- end }}

{{- /* Where the registry of builds is inside the cluster, as a list of NetworkPolicy peers; empty for one outside. */}}
{{- define "seatrial.registryPeers" -}}
{{- $host := (splitList "/" .Values.builds.repository | first) | regexFind "^[^:]*" }}
{{- if .Values.networkPolicies.registry.to }}
{{- toYaml .Values.networkPolicies.registry.to }}
{{- else if regexMatch "^[0-9.]+$" $host -}}
- ipBlock: {cidr: {{ $host }}/32}
{{- else if regexMatch "^[^.]+\\.[^.]+\\.svc(\\.|$)" $host -}}
- namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: {{ index (splitList "." $host) 1 }}}}
{{- end }}
{{- end }}

{{- define "seatrial.registryPort" -}}
{{- $port := regexFind ":[0-9]+$" (splitList "/" .Values.builds.repository | first) | trimPrefix ":" }}
{{- .Values.networkPolicies.registry.port | default $port | default (ternary 80 443 .Values.builds.insecure) }}
{{- end }}

{{/* A map as NAME=VALUE,…, sorted by name. */}}
{{- define "seatrial.pairs" -}}
{{- $pairs := list -}}
{{- range $name, $value := . }}{{- $pairs = append $pairs (printf "%s=%v" $name $value) }}{{- end -}}
{{- join "," $pairs -}}
{{- end }}
