#!/bin/bash
# Makes the runs on graphs that the ledgers in results/ still lack, on the machine's cores, one thread per run; when all are there, it
# does nothing. Every run is written to its ledger as it ends, so this may be stopped at any time and called again. What matters
# most comes first: the given divisions, then the paper's two tables in the certified form, then the search for settings on random divisions.
#   bench/graph-tables.sh [SECONDS]      stops after so many seconds (default: when all runs are made)
# SUBDEQ (the program), DATA (the data sets: graphs/ is all that is read, 8.3 MB), OUT (ledgers), JOBS (runs side by side; 0: one per
# core) may be set.
set -u
cd "$(dirname "$0")/.."
limit=${1:-0}
SUBDEQ=${SUBDEQ:-target/release/subdeq}
DATA=${DATA:-../shared/data}
OUT=${OUT:-results}
JOBS=${JOBS:-0}
everything() {
  run() { "$SUBDEQ" reproduce "$@" --jobs "$JOBS" --data-dir "$DATA" --out "$OUT" > /dev/null; }
  run graphs --protocol given # one setting for all: few labelled nodes, all classes equally often, cannot choose one
  run table4 --only equilibrium
  run table6 --only equilibrium --only cora-cit,cora-author,citeseer,pubmed
  run table6 --only equilibrium # the largest graph, which takes as long as all others
  run graphs --protocol half --tune # complete with an earlier grid (results/graphs-half-824b1d4.json)
}
export -f everything
export SUBDEQ DATA OUT JOBS
if [ "$limit" -gt 0 ]; then
  timeout --signal=TERM --kill-after=10 "$limit" bash -c everything
else
  everything
fi
ended=$?
for protocol in half given; do
  "$SUBDEQ" reproduce graphs --protocol "$protocol" --no-runs --data-dir "$DATA" --out "$OUT" > /dev/null
done
for table in table4 table6; do
  "$SUBDEQ" reproduce "$table" --no-runs --data-dir "$DATA" --out "$OUT" > /dev/null
done
for ledger in graphs-half graphs-given table4 table6; do
  made=$(grep -c '"graph":' "$OUT/$ledger.json" 2> /dev/null)
  echo "$ledger: ${made:-0} runs in $OUT/$ledger.json"
done
[ $ended -eq 124 ] && echo "the time is up: call it again to go on" && exit 124
exit $ended
