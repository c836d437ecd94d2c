#!/bin/bash
# A job with exclusive nodes that starts its own daemons, one per node: sbatch deploy/slurm/job.sh. If the nodes run
# prepserver.service, a job needs none of this.
#SBATCH --job-name=train
#SBATCH --nodes=2
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
set -euo pipefail

# The same on every node, and short: the path of a socket has at most 107 bytes. Clients read this variable, too. The
# path is unpredictable, so that no other user can have a daemon wait there.
export PREPSERVER_RUNTIME_DIR=/tmp/prepserver-$SLURM_JOB_ID-$RANDOM$RANDOM$RANDOM
each=(srun --overlap --ntasks="$SLURM_NNODES" --ntasks-per-node=1)

# A separate step, because Slurm ends what a step leaves running. Its daemons may use all cores: training processes need
# theirs only briefly, and workers have a low priority.
"${each[@]}" --cpus-per-task="$SLURM_CPUS_ON_NODE" --gpus=0 prepserver start &
daemons=$!
trap 'kill "$daemons" 2>/dev/null; wait "$daemons" || true' EXIT
# shellcheck disable=SC2016 # it is for the shell of each node
"${each[@]}" timeout 120 sh -c 'until prepserver status >/dev/null 2>&1; do sleep 1; done'

# srun gives no ranks: without these, each task reads all samples. With them, each node makes only its own tasks' rows.
MASTER_ADDR=$(hostname)  # the first node; for torch.distributed
export MASTER_ADDR MASTER_PORT=29500
# shellcheck disable=SC2016 # it is for the shell of each task
srun --overlap sh -c '
    export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS
    export LOCAL_RANK=$SLURM_LOCALID LOCAL_WORLD_SIZE=$SLURM_NTASKS_PER_NODE
    export GROUP_RANK=$SLURM_NODEID GROUP_WORLD_SIZE=$SLURM_NNODES
    exec python train.py'
