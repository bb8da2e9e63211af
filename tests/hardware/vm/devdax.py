#!/usr/bin/env python3
"""Tries pools on real DAX devices: formatting, replay, restart by uuid, refusals, two devices for one pool, loss of power.

One machine has two NVDIMMs, each a device of 2 MiB alignment. It dies twice while marud works (QEMU is killed), and boots again
on the same NVDIMMs.
"""
import machine

COMMON = r'''
marud="$build/daemon/marud"
ctl() { "$build/daemon/marudctl" --timeout-ms 600000 "$@"; }
export MARU_SOCKET=/run/tests/marud.sock
pid=/run/tests/marud.pid
log=/run/tests/marud.log
config=/run/tests/marud.toml
# configure LINES: of the pool.
configure() {
  printf '[daemon]\nsocket = "%s"\nstate_dir = "%s"\n[[pool]]\nname = "default"\nbackend = "dax"\npage_bytes = "64KiB"\n%s\n' \
    $MARU_SOCKET "${state:-/run/tests/state}" "$1" >$config
  printf 'region_bytes = "4MiB"\nlanes = 16\npins = 1024\nchecksums = true\nhigh_watermark = 1\n' >>$config
}
answers() { [ -S $MARU_SOCKET ] && ctl status >/dev/null 2>&1; }
start() {
  : >$log
  "$marud" --config $config 2>>$log 3>&- 4<&- &
  echo $! >$pid
  poll 100 answers || { cat $log; return 1; }
}
stop() { kill "-${1:-TERM}" $(cat $pid); while kill -0 $(cat $pid) 2>/dev/null; do sleep 0.1; done; }
field() { ctl --json status | python3 -c 'import json, sys; print(json.load(sys.stdin)["pools"][0][sys.argv[1]])' $1; }
says() { poll 10 grep -qe "$1" $log || :; grep -e "$1" $log || { cat $log; echo "not said: $1"; return 1; }; }
# refuses TEXT: marud does not start, and says why.
refuses() {
  local status=0
  : >$log
  timeout 60 "$marud" --config $config 2>>$log || status=$?
  [ $status -ne 124 ] || return 124  # too slow to say anything
  [ $status -eq 1 ] || { cat $log; echo "status $status, expected 1"; return 1; }
  says "$1"
}
replay() {
  "$build/daemon/tools/maru-replay" --trace "$source/tests/data/mooncake_conversation.jsonl" --clients 2 --no-progress \
    --verify --requests ${1:-20}
}
# poke DEVICE OFFSET TEXT: devices cannot be written, only mapped.
poke() {
  python3 - "$@" <<'PYTHON'
import mmap, os, sys
device, at, text = sys.argv[1], int(sys.argv[2]), sys.argv[3].encode()
step = 2 << 20
memory = mmap.mmap(os.open(device, os.O_RDWR), step, offset=at // step * step)
memory[at % step:at % step + len(text)] = text
PYTHON
}
peek() {
  python3 - "$@" <<'PYTHON'
import mmap, os, sys
memory = mmap.mmap(os.open(sys.argv[1], os.O_RDWR), 2 << 20)
sys.stdout.write(memory[int(sys.argv[2]):int(sys.argv[2]) + int(sys.argv[3])].hex())
PYTHON
}
export marud MARU_SOCKET pid log config
'''

