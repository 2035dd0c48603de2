#!/usr/bin/env bash
# The engine's unsafe code under Miri, which refuses undefined behaviour: `bench/miri.sh [TEST FILTER...]`. Miri knows no vector
# instructions of a machine and no tiles, so the portable kernels run; it is slow, so do some of the tests.
# Skipped where there is no nightly toolchain with Miri: `rustup toolchain install nightly -c miri,rust-src`.
set -euo pipefail
cd "$(dirname "$0")/.."
if ! cargo +nightly miri --version >/dev/null 2>&1; then
    echo "skipped: no nightly toolchain with Miri"
    exit 0
fi
[ $# -gt 0 ] || set -- buffer chunks network::scratch what_kernels_rely_on
# Tree borrows and leaks allowed: rayon's queues (crossbeam-epoch) fail stacked borrows, and its threads outlive the tests.
flags="-Zmiri-disable-isolation -Zmiri-tree-borrows -Zmiri-ignore-leaks"
export SUBDEQ_ISA=portable MIRIFLAGS="$flags ${MIRIFLAGS:-}"
cargo +nightly miri test -p subdeq-engine --lib -- "$@"
