#!/bin/bash
# sbatch docs/fleet/slurm.sh: a worker for each of 16 GPUs. Workers join when Slurm starts them and leave when no job is
# left; a worker whose time is up gives its job back. KERNEL_REGISTRY_DB names the database, e.g. in ~/.bashrc.
#SBATCH --job-name=kernel-registry
#SBATCH --array=1-16
#SBATCH --gpus=1
#SBATCH --cpus-per-task=16
#SBATCH --mem=64G
#SBATCH --time=04:00:00
#SBATCH --signal=TERM@120
#SBATCH --requeue

exec srun --kill-on-bad-exit=0 registry fleet work
