#!/bin/sh
# Type-check the package under its import name, whatever the checkout is called, its tests, and programs of examples/:
# mypy.sh MYPY.
# The checkout itself is the package, so mypy sees it through a link called topoplan.
set -eu
case $1 in /*) mypy=$1 ;; *) mypy=$PWD/$1 ;; esac
checkout=$PWD
view=$(mktemp -d)
trap 'rm -rf "$view"' EXIT
ln -s "$checkout" "$view/topoplan"
cd "$view"
check() {
    "$mypy" --config-file "$checkout/pyproject.toml" --cache-dir "$checkout/.mypy_cache" "$@"
}
check -m topoplan -m topoplan.extras -p topoplan.topo -p topoplan.synth -p topoplan.runtime -p topoplan.cli
ln -s "$checkout/examples" "$view/examples"
check -p examples.classic -p examples.lab
extension=$checkout/examples/extension
MYPYPATH=$view:$extension check -p topoplan_extension
# Tests are no package: they import each other, and the benchmarks and scripts that they try, by file names.
MYPYPATH=$view:$checkout/tests:$checkout/benchmarks:$checkout/scripts:$extension check --explicit-package-bases "$checkout/tests"
# In a folder of their own: what they import is the package alone.
mkdir "$view/programs"
for program in plan_a_machine run_a_collective own_strategy; do ln -s "$checkout/examples/$program.py" "$view/programs"; done
MYPYPATH=$view check "$view"/programs/*.py
