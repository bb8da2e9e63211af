#!/usr/bin/env python3
"""Tries volatile CXL memory: marud-provision makes regions and DAX devices of it, pools lie there, all of it is given back.

Debian's own QEMU has CXL devices with persistent memory only, and its own kernel makes no volatile regions. So the machines are
those of the backports' QEMU, with the newer kernel of Debian's security archive; one has Debian's own kernel, for its refusal.
One machine dies while marud works (QEMU is killed), and boots again with its memory as it was.
"""
import machine
import provision

COMMON = provision.COMMON + r'''
# Each access to this memory is emulated: devices are small.
volatile='[[provision]]
name = "fast"
kind = "cxl-region"
type = "volatile"'
kv='[[provision]]
name = "kv"
kind = "device"
region = "cxl:fast"
size = "32MiB"'
more='[[provision]]
name = "more"
kind = "device"
region = "cxl:fast"
size = "32MiB"'
ram='[[provision]]
name = "ram"
kind = "device"
region = "cxl:fast"
size = "128MiB"
mode = "system-ram"'
# seen EXPRESSION: of what list says, in Python, holds.
seen() {
  everything | python3 -c 'import json, sys
seen = json.load(sys.stdin)
devices = {one["device"]: one for one in seen["dax_devices"]}
if not eval(f"({sys.argv[1]})"): sys.exit(f"not so: {sys.argv[1]}\n{json.dumps(seen, indent=1)}")' "$1"
}
# made NAME: the device that is this table's.
made() { python3 -c 'import json, sys
made = json.load(open("/run/marud-provision/made.json"))["made"]
print([one["name"] for one in made if one["table"] == sys.argv[1]][0])' $1; }
# zeros DEVICE: as far as a look at the beginning of each MiB tells.
zeros() {
  python3 - $1 <<'PYTHON'
import mmap, os, sys
with open(f"/sys/bus/dax/devices/{sys.argv[1]}/size", encoding="utf-8") as file:
    size = int(file.read())
memory = mmap.mmap(os.open(f"/dev/{sys.argv[1]}", os.O_RDWR), size)
for at in range(0, size, 1 << 20):
    assert not memory[at:at + 4096].strip(b"\0"), f"something lies at {at >> 20} MiB of {sys.argv[1]}"
PYTHON
}
marud="$build/daemon/marud"
client="$build/tests/process/hosts_process_test"
export MARU_SOCKET=/run/tests/marud.sock
log=/run/tests/marud.log
pid=/run/tests/marud.pid
ctl() { "$build/daemon/marudctl" --timeout-ms 600000 "$@"; }
answers() { ctl status >/dev/null 2>&1; }
start() {
  : >$log
  printf '[daemon]\nsocket = "%s"\nstate_dir = "/run/tests/state"\n[[pool]]\nname = "default"\nbackend = "dax"
device = "/dev/%s"\npage_bytes = "64KiB"\nregion_bytes = "4MiB"\nlanes = 16\npins = 1024\nchecksums = true
high_watermark = 1\n' $MARU_SOCKET $1 >/run/tests/pool.toml
  "$marud" --config /run/tests/pool.toml 2>>$log 3>&- 4<&- &
  echo $! >$pid
  poll 100 answers || { cat $log; return 1; }
}
stop() { kill "-${1:-TERM}" $(cat $pid); while kill -0 $(cat $pid) 2>/dev/null; do sleep 0.1; done; }
field() { ctl --json status | python3 -c 'import json, sys; print(json.load(sys.stdin)["pools"][0][sys.argv[1]])' $1; }
logged() { poll 10 grep -qe "$1" $log || :; grep -e "$1" $log || { cat $log; echo "not said: $1"; return 1; }; }
insert() { /run/machine/busybox insmod /run/machine/modules/$1; }
export volatile kv more ram marud client MARU_SOCKET log pid
'''

