#!/bin/sh
# Create a virtual environment with topoplan and its dependencies in it: setup.sh FOLDER.
# PYTHON (default python3) makes it. Torch comes first: its CPU build on a machine without an NVIDIA driver, so that
# nothing pulls gigabytes of CUDA libraries; on other machines what pip gives.
set -eu
venv=$1
python=${PYTHON:-python3}
version=${TORCH_VERSION:-2.13.0}

"$python" - <<'CHECK' || { echo "topoplan needs Python 3.10 or newer; set PYTHON to one" >&2; exit 1; }
import sys
sys.exit(sys.version_info < (3, 10))
CHECK
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
pip() { "$venv/bin/python" -m pip --disable-pip-version-check --quiet "$@"; }

if ! "$venv/bin/python" -c 'import torch' 2>/dev/null; then
    echo "setting up $venv: torch $version ..." >&2
    if [ -e /proc/driver/nvidia/version ] || [ "$(uname)" != Linux ]; then
        pip install "torch==$version"
    elif ! pip install "torch==$version+cpu" 2>/dev/null; then
        echo "no CPU build of torch in pip's indexes (see PyTorch's installation page to add its index of CPU builds);" >&2
        echo "installing torch $version as pip has it" >&2
        pip install "torch==$version"
    fi
fi
echo "setting up $venv: topoplan ..." >&2
pip install --editable '.[run]'
