#!/bin/bash
#SBATCH --job-name=herd --nodes=4 --ntasks-per-node=1 --cpus-per-task=16 --time=24:00:00
# sbatch slurm.sh treasurehunt agents=50        trains; the words go to `remuda train`
# sbatch slurm.sh resume                        goes on with the run, on any number of nodes
set -eu
export PATH="${REMUDA_VENV:-$HOME/remuda}/bin:$PATH"
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH="$HOME/.ray-token" RAY_USAGE_STATS_ENABLED=0
run="${RUN:-$HOME/runs/herd}"   # on a file system that all nodes see: each learner writes its own part there
cpus=$SLURM_CPUS_PER_TASK

head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
address=$(srun --nodes=1 --ntasks=1 --nodelist="$head" hostname --ip-address | cut -d' ' -f1)
srun --nodes=1 --ntasks=1 --nodelist="$head" \
    ray start --head --port 6379 --node-ip-address "$address" --num-cpus "$cpus" --block &
on_head() { srun --overlap --nodes=1 --ntasks=1 --nodelist="$head" "$@"; }
until on_head ray status --address "$address:6379" >/dev/null 2>&1; do sleep 2; done
if [ "$SLURM_NNODES" -gt 1 ]; then
    srun --nodes=$((SLURM_NNODES - 1)) --ntasks=$((SLURM_NNODES - 1)) --exclude="$head" \
        ray start --address "$address:6379" --num-cpus "$cpus" --block &
fi
# n_learners=auto counts the nodes that are there when training starts.
joined() { on_head ray status --address "$address:6379" 2>/dev/null | sed -n '/^Active/,/^Pending/p' | grep -c ' node_'; }
until [ "$(joined)" -ge "$SLURM_NNODES" ]; do sleep 2; done
if [ "${1:-}" = resume ]; then
    command=(remuda resume "$run" --engine ray --address "$address:6379" --n-learners auto)
else
    command=(remuda train "$@" engine=ray "address=$address:6379" n_learners=auto --out "$run")
fi
on_head "${command[@]}"
