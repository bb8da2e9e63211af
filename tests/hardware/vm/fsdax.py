#!/usr/bin/env python3
"""Tries a pool in a file on ext4 with DAX, on an NVDIMM: MAP_SYNC in marud's mappings and in a client's, restart, and that
publishers flush. And one in a file on hugetlbfs, which grants no MAP_SYNC and has pages of 2 MiB.
"""
import machine

STEPS = r'''
marud="$build/daemon/marud"
client="$build/tests/process/hosts_process_test"
export MARU_SOCKET=/run/tests/marud.sock
log=/run/tests/marud.log
pid=/run/tests/marud.pid
folder=/run/tests/pmem
ctl() { "$build/daemon/marudctl" "$@"; }
mounted() {
  ndctl create-namespace -f -m fsdax -M mem -e namespace0.0 || ndctl create-namespace -m fsdax -M mem -r region0
  poll 30 test -b /dev/pmem0
  mkfs.ext4 -q -F -b 4096 /dev/pmem0
  mkdir -p /run/tests/pmem
  mount -t ext4 -o dax /dev/pmem0 /run/tests/pmem || { echo "this kernel mounts no ext4 with DAX"; exit 77; }
}
answers() { ctl status >/dev/null 2>&1; }
start() {
  : >$log
  "$marud" --file $folder/pool --size 64MiB --page-bytes 64KiB --region-bytes 4MiB --lanes 16 --pins 1024 \
    --checksums --high-watermark 1 --socket $MARU_SOCKET --state-dir $folder.state 2>>$log 3>&- 4<&- &
  echo $! >$pid
  poll 100 answers || { cat $log; return 1; }
}
stop() { kill "-${1:-TERM}" $(cat $pid); while kill -0 $(cat $pid) 2>/dev/null; do sleep 0.1; done; }
# medium NAME: marud says that it is this.
medium() {
  [ "$(ctl --json device list | python3 -c 'import json, sys; print(json.load(sys.stdin)["devices"][0]["medium"])')" = $1 ]
}
# Mappings of the pool in this process, and how many of them have synchronous page faults ("sf").
mappings() {
  awk '/ \/run\/tests\/pmem\/pool/ { pool = 1 } /^VmFlags/ { all += pool; if (pool && / sf( |$)/) ++with; pool = 0 }
    END { print all + 0, with + 0 }' /proc/$1/smaps
}
# every PROCESS: it has some, and each is such a one.
every() {
  set -- $(mappings $1)
  echo "$2 of $1 mappings are synchronous"
  [ $1 -gt 0 ] && [ $1 -eq $2 ]
}
serves() {
  start
  poll 10 grep -q 'MAP_SYNC is granted' $log
  medium fsdax
  every $(cat $pid)
  # Of the flags that an older reader must refuse, kIncompatDurable: publishers flush.
  local flags=$(od -An -t u8 -j 32 -N 8 /run/tests/pmem/pool)
  echo "flags:$flags"
  [ $((flags & 2)) -eq 2 ]
}
holds() {
  "$client" --role store $MARU_SOCKET key "a text on persistent memory"
  "$client" --role hold $MARU_SOCKET key >/run/tests/held 3>&- 4<&- &
  local holder=$! status=0
  poll 60 grep -q 'persistent memory' /run/tests/held || status=$?
  every $holder || status=$?
  kill $holder
  return $status
}
restarts() {
  stop KILL
  start
  [ "$("$client" --role find $MARU_SOCKET key)" = "a text on persistent memory" ]
  ctl check
  stop
}
huge() {
  folder=/run/tests/huge
  echo 34 >/proc/sys/vm/nr_hugepages  # 64 MiB, and two that are nobody's
  mkdir $folder
  mount -t hugetlbfs none $folder
  start
  poll 10 grep -q 'MAP_SYNC is not supported' $log
  medium hugetlbfs
  "$client" --role store $MARU_SOCKET key "a text on huge pages"
  stop KILL
  start
  [ "$("$client" --role find $MARU_SOCKET key)" = "a text on huge pages" ]
  ctl check
  stop
}
export marud client MARU_SOCKET log pid folder
step "ext4 with DAX is mounted" 60 mounted && {
  step "marud maps with MAP_SYNC" 100 serves
  step "a client maps with MAP_SYNC" 100 holds
  step "a killed marud finds its blocks" 100 restarts
}
step "a pool on hugetlbfs" 100 huge
'''


def run(suite):
    for program in ("daemon/marud", "daemon/marudctl", "tests/process/hosts_process_test"):
        suite.program(program)
    nvdimm = machine.Nvdimm(suite.file("nvdimm.img", 258 * machine.MIB))
    suite.machine("one", modules=machine.NVDIMM + ["crc32c_generic", "ext4"], nvdimms=[nvdimm]).run(STEPS, suite.seconds)


if __name__ == "__main__":
    machine.main("fsdax", run, __doc__)