FIRST = COMMON + r'''
list() {
  says 'mem0 .*256 MiB' list
  seen '[(one["volatile_bytes"], one["persistent_bytes"]) for one in seen["cxl_memory"]] == [(256 << 20, 0)]'
  seen 'not seen["cxl_regions"] and not seen["dax_regions"]'
  everything >/run/tests/before
}
plan() {
  table "$volatile
$kv"
  says '1. make the CXL region "fast" in decoder0.0: 256 MiB, volatile, from mem0' plan
  grep -q '2. make a device for "kv" in cxl:fast: 32 MiB, cleared' /run/tests/out
  everything >/run/tests/after
  cmp /run/tests/before /run/tests/after
}
# The driver that gives memory to the kernel is not there, which no plan can know: all that was made before is undone.
half_way() {
  table "$volatile
$kv
${ram/128/32}"
  refused 'undone: make the CXL region "fast"' apply
  grep -q 'the machine is as it was before' /run/tests/out
  everything >/run/tests/after
  diff /run/tests/before /run/tests/after
}
apply() {
  table "$volatile
$kv"
  says 'fast: region' apply
  says 'volatile' list
  seen '[(one["type"], one["state"], one["size_bytes"], one["memory"]) for one in seen["cxl_regions"]] ==
    [("volatile", "enabled", 256 << 20, ["mem0"])]'
  seen '[(one["dynamic"], one["cxl"], one["cxl_region"], one["free_bytes"]) for one in seen["dax_regions"]] ==
    [(True, True, seen["cxl_regions"][0]["region"], 224 << 20)]'
  seen "[(name, one['mode'], one['state'], one['size_bytes']) for name, one in devices.items()] ==
    [('$(made kv)', 'devdax', 'blank', 32 << 20)]"
  zeros $(made kv)
}
twice() {
  everything >/run/tests/before
  says 'nothing to do' apply
  everything >/run/tests/after
  cmp /run/tests/before /run/tests/after
}
pool() {
  start $(made kv)
  logged 'volatile, CXL'
  "$client" --role store $MARU_SOCKET key "a text in volatile memory"
  [ "$("$client" --role find $MARU_SOCKET key)" = "a text in volatile memory" ]
  seen "devices['$(made kv)']['state'] == 'pool' and 'marud' in devices['$(made kv)']['used_by']"
  ctl check
}
restarts() {
  local uuid=$(field uuid)
  stop KILL
  start $(made kv)
  [ "$(field uuid)" = $uuid ]
  [ "$("$client" --role find $MARU_SOCKET key)" = "a text in volatile memory" ]
  says 'nothing to do' apply
  ctl check
}
split() {
  table "$volatile
$kv
$more"
  says 'make a device for "more"' apply
  seen "len(devices) == 2 and devices['$(made more)']['mode'] == 'devdax' and devices['$(made more)']['state'] == 'blank'"
  sed -i '$s/32MiB/48MiB/' $configuration
  says 'resize dax.* from 32 MiB to 48 MiB' apply
  says 'nothing to do' apply
  seen "devices['$(made more)']['size_bytes'] == 48 << 20 and seen['dax_regions'][0]['free_bytes'] == 176 << 20"
}
refusals() {
  refused 'of the table "[a-z]*" in region.*release it first' --force release fast
  refused 'open in marud' --force release kv
  says 'give back' release more
  stop
  refused 'found the pool .* would be lost' release kv
  seen "list(devices) == ['$(made kv)']"
  start $(made kv)
  [ "$("$client" --role find $MARU_SOCKET key)" = "a text in volatile memory" ]
}

step list 100 list
step "plan changes nothing" 100 plan
step "a failure half-way is undone" 300 half_way
step "apply makes a region and a device" 100 apply
step "apply again changes nothing" 100 twice
step "a pool in volatile CXL memory" 150 pool
step "a killed marud finds its blocks" 150 restarts
step "a second device is made and resized" 150 split
step "what is in use is not given back" 150 refusals
tell "at work"
order "never"
'''

