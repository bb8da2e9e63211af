#!/usr/bin/env python3
"""Tries pools in memory on a machine with two NUMA nodes: on one of them, on both in turns, and on one while it has room; in
ordinary pages and in huge ones, and with a node that has too few of these.
"""
import machine

STEPS = r'''
marud="$build/daemon/marud"
client="$build/tests/process/hosts_process_test"
export MARU_SOCKET=/run/tests/marud.sock
log=/run/tests/marud.log
pid=/run/tests/marud.pid
ctl() { "$build/daemon/marudctl" "$@"; }
answers() { ctl status >/dev/null 2>&1 || ! kill -0 $(cat $pid); }
# start LINES: a new pool of 64 MiB, of which LINES say where.
start() {
  printf '[daemon]\nsocket = "%s"\nstate_dir = "/run/tests/state"\n[[pool]]\nname = "default"\nbackend = "memory"\n' \
    $MARU_SOCKET >/run/tests/marud.toml
  printf 'size = "64MiB"\npage_bytes = "64KiB"\nregion_bytes = "4MiB"\nlanes = 16\npins = 1024\n%s\n' "$1" \
    >>/run/tests/marud.toml
  rm -rf /run/tests/state
  : >$log
  "$marud" --config /run/tests/marud.toml 2>>$log 3>&- 4<&- &
  echo $! >$pid
  poll 60 answers
  kill -0 $(cat $pid) 2>/dev/null
}
stop() {
  ! kill "-${1:-TERM}" $(cat $pid) 2>/dev/null || while kill -0 $(cat $pid) 2>/dev/null; do sleep 0.1; done
}
says() { poll 10 grep -qe "$1" $log || :; grep -e "$1" $log || { cat $log; echo "not said: $1"; return 1; }; }
# How many huge pages this node has, and how many of them nobody uses.
huge() { cat /sys/devices/system/node/node$1/hugepages/hugepages-2048kB/$2; }
# has NODE COUNT...: huge pages, all of them free.
has() {
  for node in 0 1; do
    echo $(($node ? $2 : $1)) >/sys/devices/system/node/node$node/hugepages/hugepages-2048kB/nr_hugepages
    [ $(huge $node free_hugepages) = $(($node ? $2 : $1)) ]
  done
}
# used NODE: huge pages.
used() { echo $(($(huge $1 nr_hugepages) - $(huge $1 free_hugepages))); }
# OS pages of the pool that lie on this node: those that were touched through marud's mapping.
ordinary() {
  awk -v node="N$1=" '
    /marud:default/ { for (i = 2; i <= NF; ++i) if (index($i, node) == 1) sum += substr($i, length(node) + 1) }
    END { print sum + 0 }' /proc/$(cat $pid)/numa_maps
}
stores() { "$client" --role store $MARU_SOCKET key "a text" && [ "$("$client" --role find $MARU_SOCKET key)" = "a text" ]; }
# expect WHAT FOUND WANTED
expect() { [ "$2" -eq "$3" ] || { cat $log; echo "$1: found $2, expected $3"; return 1; }; }

ordinary_bound() {
  start 'numa_node = 1
huge_pages = "never"
first_touch = true'
  expect "pages on node 0" $(ordinary 0) 0
  [ $(ordinary 1) -gt 0 ]
  says 'seconds per GiB'
  stop
}
huge_bound() {
  has 40 40
  start "numa_node = 1
$1"
  expect "huge pages of node 0" $(used 0) 0
  expect "huge pages of node 1" $(used 1) 32
  stores
  expect "huge pages of node 1" $(used 1) 32
  says 'seconds per GiB'
  stop
  expect "huge pages of node 1 after the end" $(used 1) 0
}
huge_in_turns() {
  has 40 40
  start 'numa_nodes = [0, 1]
numa_policy = "interleave"
huge_pages = "require"'
  [ $(used 0) -ge 15 ] && [ $(used 1) -ge 15 ] || { echo "$(used 0) and $(used 1)"; return 1; }
  expect "huge pages" $(($(used 0) + $(used 1))) 32
  stop
}
huge_preferred() {
  has 40 8
  start 'numa_node = 1
numa_policy = "preferred"
huge_pages = "require"'
  expect "huge pages of node 1" $(used 1) 8
  expect "huge pages of node 0" $(used 0) 24
  stop
}
lacks_required() {
  has 40 8
  ! start 'numa_node = 1
huge_pages = "require"' || { stop; echo "it started"; return 1; }
  says 'take 32 huge pages of 2 MiB .* found 8 free on NUMA node 1'
  expect "huge pages of node 1" $(used 1) 0
}
lacks_in_turns() {
  has 40 8
  ! start 'numa_nodes = [0, 1]
numa_policy = "interleave"
huge_pages = "require"' || { stop; echo "it started"; return 1; }
  says 'found 40 free on NUMA node 0, 8 free on NUMA node 1'
}
lacks_tried() {
  has 40 8
  start "numa_node = 1
$1"
  expect "huge pages of node 0" $(used 0) 0
  expect "huge pages of node 1" $(used 1) 0
  says 'found 8 free on NUMA node 1'
  stores
  expect "pages on node 0" $(ordinary 0) 0
  [ $(ordinary 1) -gt 0 ]
  stop
}
# A client that stays keeps the memory over a restart of marud.
restarted() {
  has 40 40
  start 'numa_node = 1
huge_pages = "require"'
  "$client" --role store $MARU_SOCKET key "a text"
  "$client" --role hold $MARU_SOCKET key >/run/tests/held 3>&- 4<&- &
  local holder=$! status=0
  poll 30 grep -q 'a text' /run/tests/held || status=$?
  stop KILL
  "$marud" --config /run/tests/marud.toml 2>>$log 3>&- 4<&- &
  echo $! >$pid
  poll 60 answers
  poll 30 says 'serves .* epoch 2' || status=$?
  expect "huge pages of node 1" $(used 1) 32 || status=$?
  expect "huge pages of node 0" $(used 0) 0 || status=$?
  kill $holder
  stop
  return $status
}
export marud client MARU_SOCKET log pid
step "ordinary pages on one node" 60 ordinary_bound || stop KILL
step "huge pages on one node" 60 huge_bound 'huge_pages = "require"' || stop KILL
step "huge pages on one node, if there are" 60 huge_bound 'first_touch = true' || stop KILL
step "huge pages on both nodes in turns" 60 huge_in_turns || stop KILL
step "huge pages on one node while it has some" 60 huge_preferred || stop KILL
step "a node with too few huge pages" 60 lacks_required || stop KILL
step "a node with too few huge pages for its turns" 60 lacks_in_turns || stop KILL
step "ordinary pages where the node has too few huge ones" 60 lacks_tried 'first_touch = true' || stop KILL
step "huge pages over a restart" 90 restarted || stop KILL
'''


def run(suite):
    for program in ("daemon/marud", "daemon/marudctl", "tests/process/hosts_process_test"):
        suite.program(program)
    nodes = [option for node in range(2) for option in (
        "-object", f"memory-backend-ram,id=node{node},size=512M", "-numa", f"node,nodeid={node},memdev=node{node},cpus={node}")]
    suite.machine("one", memory_mib=1024, qemu=nodes).run(STEPS, suite.seconds)


if __name__ == "__main__":
    machine.main("numa", run, __doc__)
