#!/usr/bin/env python3
"""Two machines on one NVDIMM, each with a marud of its own: both find it blank and one of them formats it; what is stored on
one is found on the other; one machine dies with all its processes, an administrator says so, and the other takes back what it
held. The second machine has another NVDIMM in front, so that what is /dev/dax0.0 to the first one has another name there, and
lies elsewhere in its memory: the pool is found by its uuid.

The emulation has atomic operations that hold between the machines, and no caches that a machine could take with it: that
part is the simulator's.
"""
import machine

# What the kernel knows of each page stays in its own memory: on the device two kernels would write it over each other.
MAKE = r'''
made() { ndctl create-namespace -f -m devdax -M mem -a 2M -e namespace0.0; }
step make-the-namespace 60 made
'''

COMMON = r'''
socket=/run/tests/marud.sock
client="$build/tests/process/hosts_process_test"
ctl() { "$build/daemon/marudctl" --timeout-ms 600000 --socket $socket "$@"; }
# Both machines see the same /etc/machine-id, which two hosts never have.
# serve DEVICE: as the configuration names it. What an earlier marud has noted of its device is not there.
serve() {
  state=$(mktemp -d)
  cat >/run/tests/marud.toml <<TOML
[daemon]
socket = "$socket"
state_dir = "$state"
[[pool]]
name = "default"
backend = "dax"
device = "$1"
profile = "shared"
coherent = true
hosts = 2
suspect_after_ms = 3000
page_bytes = "64KiB"
lanes = 16
pins = 1024
TOML
  # Of two hosts that find the device blank at the same moment one formats it, and the other is told and comes again.
  for try in $(seq 60); do
    setsid "$build/daemon/marud" --config /run/tests/marud.toml --machine-id "$id" >/run/tests/marud.log 2>&1 3>&- 4<&- &
    marud=$!
    until ctl status >/dev/null 2>&1; do
      kill -0 $marud 2>/dev/null || break
      sleep 0.2
    done
    kill -0 $marud 2>/dev/null && { cat /run/tests/marud.log; return 0; }
    grep 'another host \(formats it\|has formatted it\)' /run/tests/marud.log || { cat /run/tests/marud.log; return 1; }
    sleep 1
  done
  return 1
}
has_its_name() { poll 30 test -e $device && [ "$(echo /dev/dax*)" = $device ]; }
ends() {
  local pid=$(ctl --json status | python3 -c 'import json, sys; print(json.load(sys.stdin)["pid"])')
  kill $pid
  poll 60 bash -c "! kill -0 $pid 2>/dev/null"
}
serves_by_uuid() {
  local uuid=$(ctl --json status | python3 -c 'import json, sys; print(json.load(sys.stdin)["pools"][0]["uuid"])')
  ends
  serve uuid:$uuid
  poll 10 grep -q "\"default\" lies on $device" /run/tests/marud.log
}
state_of() {
  ctl --json host list |
    python3 -c 'import json, sys; print(json.load(sys.stdin)["hosts"][int(sys.argv[1])]["state"])' "$1"
}
is_in_state() { [ "$(state_of "$1")" = "$2" ]; }
store() { "$client" --role store $socket "$1" "$2"; }
finds() { [ "$("$client" --role find $socket "$1")" = "$2" ]; }
export socket client id
'''

FIRST = COMMON + r'''
step one-has-the-device-under-its-name 60 has_its_name
tell ready
order serve
step one-serves 90 serve $device
show
step one-serves-it-by-its-uuid 90 serves_by_uuid
show
step one-stores 60 store "of one" "stored on the first host"
tell stored
order look
step one-finds-what-two-stored 60 finds "of two" "stored on the second host"
setsid "$client" --role hold $socket "of two" 2>/dev/null &
tell holds
order never
'''

SECOND = COMMON + r'''
step two-has-the-device-under-its-name 60 has_its_name
tell ready
order serve
step two-serves 90 serve $device
show
step two-serves-it-by-its-uuid 90 serves_by_uuid
show
tell serves
order go
step two-finds-what-one-stored 60 finds "of one" "stored on the first host"
step two-stores 60 store "of two" "stored on the second host"
tell stored
order dead
# Which of the two numbers a host got is not known: both asked at the same moment.
other=$(ctl --json host list |
  python3 -c 'import json, sys; print(*[row["host"] for row in json.load(sys.stdin)["hosts"] if not row["this"]])')
export other
suspects() { poll 60 is_in_state $other suspect; }
refuses_to_reuse() { finds "of one" "stored on the first host"; }
declares() { ctl host declare-dead $other --yes; poll 60 is_in_state $other free; }
audits() { ctl check --quiesce; }
step a-late-heartbeat-is-a-suspicion 90 suspects
step a-suspect-host-keeps-its-blocks 60 refuses_to_reuse
step declared-dead-it-is-taken-back 90 declares
step its-blocks-stay 60 finds "of one" "stored on the first host"
step the-audit-is-clean 60 audits
'''


def run(suite):
    # The namespace is made once; its label is in the file, and every machine finds it there. The label names the module by its
    # number, which follows from the slot.
    nvdimm = machine.Nvdimm(suite.file("nvdimm.img", 514 * machine.MIB), more=",slot=1")
    other = machine.Nvdimm(suite.file("other.img", 66 * machine.MIB), more=",slot=0")
    suite.machine("maker", modules=machine.NVDIMM, nvdimms=[nvdimm]).run(MAKE, suite.seconds)
    one = suite.machine("one", modules=machine.NVDIMM, nvdimms=[nvdimm]).start(
        FIRST, suite.seconds, settings={"id": "a1", "device": "/dev/dax0.0"})
    two = suite.machine("two", modules=machine.NVDIMM, nvdimms=[other, nvdimm]).start(
        SECOND, suite.seconds, settings={"id": "b2", "device": "/dev/dax1.0"})
    for host in (one, two):
        host.wait_for("told ready")
    for host in (one, two):
        host.order("serve")
    two.wait_for("told serves")
    one.wait_for("told stored")
    two.order("go")
    two.wait_for("told stored")
    one.order("look")
    one.wait_for("told holds")
    one.kill()
    two.order("dead")
    two.wait()


machine.main("hosts", run, __doc__)
