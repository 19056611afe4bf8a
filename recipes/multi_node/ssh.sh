#!/usr/bin/env bash
# ssh.sh OPTIONS -- FLAGS: train on machines that ssh reaches without a password. The project, its
# environment and the data are at the same paths on all of them; output_dir is one folder.
#
#   recipes/multi_node/ssh.sh --hosts node1,node2 --nproc_per_node 8 -- \
#       --model_name meta-llama/Llama-3.1-70B --dataset train.jsonl --use_peft \
#       --quantization 4bit --output_dir shared/out
#
# --hosts LIST        names or addresses (user@host too), by which the machines reach each other too;
#                     the first is where they meet
# --hostfile FILE     the same, one a line; what follows a name, or a #, is left out
# --nproc_per_node N  processes a machine [gpu: one for each GPU]
# --port N            where they meet on the first machine [29500]
# --folder FOLDER     the project there [where this one is]
# --torchrun PATH     the launcher there [that of .venv, else the one on the PATH here]
# --env NAME=VALUE    a variable for all processes; may be repeated
#
# Ctrl-C (or TERM) stops all machines in order, and what was trained is saved; a second one cuts the
# connections. When one machine ends, the others are given a minute to end by themselves, and are
# then stopped. The exit code is that of the first machine in the list that failed. More is in
# docs/multinode.md.
set -euo pipefail

readonly GRACE_SECONDS=${GRACE_SECONDS:-60}

fail() {
    echo "ssh.sh: $*" >&2
    exit 2
}

read_hostfile() {
    [ -r "$1" ] || fail "--hostfile $1: there is no such file"
    local name _
    while read -r name _ || [ -n "$name" ]; do
        case $name in '' | '#'*) ;; *) hosts+=("${name%%#*}") ;; esac
    done <"$1"
}

# What a shell of any kind on the other side reads as one word.
quote() {
    local word
    for word in "$@"; do
        printf " '%s'" "${word//\'/\'\\\'\'}"
    done
}

hosts=()
variables=()
folder=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
processes=gpu
port=29500
torchrun=
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    [ $# -gt 1 ] || fail "$1: a value is missing"
    case $1 in
        --hosts) IFS=, read -r -a hosts <<<"$2" ;;
        --hostfile) read_hostfile "$2" ;;
        --nproc_per_node) processes=$2 ;;
        --port) port=$2 ;;
        --folder) folder=$2 ;;
        --torchrun) torchrun=$2 ;;
        --env) variables+=("$2") ;;
        *) fail "$1: no such option; flags of the run follow a --" ;;
    esac
    shift 2
done
[ $# -gt 0 ] || fail "the flags of the run are missing: write -- before them"
shift
[ "${#hosts[@]}" -gt 0 ] || fail "name the machines: --hosts a,b or --hostfile FILE"
if [ -z "$torchrun" ] && [ -x "$folder/.venv/bin/torchrun" ]; then
    torchrun=$folder/.venv/bin/torchrun
fi
torchrun=${torchrun:-$(command -v torchrun)} || fail "no torchrun here: say --torchrun PATH"

# On the other side: start the launcher, and stop it when the connection's input ends, be it that
# we say so or that we are gone. Without a terminal ssh hands no signals on.
# shellcheck disable=SC2016
readonly ATTEND='
cd "$1" || exit 2
shift
exec 3<&0
"$@" </dev/null 3<&- &
launcher=$!
{ cat <&3; kill -TERM "$launcher"; } >/dev/null 2>&1 &
attendant=$!
wait "$launcher"
status=$?
kill "$attendant" 2>/dev/null
exit "$status"'

# As long as we hold this open, the input of no connection ends.
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkfifo "$scratch/input"
exec 4<>"$scratch/input"

run_id=$(date +%s)-$$
meeting=${hosts[0]#*@}
connections=()
for position in "${!hosts[@]}"; do
    command=(
        "$torchrun"
        --nnodes "${#hosts[@]}"
        --nproc_per_node "$processes"
        --rdzv_id "$run_id"
        --rdzv_backend c10d
        --rdzv_endpoint "$meeting:$port"
        --rdzv_conf "is_host=$((position == 0))"
        --local_addr "${hosts[position]#*@}"
        --shutdown_timeout 540
        recipes/finetuning.py --enable_fsdp "$@"
    )
    ssh -o BatchMode=yes -o ServerAliveInterval=15 -o ServerAliveCountMax=4 "${hosts[position]}" \
        "exec bash -c$(quote "$ATTEND" ssh.sh "$folder" env "${variables[@]}" "${command[@]}")" \
        4>&- <"$scratch/input" &
    connections+=($!)
done

asked=0
# shellcheck disable=SC2329
stop() {
    asked=$((asked + 1))
    if [ "$asked" -eq 1 ]; then
        echo "ssh.sh: stopping on all machines; what was trained is saved" >&2
        exec 4>&-
    else
        kill "${connections[@]}" 2>/dev/null || true
    fi
}
trap stop INT TERM HUP

running() {
    jobs -rp | wc -l
}

while [ "$(running)" -eq "${#hosts[@]}" ]; do
    sleep 0.5
done
deadline=$((SECONDS + GRACE_SECONDS))
while [ "$(running)" -gt 0 ] && { [ "$asked" -gt 0 ] || [ "$SECONDS" -lt "$deadline" ]; }; do
    sleep 0.5
done
if [ "$(running)" -gt 0 ]; then
    echo "ssh.sh: a machine has ended; stopping the others" >&2
    exec 4>&-
fi

while [ "$(running)" -gt 0 ]; do
    sleep 0.5
done

result=0
for position in "${!hosts[@]}"; do
    status=0
    wait "${connections[position]}" || status=$?
    if [ "$status" -ne 0 ]; then
        echo "ssh.sh: ${hosts[position]} ended with exit code $status" >&2
        [ "$result" -ne 0 ] || result=$status
    fi
done
exit "$result"
