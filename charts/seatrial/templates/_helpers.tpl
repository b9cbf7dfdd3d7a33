{{- define "seatrial.fullname" -}}
{{- default (ternary .Release.Name (printf "%s-seatrial" .Release.Name) (contains "seatrial" .Release.Name)) .Values.fullnameOverride | trunc 50 | trimSuffix "-" }}
{{- end }}

{{- define "seatrial.serviceAccount" -}}
{{- default (include "seatrial.fullname" .) .Values.serviceAccount.name }}
{{- end }}

{{- define "seatrial.selector" -}}
app.kubernetes.io/name: seatrial
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/component: operator
{{- end }}

{{- define "seatrial.labels" -}}
app.kubernetes.io/name: seatrial
app.kubernetes.io/instance: {{ .Release.Name | quote }}
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
{{- if .Values.builds.repository }}
# A Pod that builds an image belongs to all jobs that wait for it.
- apiGroups: [""]
  resources: [pods]
  verbs: [patch]
{{- end }}
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

{{- /* The NetworkPolicy peers of a host, where that can be told: an address, one of this chart's own Services by its Pods, any other
Service by its namespace. Takes (dict "host" … "root" $). */}}
{{- define "seatrial.peers" -}}
{{- if regexMatch "^[0-9.]+$" .host -}}
- ipBlock: {cidr: {{ .host }}/32}
{{- else if regexMatch "^[^.]+\\.[^.]+\\.svc(\\.|$)" .host }}
{{- $name := index (splitList "." .host) 0 }}{{ $namespace := index (splitList "." .host) 1 -}}
- namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: {{ $namespace | quote }}}}
{{- $root := .root }}
{{- range $component, $chosen := dict "store" .root.Values.bundledStore "registry" .root.Values.bundledRegistry }}
{{- if and $chosen.enabled (eq $namespace $root.Release.Namespace) (eq $name (printf "%s-%s" (include "seatrial.fullname" $root) $component)) }}
  podSelector: {matchLabels: {app.kubernetes.io/instance: {{ $root.Release.Name | quote }}, app.kubernetes.io/component: {{ $component }}}}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- /* The host of a URL, and its port. */}}
{{- define "seatrial.host" -}}
{{- (urlParse .).host | regexFind "^(\\[[^]]*\\]|[^:]*)" }}
{{- end }}

{{- define "seatrial.port" -}}
{{- $url := urlParse . }}
{{- regexFind ":[0-9]+$" $url.host | trimPrefix ":" | default (ternary 443 80 (eq $url.scheme "https")) }}
{{- end }}

{{- /* The egress rule for the object store as trial Pods reach it. */}}
{{- define "seatrial.s3Egress" -}}
{{- $url := default .Values.s3.endpoint .Values.s3.presignEndpoint }}
{{- $to := include "seatrial.peers" (dict "host" (include "seatrial.host" $url) "root" .) }}
{{- if .Values.networkPolicies.s3.to }}{{ $to = toYaml .Values.networkPolicies.s3.to }}{{ end }}
{{- if not $to }}
{{- fail (printf "networkPolicies.s3.to: say where %s is (it is neither a Service nor an address), or set networkPolicies.create to false" $url) }}
{{- end -}}
- to:
  {{- $to | nindent 2 }}
  ports:
  - {protocol: TCP, port: {{ .Values.networkPolicies.s3.port | default (include "seatrial.port" $url) }}}
{{- end }}

{{- define "seatrial.dnsEgress" -}}
- to:
  {{- toYaml .Values.networkPolicies.dns.to | nindent 2 }}
  ports:
  {{- range .Values.networkPolicies.dns.ports }}
  - {protocol: UDP, port: {{ . }}}
  - {protocol: TCP, port: {{ . }}}
  {{- end }}
{{- end }}

{{- /* Where the registry of builds is inside the cluster, as a list of NetworkPolicy peers; empty for one outside. */}}
{{- define "seatrial.registryPeers" -}}
{{- if .Values.networkPolicies.registry.to }}
{{- toYaml .Values.networkPolicies.registry.to }}
{{- else }}
{{- include "seatrial.peers" (dict "host" (splitList "/" .Values.builds.repository | first | regexFind "^[^:]*") "root" .) }}
{{- end }}
{{- end }}

{{- define "seatrial.registryPort" -}}
{{- $port := regexFind ":[0-9]+$" (splitList "/" .Values.builds.repository | first) | trimPrefix ":" }}
{{- .Values.networkPolicies.registry.port | default $port | default (ternary 80 443 .Values.builds.insecure) }}
{{- end }}

{{- /* A value as the operator reads it: numbers of a values file are floats, which would become 1e+06. */}}
{{- define "seatrial.text" -}}
{{- if and (kindIs "float64" .) (eq . (floor .)) }}{{ printf "%.0f" . }}{{ else }}{{ . }}{{ end }}
{{- end }}

{{/* A map as NAME=VALUE,…, sorted by name. */}}
{{- define "seatrial.pairs" -}}
{{- $pairs := list -}}
{{- range $name, $value := . }}{{- $pairs = append $pairs (printf "%s=%s" $name $value) }}{{- end -}}
{{- join "," $pairs -}}
{{- end }}
