#!/usr/bin/env python3
"""Tries marud-provision on devices: what it lists, makes, resizes, switches and gives back, and what it refuses.

One machine has an NVDIMM without labels and memory of specific purpose (a dynamic DAX region), another one a CXL device with
persistent memory. Volatile CXL memory, which QEMU has from version 8.1 on, is tried by scripts/vm-test volatile.
"""
import machine

COMMON = r'''
provision="$build/daemon/marud-provision"
configuration=/run/tests/marud.toml
# table TEXT: the configuration is this and a pool.
table() { printf '[[pool]]\nname = "p"\nbackend = "memory"\nsize = "1GiB"\n%s\n' "$1" >$configuration; }
provision() { "$provision" --config $configuration "$@"; }
# refused TEXT ARGUMENT...: fails, and says TEXT.
refused() {
  local text=$1
  shift
  if provision "$@" >/run/tests/out 2>&1; then cat /run/tests/out; echo "done, but expected a refusal"; return 1; fi
  cat /run/tests/out
  grep -q -e "$text" /run/tests/out
}
# says TEXT ARGUMENT...: succeeds, and says TEXT.
says() {
  local text=$1
  shift
  provision "$@" >/run/tests/out 2>&1 || { cat /run/tests/out; return 1; }
  cat /run/tests/out
  grep -q -e "$text" /run/tests/out
}
# Everything that there is, to compare.
everything() { "$provision" --json list; }
export provision configuration
'''

NVDIMM = COMMON + r'''
list() {
  says 'region1 .*512 MiB' list
  everything >/run/tests/before
  python3 - <<PYTHON
import json
seen = json.load(open("/run/tests/before"))
region, = seen["nvdimm_regions"]
assert region["labels"] == "none yet" and region["state"] == "enabled", region
assert region["size_bytes"] == 512 << 20 and region["health"], region
dynamic, = [one for one in seen["dax_regions"] if one["dynamic"]]
assert dynamic["size_bytes"] == 256 << 20, dynamic
PYTHON
}
plan() {
  table '[[provision]]
name = "kv"
kind = "namespace"
size = "256MiB"
align = "2MiB"'
  says '2. make the namespace "kv" on region1' plan
  everything >/run/tests/after
  cmp /run/tests/before /run/tests/after
}
apply() {
  says 'kv: namespace1' apply
  says '"name": "kv"' --json list
  # Nobody gets what another one left: the whole device is zeros.
  python3 - <<PYTHON
import json, mmap, os, subprocess
seen = json.loads(subprocess.run(["$provision", "--json", "list"], stdout=subprocess.PIPE, check=True).stdout)
one, = seen["namespaces"]
assert (one["name"], one["mode"], one["align_bytes"]) == ("kv", "devdax", 2 << 20), one
device, = [d for d in seen["dax_devices"] if d["device"] == one["device"]]
assert device["mode"] == "devdax" and device["state"] == "blank", device
memory = mmap.mmap(os.open("/dev/" + device["device"], os.O_RDWR), device["size_bytes"])
assert not any(memory[at:at + 4096].strip(b"\0") for at in range(0, len(memory), 1 << 20))
PYTHON
}
twice() { says 'nothing to do' apply; }
too_large() {
  table '[[provision]]
name = "kv"
kind = "namespace"
size = "256MiB"
[[provision]]
name = "more"
kind = "namespace"
size = "512MiB"'
  refused 'marud.toml:12: provision "more": size: found that region1 has 256 MiB free' apply
  says 'kv' list
}
# Without its driver the kernel does not take memory, which no plan can know: what was made before is undone.
half_way() {
  everything >/run/tests/before
  /run/machine/busybox rmmod kmem
  table '[[provision]]
name = "odd"
kind = "namespace"
size = "32MiB"
[[provision]]
name = "ram"
kind = "device"
device = "dax0.0"
mode = "system-ram"'
  refused 'undone: make the namespace "odd"' apply
  grep -q 'the machine is as it was before' /run/tests/out
  /run/machine/busybox insmod /run/machine/modules/kmem
  everything >/run/tests/after
  diff /run/tests/before /run/tests/after
}
held() {
  exec 9</dev/$(device_of kv)
  refused 'open in bash (process' --force release kv
  exec 9<&-
}
device_of() { "$provision" --json list | python3 -c 'import json, sys
print([n["device"] for n in json.load(sys.stdin)["namespaces"] if n.get("name") == sys.argv[1]][0])' "$1"; }
# Done by hand, behind the back of the configuration.
to_kernel() {
  local device=$1 driver
  echo $device >/sys/bus/dax/drivers/device_dax/unbind
  echo $device >/sys/bus/dax/drivers/kmem/new_id
  until grep -q '(kmem)' /proc/iomem; do sleep 0.2; done
  for state in /sys/devices/system/memory/memory*/state; do
    [ "$(cat $state)" = online ] || echo online_movable >$state
  done
}
kernel_keeps() {
  to_kernel $(device_of kv)
  table '[[provision]]
name = "kv"
kind = "namespace"
size = "256MiB"'
  refused 'in use as memory of the kernel' apply
  says 'system-ram' list
}
kernel_gives() {
  says 'take dax.* from the kernel' apply --force
  says 'nothing to do' apply
}
release() {
  says 'remove namespace1' release kv
  ! "$provision" list | grep -q 'namespace1' || return 1
  refused 'found nothing that was made under this name' release kv
}
dynamic_region() { "$provision" --json list | python3 -c 'import json, sys
print([r["region"] for r in json.load(sys.stdin)["dax_regions"] if r["dynamic"]][0])'; }
# hot_and_cold REGION SIZE SIZE: tables for a device each.
hot_and_cold() {
  table "[[provision]]
name = \"hot\"
kind = \"device\"
region = \"$1\"
size = \"$2\"
[[provision]]
name = \"cold\"
kind = \"device\"
region = \"$1\"
size = \"$3\""
}
dynamic() {
  local hmem
  hmem=$(dynamic_region)
  hot_and_cold $hmem 64MiB 128MiB
  refused 'has 0 B free, the rest is in' apply
  sed -i "0,/size = \"64MiB\"/s//size = \"64MiB\"\nreplace = [\"$hmem.0\"]/" $configuration
  says "give back $hmem.0" apply
  says 'nothing to do' apply
  sed -i 's/size = "64MiB"/size = "96MiB"/' $configuration
  says 'resize dax.* from 64 MiB to 96 MiB' apply
  says 'nothing to do' apply
  says 'give back' release hot
  says 'give back' release cold
  "$provision" --json list | python3 -c 'import json, sys
region, = [r for r in json.load(sys.stdin)["dax_regions"] if r["dynamic"]]
assert region["free_bytes"] == region["size_bytes"], region'
}

# The kernel keeps the first device of a region, empty, and gives a new one the lowest free number; removed ones get their names
# back all the same. It takes no part of a block of memory, which only the last step finds.
names() {
  local hmem
  hmem=$(dynamic_region)
  hot_and_cold $hmem 4MiB 6MiB
  says 'done: 2 steps' apply
  "$provision" list >/run/tests/before
  table "[[provision]]
name = \"odd\"
kind = \"device\"
region = \"$hmem\"
size = \"2MiB\"
mode = \"system-ram\"
replace = [\"$hmem.0\", \"$hmem.1\"]"
  refused "undone: give back $hmem.0" apply
  grep -q 'the machine is as it was before' /run/tests/out
  "$provision" list >/run/tests/after
  diff /run/tests/before /run/tests/after
}

step list 100 list
step "plan changes nothing" 100 plan
step "apply makes a namespace" 100 apply
step "apply again changes nothing" 100 twice
step "a region that is too small is refused" 100 too_large
step "a failure half-way is undone" 100 half_way
step "a device that is open is not taken" 100 held
step "what the kernel uses is not taken silently" 100 kernel_keeps
step "what the kernel uses is taken with --force" 100 kernel_gives
step release 100 release
step "devices in a dynamic region" 150 dynamic
step "removed devices get their names back" 150 names
'''

