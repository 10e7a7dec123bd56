#!/bin/sh
# The measurements behind docs/table1.md: each command writes one file of docs/data, with the command, the versions
# and the machine inside. Interrupted runs go on where they stopped (run store: tmifpe-runs/); finished files are
# kept. Usage:
#     TMIFPE_SHARED=../shared OMP_NUM_THREADS=1 scripts/measure_table1.sh [NAME ...]    all of them without a name
#     scripts/measure_table1.sh --list                                                  the names
# DATA names another folder for the files, QUICK further options of every command (--limit 4 --steps 2), for a trial.
# TMIFPE_SHARED holds models/ (published weights, by the names below) and data/mnist, data/cifar10.
set -eu
cd "$(dirname "$0")/.."
BIN=${BIN:-.venv/bin}
SHARED=${TMIFPE_SHARED:-../shared}
DATA=${DATA:-docs/data}
WANTED=$*

ALL='ce,ce-margin,cw,dlr,gama(momentum=0.75),mifpe,tmifpe'
TABLE='ce,cw,dlr,gama,gama(momentum=0.75),mifpe,tmifpe'
PAPER='ce,cw,dlr,gama(momentum=0.75),mifpe,tmifpe'
BESIDE="$ALL,autoattack"
MEAN=0.4914,0.4822,0.4465
STD=0.2471,0.2435,0.2616
MNIST="mnist:$SHARED/data/mnist"
CIFAR="npz:$SHARED/data/cifar10/test_first_846.npz"

measure() { # NAME COMMAND...
    name=$1
    shift
    case $WANTED in --list) echo "$name" && return ;; esac
    case " $WANTED " in "  " | *" $name "*) ;; *) return 0 ;; esac
    out=$DATA/$name.json
    if [ -e "$out" ]; then
        echo "$out is there; remove it to measure it again" >&2
        return 0
    fi
    echo "measuring $name" >&2
    mkdir -p "$DATA"
    # shellcheck disable=SC2086  # QUICK holds words
    "$BIN/tmifpe" "$@" ${QUICK:-} --json > "$out.part"
    # Folders of this machine are no part of the command.
    sed -e "s|$SHARED|\$TMIFPE_SHARED|g" -e "s|\"\?[^ \"]*/pyautoattack/examples/|pyautoattack/examples/|g" \
        "$out.part" > "$out.clean"
    mv "$out.clean" "$out"
    rm "$out.part"
}

table1() { # NAME OPTIONS...: rows of the paper
    name=$1
    shift
    measure "$name" table1 --weights-dir "$SHARED/models" --data-dir "$SHARED/data" "$@"
}

compare() { # NAME MODEL OPTIONS...: models beside the paper's
    name=$1
    shift
    measure "$name" compare "$@"
}

onnx() { # NAME FILE OPTIONS...: the CIFAR-10 networks that expect normalised input
    name=$1 file=$2
    shift 2
    compare "$name" "$SHARED/models/$file" --data "$CIFAR" --mean $MEAN --std $STD "$@"
}

resnet18() { # NAME OPTIONS...: the undefended ResNet-18 whose weights come with pyautoattack
    name=$1
    shift
    compare "$name" benchmarks/resnet18_cifar.py:resnet18 --weights "$("$BIN/python" benchmarks/resnet18_cifar.py)" \
        --data "$CIFAR" "$@"
}

# Rows of the paper, on all 10,000 images; with AutoAttack on the first ones.
table1 table1-mnist-fast --rows mnist-fast --losses "$TABLE" --seeds 0,1,2,3,4
table1 table1-mnist-trades --rows mnist-trades --losses "$PAPER"
table1 table1-mnist-fast-autoattack --rows mnist-fast --losses "$TABLE" --limit 1000 --with-autoattack
table1 table1-mnist-trades-autoattack --rows mnist-trades --losses "$TABLE" --limit 200 --with-autoattack

