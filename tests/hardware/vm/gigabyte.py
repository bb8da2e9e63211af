#!/usr/bin/env python3
"""Tries a pool on a DAX device of 1 GiB alignment, of which the kernel maps nothing but multiples of 1 GiB: what marud and a
client map, a replay, a marud that is killed.

One machine has an NVDIMM of 3 GiB, a file with holes. The first GiB goes to the alignment, and the device has two.
"""
import devdax
import machine

STEPS = devdax.COMMON + r'''
client="$build/tests/process/hosts_process_test"
export client
namespace() {
  ndctl create-namespace -f -m devdax -a 1G -e namespace0.0 || ndctl create-namespace -m devdax -a 1G -r region0
  poll 30 [ -c /dev/dax0.0 ]
  [ "$(cat /sys/bus/dax/devices/dax0.0/align)" = $((1 << 30)) ] && [ "$(cat /sys/bus/dax/devices/dax0.0/size)" = $((2 << 30)) ]
}
# What the kernel takes, and what it would refuse marud and its clients.
refuses_less() {
  python3 - <<'PYTHON'
import mmap, os
device = os.open("/dev/dax0.0", os.O_RDWR)
for size, offset, is_taken in ((2 << 20, 0, False), (1 << 30, 2 << 20, False), (1 << 30, 1 << 30, True)):
    try:
        mmap.mmap(device, size, offset=offset).close()
        assert is_taken, f"{size} bytes from {offset} on were mapped"
    except OSError:
        assert not is_taken, f"{size} bytes from {offset} on were not mapped"
PYTHON
}
serves() {
  configure 'device = "/dev/dax0.0"
align = "1GiB"'
  start
  [ "$(field backend)" = dax ]
}
# maps_whole PROCESS: what it maps of the device.
maps_whole() {
  python3 - $1 <<'PYTHON'
import sys
maps = [line for line in open(f"/proc/{sys.argv[1]}/maps") if line.endswith(" /dev/dax0.0\n")]
print(*maps, sep="", end="")
assert maps, "it maps nothing of the device"
for line in maps:
    begin, end = (int(text, 16) for text in line.split()[0].split("-"))
    offset = int(line.split()[2], 16)
    assert begin % (1 << 30) == 0 and end % (1 << 30) == 0 and offset % (1 << 30) == 0, line
PYTHON
}
holds() {
  "$client" --role store $MARU_SOCKET key "some text"
  "$client" --role hold $MARU_SOCKET key >/run/tests/held &
  local holder=$! status=0
  poll 30 grep -q "some text" /run/tests/held
  maps_whole $holder || status=$?
  kill $holder
  return $status
}
replays() { replay 20; [ "$(field blocks)" -gt 0 ]; ctl check; }
killed() {
  local before=$(field blocks) uuid=$(field uuid)
  stop KILL
  configure "device = \"uuid:$uuid\""
  start
  [ "$(field blocks)" = $before ]
  [ "$(field uuid)" = $uuid ]
  [ "$(field epoch)" = 2 ]
  maps_whole $(cat $pid)
  ctl check
  stop
}
step "a device of 1 GiB alignment" 60 namespace
step "the kernel maps no less" 60 refuses_less
step "a blank device is formatted" 100 serves
step "marud maps multiples of it" 60 maps_whole $(cat $pid)
show
step "so does a client that reads" 60 holds
show
step "replay" 100 replays
step "a killed marud finds its blocks" 100 killed
'''


def run(suite):
    for program in ("daemon/marud", "daemon/marudctl", "daemon/tools/maru-replay", "tests/process/hosts_process_test"):
        suite.program(program)
    nvdimm = machine.Nvdimm(suite.file("nvdimm.img", 3 * machine.GIB + 2 * machine.MIB))
    suite.machine("one", modules=machine.NVDIMM, nvdimms=[nvdimm]).run(STEPS, suite.seconds)


if __name__ == "__main__":
    machine.main("gigabyte", run, __doc__)
