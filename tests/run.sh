#!/usr/bin/env bash
# Builds the workspace with its tests once, then runs them: with nextest where it is installed,
# else with cargo's own runner. Arguments choose tests; none means all, doc tests included.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}

selection=("$@")
[ $# -gt 0 ] || selection=(--workspace)

# The server binary comes out of the same build as the tests, so both are of the same source.
"$cargo" build --locked --workspace --all-targets
export ANABRANCH_BIN="${CARGO_TARGET_DIR:-$PWD/target}/debug/anabranch"

if "$cargo" nextest --version >/dev/null 2>&1; then
    "$cargo" nextest run --locked --no-fail-fast "${selection[@]}"
    # nextest runs no doc tests.
    [ $# -gt 0 ] || "$cargo" test --locked --workspace --doc
else
    "$cargo" test --locked --no-fail-fast "${selection[@]}"
fi
