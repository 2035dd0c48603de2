#!/usr/bin/env bash
# A training that is killed (SIGKILL) at random moments and resumed ends with the bits of one that nobody disturbed; on a GPU too.
#   bench/resume-bits.sh [DEVICE] [OPTIONS of `subdeq train`]      e.g.  bench/resume-bits.sh cuda --data cifar10 --epochs 3
# SUBDEQ (the program) and KILLS (how often, 3) may be set. A checkpoint every second: most kills fall between two.
set -euo pipefail
SUBDEQ=${SUBDEQ:-target/release/subdeq}
KILLS=${KILLS:-3}
device=${1:-cpu}
[ $# -gt 0 ] && shift
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
train() { exec "$SUBDEQ" train "${@:2}" --device "$device" --checkpoint-seconds 1 --out "$folder/$1" > "$folder/$1.log" 2>&1; }
tensors() { python3 "$(dirname "$0")/tensor-hash.py" "$folder/$1/model.safetensors"; }
began=$(date +%s%N)
(train whole "$@")
took=$((($(date +%s%N) - began) / 1000000)) # milliseconds
for k in $(seq "$KILLS"); do
    pause=$((took / (2 * KILLS + 2) + RANDOM % (took / (KILLS + 1) + 1)))
    (train killed "$@" --resume) &
    sleep "$(printf '%d.%03d' $((pause / 1000)) $((pause % 1000)))"
    if kill -KILL $! 2> /dev/null; then echo "killed after $pause ms"; else echo "ended before $pause ms"; fi
    wait $! 2> /dev/null || true
done
(train killed "$@" --resume)
# Each by itself, so that a model that is not there ends this and is not taken for the same as another that is not.
whole=$(tensors whole)
killed=$(tensors killed)
if [ "$whole" = "$killed" ]; then
    echo "same bits on $device: $whole"
else
    echo "other bits on $device: $whole and $killed"
    exit 1
fi
