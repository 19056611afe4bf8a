#!/usr/bin/env bash
# setup.sh [EXTRA]: makes .venv with ftrecipes in it (and the extra, e.g. `test`), at the versions of
# constraints.txt. A .venv that already has them is taken as it is.
set -euo pipefail
cd "$(dirname "$0")"

extra=${1:-}
needs="import ftrecipes, torch, transformers, peft, bitsandbytes, datasets, fire, gguf"
[ "$extra" = test ] && needs="$needs, pytest, psutil, ruff, hypothesis, wandb, tensorboard"

if [ -x .venv/bin/python ] && .venv/bin/python -c "$needs" 2>/dev/null; then
    exit 0
fi
python=${PYTHON:-python3}
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "setup.sh: $("$python" --version 2>&1) is too old. Expected Python 3.11 or newer." >&2
    echo "  do: PYTHON=/path/to/python3.11 ./setup.sh" >&2
    exit 1
fi
echo "Installing into .venv (the first time takes a minute or two) ..."
[ -x .venv/bin/python ] || "$python" -m venv .venv
.venv/bin/python -m pip install --quiet --disable-pip-version-check \
    -c constraints.txt -e ".${extra:+[$extra]}"