CXL = COMMON + r'''
cxl() {
  # Each access to this memory is emulated: little of it is cleared.
  says 'mem0' list
  table '[[provision]]
name = "kv"
kind = "namespace"
region = "cxl:expander"
size = "32MiB"
[[provision]]
name = "expander"
kind = "cxl-region"'
  says 'kv: namespace' apply
  says 'dax' list
  says 'nothing to do' apply
  python3 - <<PYTHON
import json, mmap, os, subprocess
seen = json.loads(subprocess.run(["$provision", "--json", "list"], stdout=subprocess.PIPE, check=True).stdout)
device, = seen["dax_devices"]
memory = mmap.mmap(os.open("/dev/" + device["device"], os.O_RDWR), 2 << 20)
memory[0:8] = b"here am "
assert memory[0:8] == b"here am ", memory[0:8]
memory[0:8] = bytes(8)
PYTHON
}
cxl_release() {
  refused 'release it first' release expander
  says 'remove namespace' release kv
  says 'remove the CXL region' release expander
  says 'mem0' list
}

step "a CXL region with a namespace" 140 cxl
show
step "CXL memory given back" 100 cxl_release
'''


def run(suite):
    suite.program("daemon/marud-provision")
    nvdimm = machine.Nvdimm(suite.file("nvdimm.img", 514 * machine.MIB))
    # Something lies there that another one left. Its beginning is zeros, as on a module that was never used.
    with open(nvdimm.path, "r+b") as file:
        file.seek(100 * machine.MIB)
        file.write(b"old" * 1000)
    suite.machine("nvdimm", modules=machine.NVDIMM + machine.SOFT_RESERVED + machine.KMEM, nvdimms=[nvdimm],
                  kernel_parameters=[machine.soft_reserved(256 * machine.MIB, 512 * machine.MIB)]).run(NVDIMM, suite.seconds)
    cxl = machine.CxlMemory(suite.file("cxl.img", 256 * machine.MIB), suite.file("label.img", machine.MIB))
    suite.machine("cxl", modules=machine.CXL, cxl=[cxl], memory_mib=512).run(CXL, suite.seconds)


if __name__ == "__main__":
    machine.main("provision", run, __doc__)