SECOND = COMMON + r'''
# The memory has what it had before the power went, and nobody made a region: as apply would, without clearing anything.
as_firmware() {
  cd /sys/bus/cxl/devices
  local region=$(cat decoder0.0/create_ram_region) decoder
  decoder=$(basename $(echo endpoint*/decoder*.0))
  echo $region >decoder0.0/create_ram_region
  echo 1 >$region/interleave_ways
  echo 256 >$region/interleave_granularity
  echo ram >$decoder/mode
  echo $((256 << 20)) >$decoder/dpa_size
  echo $((256 << 20)) >$region/size
  echo $decoder >$region/target0
  echo 1 >$region/commit
  echo $region >/sys/bus/cxl/drivers/cxl_region/bind
  cd /
  poll 30 seen 'len(devices) == 1'
}
# A table without a device of its own finds the region and enables what the kernel made of it, and nothing is cleared.
found() {
  as_firmware
  table "$volatile"
  says 'enable dax' apply
  says 'fast: .* region0 has it' apply
  seen '[one["state"] for one in devices.values()] == ["pool"]'
}
shrunk() {
  table "$volatile
[[provision]]
name = \"kv\"
kind = \"device\"
device = \"$(basename /dev/dax*)\"
size = \"32MiB\""
  refused 'found the pool .* would be lost' apply
  says 'resize dax.* from 256 MiB to 32 MiB' --force apply
  seen '[(one["state"], one["size_bytes"]) for one in devices.values()] == [("pool", 32 << 20)]'
}
verified() {
  start $(basename /dev/dax*)
  logged 'cut off in another boot: every block is verified before it serves'
  [ "$("$client" --role find $MARU_SOCKET key)" = "a text in volatile memory" ]
  stop
}
# As after a boot in which the memory lost what it held, and holds anything now.
garbage() {
  python3 - <<PYTHON
import mmap, os
memory = mmap.mmap(os.open("/dev/$(basename /dev/dax*)", os.O_RDWR), 2 << 20)
memory[0:4096] = bytes(range(1, 129)) * 32
PYTHON
  seen '[one["state"] for one in devices.values()] == ["other content"]'
  local status=0
  : >$log
  timeout 60 "$marud" --config /run/tests/pool.toml 2>>$log || status=$?
  [ $status -eq 1 ]
  logged "found content that is not marud's"
  # In another boot than the state file's, this is what was to be expected.
  sed -i "s/$(cat /proc/sys/kernel/random/boot_id)/00000000-0000-4000-8000-000000000001/" $(grep -rl default /run/tests/state)
  start $(basename /dev/dax*)
  logged 'which is what volatile memory holds after a loss of power: it is cleared and formatted'
  [ "$(field blocks)" = 0 ]
  stop
}
step "a region that is there is taken as it is" 100 found
step "what is lost by it is not done silently" 100 shrunk
step "a loss of power that the memory survived" 150 verified
step "garbage is recognised" 150 garbage
'''

THIRD = COMMON + r'''
# enabled PROCESS: the region is, or the process that makes it has ended.
enabled() { seen '[one["state"] for one in seen["cxl_regions"]] == ["enabled"]' 2>/dev/null || ! kill -0 $1 2>/dev/null; }
# The module that makes the device comes late, as udev loads it; the other one gives the device to the kernel at once.
kernel_takes() {
  insert kmem
  everything >/run/tests/first
  # The kernel takes whole blocks of 128 MiB: the first one is for it.
  table "$volatile
$ram
$kv"
  provision apply >/run/tests/out 2>&1 &
  local applying=$!
  poll 200 enabled $applying
  insert dax_cxl
  wait $applying || { cat /run/tests/out; return 1; }
  grep 'give the device of "ram" to the kernel' /run/tests/out
  says 'nothing to do' apply
  seen "devices['$(made kv)']['mode'] == 'devdax'"
  seen "devices['$(made ram)']['mode'] == 'system-ram' and devices['$(made ram)']['state'].startswith('online')"
}
kernel_keeps() {
  table "$volatile
${ram/system-ram/devdax}
$kv"
  refused 'in use as memory of the kernel' apply
  refused 'in use as memory of the kernel' release ram
  seen "devices['$(made ram)']['state'].startswith('online')"
}
kernel_gives() {
  says 'take dax.* from the kernel' --force apply
  says 'nothing to do' apply
  seen "devices['$(made ram)']['mode'] == 'devdax' and devices['$(made ram)']['state'] == 'blank'"
}
release() {
  says 'give back' release ram
  says 'give back' release kv
  says 'remove the CXL region' release fast
  everything >/run/tests/after
  diff /run/tests/first /run/tests/after
}
whole() {
  table "$volatile"
  says 'one device: devdax, cleared' apply
  says 'nothing to do' apply
  seen '[(one["mode"], one["state"], one["size_bytes"]) for one in devices.values()] == [("devdax", "blank", 256 << 20)]'
  zeros $(basename /dev/dax*)
  says 'remove the CXL region' release fast
  everything >/run/tests/after
  diff /run/tests/first /run/tests/after
}

step "a device for the kernel, beside one for pools" 300 kernel_takes
step "what the kernel uses is not taken silently" 100 kernel_keeps
step "what the kernel uses is taken with --force" 300 kernel_gives
step "release gives everything back" 100 release
step "a whole region ends as devdax" 300 whole
'''

