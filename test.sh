#!/usr/bin/env bash
# test.sh [--all] [pytest arguments]: sets up .venv with the test extras, then runs style checks and
# tests. --all adds the long proofs. Needs no GPU, no hub and no answer.
set -euo pipefail
cd "$(dirname "$0")"

marks=(-m "not long")
if [ "${1:-}" = --all ]; then
    marks=()
    shift
fi
./setup.sh test
# Tests run on files they make themselves; a look-up on the hub would be a fault.
export HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1 TRANSFORMERS_VERBOSITY=error

.venv/bin/python -m ruff check .
.venv/bin/python -m ruff format --check .
.venv/bin/python -m pytest "${marks[@]}" "$@"
