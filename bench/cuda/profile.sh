#!/bin/bash
# Hardware counters of one part (after run.sh has built it): bash bench/cuda/profile.sh [part] [kernel regex] -> $OUT/ncu-PART.txt
cd "$(dirname "$0")"; part=${1:-c48}; kernel=${2:-onchip_solve}; case $part in c[0-9]*) program=onchip ;; *) program=harness ;; esac; OUT=${OUT:-$PWD/out}
timeout -k 5 120 ncu --clock-control none -k regex:$kernel --launch-skip 8 --launch-count 1 --section SpeedOfLight --section ComputeWorkloadAnalysis --section MemoryWorkloadAnalysis --section WarpStateStats --section SchedulerStats --section Occupancy --section LaunchStats --section InstructionStats ${BUILD:-/tmp/subdeq-cuda-build}/$program $part > "$OUT/ncu-$part.txt" 2>&1; echo "ncu rc $?"; grep -vE '^\{|==PROF==' "$OUT/ncu-$part.txt" | tail -150