TWO = COMMON + r'''
interleaved() {
  everything >/run/tests/before
  table "$volatile
$kv"
  says '512 MiB, volatile, from mem0, mem1' apply
  seen '[(sorted(one["memory"]), one["size_bytes"]) for one in seen["cxl_regions"]] == [(["mem0", "mem1"], 512 << 20)]'
  says 'nothing to do' apply
  zeros $(made kv)
  python3 - $(made kv) <<'PYTHON'
import mmap, os, sys
memory = mmap.mmap(os.open(f"/dev/{sys.argv[1]}", os.O_RDWR), 2 << 20)
memory[0:4096] = bytes(range(256)) * 16
assert memory[0:4096] == bytes(range(256)) * 16
memory[0:4096] = bytes(4096)
PYTHON
  says 'give back' release kv
  says 'remove the CXL region' release fast
  everything >/run/tests/after
  diff /run/tests/before /run/tests/after
}
step "a region over two devices" 150 interleaved
'''

# This kernel takes the processor for one that cannot drop its caches, and puts no region into force there.
REFUSING = COMMON + r'''
undone() {
  everything >/run/tests/before
  table "$volatile"
  refused 'put it into force' apply
  grep -q 'nothing was changed' /run/tests/out
  everything >/run/tests/after
  diff /run/tests/before /run/tests/after
}
step "a region that is refused half-way leaves nothing" 100 undone
'''

OLD = COMMON + r'''
old() {
  everything >/run/tests/before
  table "$volatile"
  refused 'makes no volatile region in decoder0.0 (no create_ram_region), expected 6.3 or newer' plan
  refused 'nothing was changed' apply
  everything >/run/tests/after
  diff /run/tests/before /run/tests/after
}
step "a kernel that is too old" 100 old
'''


def run(suite):
    for program in ("daemon/marud", "daemon/marudctl", "daemon/marud-provision", "tests/process/hosts_process_test"):
        suite.program(program)
    # Otherwise the kernel puts no region into force; and clearing byte by byte would take minutes.
    processor = "max,-hypervisor,-erms"

    def volatile(name, devices=1, **more):
        memories = [machine.CxlMemory(suite.file(f"{name}{number}.img", 256 * machine.MIB)) for number in range(devices)]
        # What memory holds when power comes, where the first device is made and where nothing but the whole is.
        for memory in memories:
            with open(memory.path, "r+b") as file:
                for place in (10, 200):
                    file.seek(place * machine.MIB)
                    file.write(b"old" * 1000)
        more = {"modules": machine.VOLATILE_CXL, "processor": processor} | more
        return suite.machine(name, cxl=memories, **more)

    survivor = volatile("survivor")
    survivor.start(FIRST, suite.seconds)
    survivor.wait_for("told at work")
    survivor.kill()
    survivor.run(SECOND, suite.seconds)
    volatile("kernel", modules=[one for one in machine.VOLATILE_CXL if one != "dax_cxl"],
             late_modules=["dax_cxl", *machine.KMEM]).run(THIRD, suite.seconds)
    volatile("two", devices=2).run(TWO, suite.seconds)
    volatile("refusing", processor="max").run(REFUSING, suite.seconds)
    volatile("old", kernel=machine.Kernel(suite.cache), modules=machine.CXL, processor="max").run(OLD, suite.seconds)


if __name__ == "__main__":
    machine.main("volatile", run, __doc__, seconds=900, kernel="linux-image-6.12-amd64", emulator=machine.newer_emulator)
