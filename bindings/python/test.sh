#!/usr/bin/env bash
# Runs the binding's tests: test.sh [PYTHON [TEST...]]. Needs TRIREME_LIBRARY, the path of libtrireme.so.1; TRIREME_COMMAND, the
# path of the trireme command, if it does not lie beside the library. Last line: "N passed, N failed, N skipped".
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
python=${1:-python3}
shift || true
exec "$python" "$here/tests" "$@"
