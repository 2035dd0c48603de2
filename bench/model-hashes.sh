#!/usr/bin/env bash
# The bits of small trained models, one line per model: `bench/model-hashes.sh PROGRAM`. A change that is not meant to change
# what is computed leaves them as they are: compare the output before and after on one machine (kernels differ with the
# instructions that a machine has).
set -euo pipefail
program=$(realpath "${1:-target/release/subdeq}")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
models=(monotone monotone-product monotone-tied monotone-tanh mondeq-relu mondeq-tanh split-sign row-signed excitatory divisive rational
    power-ratio gains subdeq-tanh subdeq-normalized-tanh subdeq-abs-normalized-tanh subdeq-normalized-power-tanh
    subdeq-power-tanh node-relu node-tanh explicit-tanh)
tensors() { python3 "$(dirname "$0")/tensor-hash.py" "$1"; }
for arch in dense conv; do
    for model in "${models[@]}"; do
        run="$folder/$arch-$model"
        "$program" train --data digits --arch "$arch" --model "$model" --epochs 1 --channels 12 --seed 3 --out "$run" >/dev/null 2>&1 ||
            { echo "$arch $model failed"; continue; }
        echo "$arch $model $(tensors "$run/model.safetensors")"
    done
done
for model in appnp appnp-tanh appnp-normalized-tanh appnp-tanh-2 appnp-normalized-tanh-2; do
    for form in paper release equilibrium; do
        run="$folder/$model-$form"
        "$program" train --data karate --model "$model" --form "$form" --epochs 20 --seed 3 --out "$run" >/dev/null 2>&1 ||
            { echo "graph $model $form failed"; continue; }
        echo "graph $model $form $(tensors "$run/model.safetensors")"
    done
done