# Other real models at linf.
LENET5="mnist-lenet5 --weights $SHARED/models/mnist_lenet5_adv.pt --data $MNIST"
FAST="mnist-fast --weights $SHARED/models/mnist_fast_at.pth --data $MNIST"
TRADES="mnist-smallcnn --weights $SHARED/models/mnist_trades_smallcnn.pt --data $MNIST"
# shellcheck disable=SC2086  # the words of a model are words
{
    compare compare-mnist-lenet5 $LENET5 --eps 0.3 --limit 1000 --losses "$ALL" --seeds 0,1,2
    compare compare-mnist-lenet5-autoattack $LENET5 --eps 0.3 --limit 200 --losses "$BESIDE"
}
# AutoAttack where it is compared with smooth PGD.
compare strength-fashion-kw-linf mnist-fast --weights "$SHARED/models/fashion_mnist_kw.pth" \
    --data "fashion-mnist:$SHARED/data/fashion-mnist" --eps 0.1 --limit 1000 --losses tmifpe,autoattack
onnx strength-cifar10-resnet2b-8 cifar10_resnet2b.onnx --eps 8/255 --losses tmifpe,autoattack
onnx strength-cifar10-resnet4b-8 cifar10_resnet4b.onnx --eps 8/255 --losses tmifpe,autoattack
onnx compare-cifar10-resnet4b cifar10_resnet4b.onnx --eps 2/255 --losses "$BESIDE"
onnx compare-cifar10-resnet2b cifar10_resnet2b.onnx --eps 2/255 --losses "$BESIDE"
onnx compare-cifar10-resnet4b-seeds cifar10_resnet4b.onnx --eps 2/255 --losses "$ALL" --seeds 0,1,2
onnx compare-cifar10-resnet2b-seeds cifar10_resnet2b.onnx --eps 2/255 --losses "$ALL" --seeds 0,1,2
resnet18 compare-cifar10-resnet18 --eps 1/255 --limit 128 --losses "$ALL" --seeds 0,1,2
resnet18 compare-cifar10-resnet18-temperature --eps 1/255 --limit 128 --losses 'mifpe(T=0.3),mifpe(T=3),mifpe(T=10),mifpe(T=30)'
resnet18 compare-cifar10-resnet18-autoattack --eps 1/255 --limit 64 --losses ce,mifpe,tmifpe,autoattack

# The same models at l2.
# shellcheck disable=SC2086
{
    compare l2-mnist-fast $FAST --norm l2 --eps 2.0 --limit 1000 --losses "$BESIDE"
    compare l2-mnist-trades $TRADES --norm l2 --eps 2.0 --limit 200 --losses "$BESIDE"
    compare l2-mnist-lenet5 $LENET5 --norm l2 --eps 2.0 --limit 200 --losses "$BESIDE"
}
onnx l2-cifar10-resnet4b cifar10_resnet4b.onnx --norm l2 --eps 0.25 --losses "$BESIDE"
onnx l2-cifar10-resnet2b cifar10_resnet2b.onnx --norm l2 --eps 0.25 --losses "$BESIDE"
resnet18 l2-cifar10-resnet18 --norm l2 --eps 0.25 --limit 64 --losses ce,cw,dlr,mifpe,tmifpe,autoattack

# Targeted, which the paper lacks.
measure targeted-mnist table-targeted mnist-fast mnist-lenet5 --data "$MNIST" --limit 1000 --eps 0.3 \
    --weights "$SHARED/models/mnist_fast_at.pth" --weights "$SHARED/models/mnist_lenet5_adv.pt" --losses "$ALL"
measure targeted-mnist-trades table-targeted mnist-smallcnn --data "$MNIST" --limit 1000 --eps 0.3 \
    --weights "$SHARED/models/mnist_trades_smallcnn.pt" --losses "$ALL"
for network in resnet2b resnet4b; do
    measure targeted-cifar10-$network table-targeted "$SHARED/models/cifar10_$network.onnx" \
        --data "$CIFAR" --mean $MEAN --std $STD --eps 2/255 --losses "$ALL"
done

case $WANTED in --list) exit 0 ;; esac
[ "$DATA" != docs/data ] || "$BIN/python" scripts/write_table1.py
