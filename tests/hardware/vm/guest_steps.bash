# Read before the steps of every suite, in the guest. One line for each step goes to the second serial line, and what a failed
# step said to the first; orders from outside come by the second.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8
. /run/machine/settings
mkdir -p -m 0755 /run/tests
export TMPDIR=/run/tests
# What waits inside a step waits for longer than the step's bound, so that it is this one that says that the machine is slow.
export MARU_PATIENCE=${MARU_PATIENCE:-20}
said=/run/said
stty -F /dev/ttyS1 raw -echo
exec 3>/dev/ttyS1 4</dev/ttyS1

# step NAME SECONDS COMMAND...: COMMAND may be a function of the steps; inside, `set -e` holds. The bound is for a step that
# hangs; a step that needs longer says nothing about the product, so it counts as skipped and makes the suite a skipped one
# (with late=FAILED in the suite's settings, it has failed).
step() {
  local name=$1 seconds=$2 status=0
  shift 2
  # shellcheck disable=SC2046
  export -f $(compgen -A function)
  timeout -k 10 "$seconds" bash -ec '"$@"' bash "$@" >$said 2>&1 </dev/null 3>&- 4<&- || status=$?
  case $status in
    0) echo "ok $name" >&3 ;;
    77) echo "skipped $name: $(tail -n 1 $said)" >&3 ;;
    124 | 137) echo "${late:-skipped} $name: out of time after $seconds s" >&3 ;;
    *) echo "FAILED $name (status $status)" >&3 ;;
  esac
  if [ $status -ne 0 ] && [ $status -ne 77 ]; then
    echo "-- $name --"
    if [ "$(wc -l <$said)" -gt 100 ]; then
      grep -a -v -e '^\[' -e ' marud\[' $said | head -n 20  # the seed, and what a process said before it ended
      grep -a -A 8 'Failure$' $said | head -n 60  # marud's own log may be all that is left at the end
    fi
    tail -n 100 $said
  fi
  return $status
}
# What the last step said, below its line.
show() { sed 's/^/   /' $said >&3; }
skipped() { echo "skipped $1: $2" >&3; }
# For suites with several machines: a line that the suite waits for, and an order that the guest waits for.
tell() { echo "told $*" >&3; }
order() { local line; read -r line <&4 && [ "$line" = "$1" ] || { echo "FAILED order $1: found \"$line\"" >&3; return 1; }; }
# tests NAME SECONDS PROGRAM [ARGUMENT]: of googletest; its own counts follow.
tests() {
  step "$@" || true
  sed -n 's/^\[  PASSED  \] \([0-9]*\) tests\{0,1\}\..*/   \1 passed/p
    s/^\[  SKIPPED \] \([0-9]*\) tests\{0,1\},.*/   \1 skipped/p
    s/^\[  FAILED  \] \([0-9]*\) tests\{0,1\},.*/   \1 failed/p
    s/^\[  FAILED  \] \(.*\) (.* ms)$/   failed: \1/p' $said >&3
}
# poll SECONDS COMMAND...: until COMMAND succeeds.
poll() {
  local last=$((SECONDS + $1))
  shift
  until "$@"; do
    [ $SECONDS -lt $last ] || { echo "in vain until now: $*" >&2; return 124; }
    sleep 0.2
  done
}
