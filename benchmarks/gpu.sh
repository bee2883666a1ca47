#!/usr/bin/env bash
# One table, one GPU, under ten minutes: plain, compiled, stock and ours; greedy and sampled; one row and eight.
#
#   benchmarks/gpu.sh [TARGET DRAFT]
#
# Without folders: the real pair in $HF_SPECGEN_MODELS (default ~/.cache/hf-specgen/models), or one with fresh weights
# of a real pair's shape, made here. Nothing is downloaded, unless transformers, typer or rich is missing.
#   PYTHON   interpreter whose torch is to be used (default python3)
#   OUT      folder for the records and the log (default ./gpu-bench); run again, it goes on from there
#   LIMIT    seconds after which it shows what it has (default 540)
#   OPTIONS  more options for `hf-specgen bench`, which outrank those below
#   FRESH    options for fresh_pair.py
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
started=$SECONDS
python=${PYTHON:-python3}
out=$(mkdir -p "${OUT:-gpu-bench}" && cd "${OUT:-gpu-bench}" && pwd)
limit=${LIMIT:-540}
models=${HF_SPECGEN_MODELS:-$HOME/.cache/hf-specgen/models}
target=${1:-$models/qwen2.5-coder-1.5b}
draft=${2:-$models/qwen2.5-coder-0.5b}
export PYTHONPATH="$here${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=false

if [ $# -eq 1 ] || [ $# -gt 2 ]; then
    echo "usage: $0 [TARGET DRAFT]" >&2
    exit 2
fi

if ! "$python" -c "import torch"; then
    echo "$python has no torch: install the one for this GPU's driver, or set PYTHON." >&2
    exit 2
fi
if ! "$python" -c "import hf_specgen.benchmarking.bench, typer" 2>"$out/import.log"; then
    echo "Packages are missing ($(tail -n 1 "$out/import.log")): installing into $out/packages"
    "$python" -m pip install -q --target "$out/packages" "transformers>=5.17" "typer>=0.16" "rich>=13.9"
    export PYTHONPATH="$out/packages:$PYTHONPATH"
fi

if [ $# -eq 0 ] && { [ ! -d "$target" ] || [ ! -d "$draft" ]; }; then
    target=$out/fresh/target
    draft=$out/fresh/draft
    if [ ! -d "$draft" ]; then
        echo "No models in $models: making a pair with fresh weights"
        "$python" "$here/benchmarks/fresh_pair.py" "$out/fresh" ${FRESH:-}
    fi
fi

"$python" - <<'PYTHON'
import torch, transformers
name = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
print(f"{name}; torch {torch.__version__}, transformers {transformers.__version__}")
PYTHON

# Interrupted at the limit, the bench shows the table of what it has measured.
status=0
# shellcheck disable=SC2086
timeout --signal INT --kill-after 30 $((limit - (SECONDS - started))) \
    env --default-signal=INT "$python" -m hf_specgen bench "$target" "$draft" \
    --against plain,compiled,stock,stock-k4,ours,draft,lookup \
    --tasks code,summarization --prompts-per-task 1 --temperatures 0,1.0 --batch-sizes 1,8 \
    --max-new-tokens 64 --repeats 2 --dtype bfloat16 --out "$out/records" ${OPTIONS:-} \
    2>&1 | tee "$out/log" || status=$?
echo "records: $out/records; $((SECONDS - started)) s in all"
exit "$status"
