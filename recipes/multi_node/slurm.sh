#!/usr/bin/env bash
# Train on the nodes of a Slurm job. Submit it in the project's folder, on a file system that all
# nodes share; the flags of the run follow the script:
#
#   sbatch --nodes 2 --gpus-per-node 8 recipes/multi_node/slurm.sh \
#       --model_name meta-llama/Llama-3.1-70B --dataset train.jsonl --use_peft \
#       --quantization 4bit --output_dir out
#
# `scancel --signal TERM JOB` stops it in order, and what was trained is saved; so does the time
# limit, ten minutes before it. docs/multinode.md tells more.
#SBATCH --job-name=ftrecipes
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --mem=0
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@600
#SBATCH --no-requeue
#SBATCH --output=slurm-%j.log
set -euo pipefail

# Slurm runs a copy of this file, so that its own folder says nothing.
cd "${SLURM_SUBMIT_DIR:?submit this file with sbatch}"
if [ ! -d recipes/multi_node ]; then
    echo "slurm.sh: $PWD is not the project's folder. Submit this file there." >&2
    exit 2
fi
if [ -f .venv/bin/activate ]; then
    # shellcheck disable=SC1091
    source .venv/bin/activate
fi
hosts=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
first=${hosts%%$'\n'*}
# Of its own for each job, and below the ports that a system gives to outgoing connections.
port=$((20000 + SLURM_JOB_ID % 10000))

# One launcher a node, which starts a process for each GPU. A signal to the step reaches all
# launchers, which hand it on and wait for their processes to save. A launcher that ends early does
# not end the others at once: they may still be saving, and else end by themselves within a minute.
exec srun --kill-on-bad-exit=0 --wait=600 --cpus-per-task="${SLURM_CPUS_PER_TASK:-1}" \
    torchrun \
    --nnodes "$SLURM_NNODES" \
    --nproc_per_node "${NPROC_PER_NODE:-gpu}" \
    --rdzv_id "$SLURM_JOB_ID" \
    --rdzv_backend c10d \
    --rdzv_endpoint "$first:$port" \
    --shutdown_timeout 540 \
    recipes/finetuning.py --enable_fsdp "$@"
