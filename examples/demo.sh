#!/usr/bin/env bash
# From nothing to graded trials: cluster, images, operator, suite, job, scores. Run it by `make demo`.
set -euo pipefail
cd "$(dirname "$0")/.."

step() { printf '\n==> %s\n' "$*"; }

step "a Kubernetes cluster with an S3 server"
python3 tests/cluster up
step "images: runner, operator, the tasks of the suite"
python3 tests/cluster images
step "the operator, installed by its Helm chart"
python3 tests/cluster install --namespace evals
eval "$(python3 tests/cluster env --shell)"
export PATH="$PWD/.venv/bin:$PATH"

step "seatrial publish examples/suites/smoke --taskset smoke"
seatrial publish examples/suites/smoke --taskset smoke --namespace evals
step "kubectl apply -f examples/evaljob.yaml"
kubectl delete evaljob smoke-oracle --namespace evals --ignore-not-found
kubectl apply -f examples/evaljob.yaml
step "seatrial watch smoke-oracle"
seatrial watch smoke-oracle --namespace evals
step "kubectl get evaljobs"
kubectl get evaljobs --namespace evals

cat <<NEXT

Where to look next
  export KUBECONFIG=$(python3 tests/cluster kubeconfig)
  kubectl describe evaljob smoke-oracle --namespace evals
  .venv/bin/seatrial results smoke-oracle --namespace evals -o json
  .venv/bin/seatrial logs smoke-oracle TRIAL --namespace evals
  .venv/bin/seatrial run examples/suites/smoke -a oracle -k 2 -n 8 --namespace evals
  make down
NEXT