FIRST = COMMON + r'''
namespaces() {
  # A module that was never labelled has one namespace already, of all its memory.
  for number in 0 1; do
    ndctl create-namespace -f -m devdax -a 2M -e namespace$number.0 || ndctl create-namespace -m devdax -a 2M -r region$number
  done
  poll 30 [ -c /dev/dax1.0 ]
  ls -l /dev/dax*
}
blank() {
  configure 'device = "/dev/dax0.0"
align = "2MiB"'
  start
  says 'looked at'
  [ "$(field backend)" = dax ]
}
replays() { replay 20; [ "$(field blocks)" -gt 0 ]; ctl check; }
killed() {
  local before=$(field blocks) uuid=$(field uuid)
  stop KILL
  start
  [ "$(field blocks)" = $before ]
  [ "$(field uuid)" = $uuid ]
  [ "$(field epoch)" = 2 ]
  ctl check
}
by_uuid() {
  local uuid=$(field uuid) before=$(field blocks)
  stop
  rm -r /run/tests/state
  configure "device = \"uuid:$uuid\""
  start
  [ "$(field uuid)" = $uuid ]
  [ "$(field blocks)" = $before ]
  replay 5
}
busy() {
  cp $config /run/tests/first.toml
  state=/run/tests/second MARU_SOCKET=/run/tests/second.sock configure 'device = "/dev/dax0.0"'
  log=/run/tests/second.log
  refuses 'another marud has it'
  cp /run/tests/first.toml $config
}
foreign() {
  stop
  state=/run/tests/third configure 'device = "/dev/dax1.0"'
  poke /dev/dax1.0 0 XFSB
  refuses 'found an XFS file system'
  [ "$(peek /dev/dax1.0 0 4)" = 58465342 ]
  poke /dev/dax1.0 0 "$(printf '\1\1\1\1')"
  refuses "found content that is not marud's"
  timeout 60 "$marud" --config $config --format default && return 1
  timeout 60 "$marud" --config $config --format default --force
  poke /dev/dax1.0 4194304 x  # a page's, as a client might have left it
  start
  stop
}
wrong_uuid() {
  configure 'device = "uuid:00000000-0000-0000-0000-000000000001"'
  refuses 'found /dev/dax0.0, devdax, a pool of marud'
  configure 'device = "/dev/dax0.0"
align = "1GiB"'
  refuses 'found an alignment of 2 MiB, configured is 1 GiB'
  configure 'device = "/dev/dax7.0"'
  refuses 'expected one of this name'
  configure 'device = "/dev/null"'
  refuses 'a character device of another kind'
}
system_ram() {
  echo dax1.0 >/sys/bus/dax/drivers/device_dax/unbind
  echo dax1.0 >/sys/bus/dax/drivers/kmem/new_id
  configure 'device = "/dev/dax1.0"'
  local status=0
  refuses 'the mode system-ram' || status=$?
  echo dax1.0 >/sys/bus/dax/drivers/kmem/unbind || true
  echo dax1.0 >/sys/bus/dax/drivers/device_dax/bind || true
  return $status
}
split() {
  state=/run/tests/split configure 'control_device = "/dev/dax0.0"
device = "/dev/dax1.0"'
  timeout 100 "$marud" --config $config --format default --force
  start
  replay 10
  local before=$(field blocks)
  stop KILL
  start
  [ "$(field blocks)" = $before ]
  ctl check
  stop
}
working() {
  configure 'device = "/dev/dax0.0"'
  timeout 100 "$marud" --config $config --format default --force
  start
  replay 20
}

step namespaces 60 namespaces
step "a blank device is formatted" 100 blank
step replay 100 replays
step "a killed marud finds its blocks" 100 killed
step "a pool is found by its uuid" 100 by_uuid
step "a second marud is refused" 60 busy
step "what is not marud's is refused" 100 foreign
step "wrong names and shapes are refused" 100 wrong_uuid
step "a pool on two devices" 100 split
step "work before the power goes" 100 working
tell "at work"
order "never"
'''

SECOND = COMMON + r'''
verified() {
  configure 'device = "/dev/dax0.0"'
  start
  says 'every block is verified before it serves'
  says 'of [1-9][0-9]* blocks with .* 0 were dropped'
  [ "$(field blocks)" -gt 0 ]
  ctl check
  replay 20
}
step "a loss of power: verified" 100 verified
tell "at work"
order "never"
'''

THIRD = COMMON + r'''
formatted() {
  configure 'device = "/dev/dax0.0"
after_power_loss = "format"'
  start
  says 'it is formatted anew'
  says 'cleared'
  [ "$(field blocks)" = 0 ]
  replay 5
  ctl check
  stop
}
system_ram() {
  echo dax1.0 >/sys/bus/dax/drivers/device_dax/unbind
  echo dax1.0 >/sys/bus/dax/drivers/kmem/new_id
  configure 'device = "/dev/dax1.0"'
  refuses 'the mode system-ram'
}
step "a loss of power: formatted" 100 formatted
step "memory of the kernel is refused" 60 system_ram
'''


def run(suite):
    for program in ("daemon/marud", "daemon/marudctl", "daemon/tools/maru-replay"):
        suite.program(program)
    nvdimms = [machine.Nvdimm(suite.file(f"nvdimm{number}.img", 258 * machine.MIB)) for number in range(2)]
    one = suite.machine("one", modules=machine.NVDIMM + machine.KMEM, nvdimms=nvdimms,
                        # On a busy machine the emulated timer is late, which Linux takes for a broken one.
                        kernel_parameters=["no_timer_check"])
    for steps in (FIRST, SECOND):
        one.start(steps, suite.seconds)
        one.wait_for("told at work")
        one.kill()
    one.run(THIRD, suite.seconds)


if __name__ == "__main__":
    machine.main("devdax", run, __doc__)
