#!/bin/bash
# Keeps a Ray node up on this machine, and starts it again when it ends.
#   ray-node.sh head OWN-ADDRESS                 on the first machine
#   ray-node.sh worker OWN-ADDRESS HEAD-ADDRESS  on each of the others
# Words after these go to `ray start`, for example --num-cpus 8. REMUDA_VENV is the environment with remuda-rl[ray]; the token file is the same everywhere (docs/cluster.md).
set -u
role=$1 own=$2
shift 2
export PATH="${REMUDA_VENV:-$HOME/remuda}/bin:$PATH"
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH="${RAY_AUTH_TOKEN_PATH:-$HOME/.ray-token}" RAY_USAGE_STATS_ENABLED=0
# Without --num-cpus 0 the first machine plays and learns, too.
if [ "$role" = head ]; then
    words=(--head --port 6379 --num-cpus 0 --include-dashboard false "$@")
else
    words=(--address "$1:6379" "${@:2}")
fi
# A node that was cut off for longer than Ray waits ends itself when it is back.
while true; do
    ray start "${words[@]}" --node-ip-address "$own" --block
    sleep 1
done
