{{- define "threewalls.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" }}{{ end -}}
{{- end }}

{{- define "threewalls.selector" -}}
app.kubernetes.io/name: {{ .root.Chart.Name }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "threewalls.labels" -}}
{{ include "threewalls.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "threewalls.image" -}}
{{- if .Values.image.digest }}{{ printf "%s@%s" .Values.image.repository .Values.image.digest }}
{{- else }}{{ printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) }}{{ end -}}
{{- end }}

{{/* One variable from the Secret: name, key, and whether it may be missing */}}
{{- define "threewalls.secret" -}}
- name: {{ .name }}
  valueFrom:
    secretKeyRef:
      name: {{ .root.Values.secretName }}
      key: {{ .key }}
      {{- if .optional }}
      optional: true
      {{- end }}
{{- end }}

{{/* The environment of a component. Each gets only the secrets that it uses. */}}
{{- define "threewalls.env" -}}
{{- $root := .root -}}
- name: THREEWALLS_DATA_DIR
  value: /data
- name: THREEWALLS_LOG_FORMAT
  value: json
{{- if ne .component "beat" }}
{{ include "threewalls.secret" (dict "root" $root "name" "THREEWALLS_DATABASE_URL" "key" "database-url") }}
{{- end }}
{{- if ne .component "migrate" }}
{{ include "threewalls.secret" (dict "root" $root "name" "THREEWALLS_BROKER_URL" "key" "broker-url") }}
{{- end }}
- name: THREEWALLS_PUBLIC_URL
  value: {{ $root.Values.publicUrl | quote }}
{{- if or (eq .component "web") (eq .component "worker") }}
{{- with $root.Values.artifactUrl }}
- name: THREEWALLS_ARTIFACT_URL
  value: {{ . | quote }}
{{- end }}
{{- if $root.Values.rules }}
- name: THREEWALLS_RULES_DIR
  value: /rules
{{- end }}
{{ include "threewalls.secret" (dict "root" $root "name" "THREEWALLS_S3_ACCESS_KEY_ID" "key" "s3-access-key-id" "optional" true) }}
{{ include "threewalls.secret" (dict "root" $root "name" "THREEWALLS_S3_SECRET_ACCESS_KEY" "key" "s3-secret-access-key" "optional" true) }}
{{- end }}
{{- if eq .component "web" }}
{{ include "threewalls.secret" (dict "root" $root "name" "THREEWALLS_OIDC_CLIENT_SECRET" "key" "oidc-client-secret" "optional" true) }}
{{ include "threewalls.secret" (dict "root" $root "name" "THREEWALLS_METRICS_TOKEN" "key" "metrics-token" "optional" true) }}
{{- end }}
{{- if eq .component "worker" }}
{{ include "threewalls.secret" (dict "root" $root "name" "THREEWALLS_SMTP_USER" "key" "smtp-user" "optional" true) }}
{{ include "threewalls.secret" (dict "root" $root "name" "THREEWALLS_SMTP_PASSWORD" "key" "smtp-password" "optional" true) }}
{{- end }}
{{- range $name, $value := $root.Values.settings }}
- name: {{ $name }}
  value: {{ $value | toString | quote }}
{{- end }}
{{- end }}

{{/* The pod of a component: root, component, command, resources, and optionally ports, probes and grace */}}
{{- define "threewalls.pod" -}}
{{- $values := .root.Values -}}
{{- $files := or (eq .component "web") (eq .component "worker") -}}
metadata:
  labels:
    {{- include "threewalls.labels" . | nindent 4 }}
  {{- if and $files $values.rules }}
  annotations:
    checksum/rules: {{ $values.rules | toJson | sha256sum }}
  {{- end }}
spec:
  automountServiceAccountToken: false
  enableServiceLinks: false
  {{- if or $values.serviceAccount.name (ne .component "migrate") }}
  serviceAccountName: {{ $values.serviceAccount.name | default (include "threewalls.name" .root) }}
  {{- end }}
  {{- with $values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .grace }}
  terminationGracePeriodSeconds: {{ . }}
  {{- end }}
  {{- with .restart }}
  restartPolicy: {{ . }}
  {{- end }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 10001
    runAsGroup: 10001
    fsGroup: 10001
    fsGroupChangePolicy: OnRootMismatch
    seccompProfile:
      type: RuntimeDefault
  containers:
    - name: {{ .component }}
      image: {{ include "threewalls.image" .root }}
      imagePullPolicy: {{ $values.image.pullPolicy }}
      command:
        {{- toYaml .command | nindent 8 }}
      env:
        {{- include "threewalls.env" . | nindent 8 }}
      securityContext:
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities:
          drop: [ALL]
      resources:
        {{- toYaml .resources | nindent 8 }}
      {{- with .container }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
      volumeMounts:
        - name: staging
          mountPath: /tmp
        - name: data
          mountPath: /data
        {{- if and $files $values.rules }}
        - name: rules
          mountPath: /rules
          readOnly: true
        {{- end }}
  volumes:
    - name: staging
      emptyDir:
        sizeLimit: {{ if $files }}{{ $values.staging.size }}{{ else }}100Mi{{ end }}
    - name: data
      {{- if and $files (not $values.artifactUrl) }}
      persistentVolumeClaim:
        claimName: {{ $values.data.existingClaim | default (include "threewalls.name" .root) }}
      {{- else }}
      emptyDir:
        sizeLimit: {{ if $files }}{{ $values.staging.size }}{{ else }}100Mi{{ end }}
      {{- end }}
    {{- if and $files $values.rules }}
    - name: rules
      configMap:
        name: {{ include "threewalls.name" .root }}-rules
    {{- end }}
  {{- with $values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}
