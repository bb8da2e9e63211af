#!/bin/sh
# Under the root's own systemd: installs the packages, and marud is started, reloaded, killed, stalled, restarted, upgraded,
# started by its first client, held to memory limits, and removed. A block that was stored at first has to be there until the
# service is stopped for good.
set -eu
cd /packages
export LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive
fail() {
  echo "$1" >&2
  systemctl --no-pager status marud >&2 || true
  journalctl --no-pager -u marud >&2 || true
  exit 1
}
main_pid() { systemctl show -p MainPID --value marud; }
# new_main_pid OLD: waits until the service runs again, as another process.
new_main_pid() {
  tries=0
  until [ "$(main_pid)" != "$1" ] && [ "$(main_pid)" != 0 ] && systemctl is-active -q marud; do
    tries=$((tries + 1))
    [ $tries -lt 600 ] || fail "marud did not come back after process $1"
    sleep 0.1
  done
}
# logged TEXT: waits until marud's journal has it.
logged() {
  tries=0
  until journalctl --sync && journalctl --no-pager -u marud | grep -q "$1"; do
    tries=$((tries + 1))
    [ $tries -lt 100 ] || fail "the log does not say: $1"
    sleep 0.1
  done
}

dpkg -i ./*.deb >/dev/null
systemctl is-enabled -q marud || fail "marud is not enabled"
systemctl is-active -q marud || fail "installing did not start marud"
# shellcheck disable=SC2046  # several words are meant
gcc -std=c99 -o /tmp/keep_block keep_block.c $(pkg-config --cflags --libs maru)
[ "$(stat -c %U "/proc/$(main_pid)")" = marud ] || fail "marud does not run as user marud"
[ "$(sed -n 's/^Seccomp:\t//p' "/proc/$(main_pid)/status")" = 2 ] || fail "marud's system calls are not filtered"
[ "$(sed -n 's/^CapBnd:\t//p' "/proc/$(main_pid)/status")" = 0000000000000000 ] || fail "marud could get capabilities"
/tmp/keep_block store || fail "a block cannot be stored"
echo "installed, started, in use"

# A group that may attach comes into force; a size does not. Then a mistake changes nothing.
sed -i 's/^#groups = .*/groups = ["daemon"]/; s/^size = "1GiB"/size = "2GiB"/' /etc/marud/marud.toml
systemctl reload marud
logged "size was .1GiB. and is .2GiB. now: this waits for a restart"
logged "the configuration was read again"
setpriv --reuid daemon --regid daemon --clear-groups /tmp/keep_block find || fail "the group that was let in may not attach"
cp /etc/marud/marud.toml /tmp/good.toml
systemctl show -p StatusText --value marud | grep -q "waits for a restart" || fail "the status does not say what waits"
echo 'nonsense = 1' >>/etc/marud/marud.toml
! systemctl reload marud 2>/dev/null || fail "a reload with a mistake succeeds"
systemctl is-active -q marud || fail "a reload with a mistake ended marud"
logged "marud.toml:.*nonsense: found an unknown key"
systemctl kill -s HUP marud
logged "the configuration stays as it is: /etc/marud/marud.toml:"
# Warnings and errors, and nothing else, are what the journal has as such.
journalctl --no-pager -p warning -u marud | grep -q "size was .1GiB. and is .2GiB. now" || fail "warnings are no warnings"
! journalctl --no-pager -p warning -u marud | grep -q "info: " || fail "what is no warning is one in the journal"
cp /tmp/good.toml /etc/marud/marud.toml
sed -i 's/^size = "2GiB"/size = "1GiB"/' /etc/marud/marud.toml
/tmp/keep_block find || fail "reloading lost a block"
echo "reloaded"

# By HTTP: over the Unix socket members of the admin group may ask, which marud's user is a member of, and nobody else; over
# TCP, with the drop-in, who holds a token. A group that the configuration names later gets the socket by a reload.
over_unix() {
  setpriv --reuid "$1" --regid "$1" --init-groups \
    curl -s -o /dev/null -w '%{http_code}' --unix-socket /run/marud/http.sock http://marud/healthcheck || true
}
over_tcp() {
  curl -s -o /dev/null -w '%{http_code}' -X "${2:-GET}" -H "Authorization: Bearer $1" \
    "http://127.0.0.1:9101/${3:-healthcheck}" || true
}
for group in maru-admin maru-operators; do groupadd $group; usermod -aG $group marud; done
useradd -G maru-admin administrator
useradd -G maru-operators overseer
sed -i 's/^#admin_group = "maru-admin" /admin_group = "maru-admin" /' /etc/marud/marud.toml
systemctl restart marud  # the groups of a process are those of its start
[ "$(stat -c '%U:%G %a' /run/marud/http.sock)" = 'marud:maru-admin 660' ] || fail "the admin group has not got the HTTP socket"
[ "$(over_unix administrator)" = 200 ] || fail "a member of the admin group gets no answer by HTTP"
[ "$(over_unix overseer)" = 000 ] || fail "others reach the HTTP socket"
sed -i 's/^admin_group = "maru-admin"/admin_group = "maru-operators"/' /etc/marud/marud.toml
systemctl reload marud
logged "the configuration was read again"
tries=0
until [ "$(over_unix overseer)" = 200 ]; do
  tries=$((tries + 1))
  [ $tries -lt 100 ] || fail "the new admin group gets no answer by HTTP"
  sleep 0.1
done
[ "$(over_unix administrator)" = 000 ] || fail "the group that was the admin group still reaches the HTTP socket"
install -o marud -g maru-operators -m 0440 /dev/null /etc/marud/http-token
echo a-token-of-this-test-alone >/etc/marud/http-token
install -o marud -g maru-operators -m 0440 /dev/null /etc/marud/http-read-token
echo one-that-may-only-look >/etc/marud/http-read-token
sed -i 's/^#listen = /listen = /; s/^#\(read_\)\{0,1\}token_file = /\1token_file = /' /etc/marud/marud.toml
mkdir -p /etc/systemd/system/marud.service.d
cp /usr/share/doc/marud/examples/http-tcp.conf /etc/systemd/system/marud.service.d/
systemctl daemon-reload
systemctl restart marud
[ "$(over_tcp a-token-of-this-test-alone)" = 200 ] || fail "the token opens no door on TCP"
[ "$(over_tcp another-token-than-that-one)" = 401 ] || fail "another token opens a door on TCP"
[ "$(over_tcp one-that-may-only-look)" = 200 ] || fail "the read-only token shows nothing on TCP"
[ "$(over_tcp one-that-may-only-look DELETE quota/nobody)" = 403 ] || fail "the read-only token changes something"
[ "$(over_tcp a-token-of-this-test-alone DELETE quota/nobody)" = 200 ] || fail "the token changes nothing on TCP"
[ "$(over_unix overseer)" = 200 ] || fail "with TCP the admin group gets no answer over the Unix socket"
rm -r /etc/systemd/system/marud.service.d /etc/marud/http-token /etc/marud/http-read-token
cp /tmp/good.toml /etc/marud/marud.toml
sed -i 's/^size = "2GiB"/size = "1GiB"/' /etc/marud/marud.toml
systemctl daemon-reload
systemctl restart marud
/tmp/keep_block find || fail "the memory was lost while HTTP was set up"
echo "asked by HTTP: by the admin group, by a new one, with each token"

# The service waits for devices that pools name: systemd has what the generator makes of the configuration, each time.
waits_for() {
  systemctl daemon-reload
  for kind in Wants After; do
    # Names with a backslash come in quotes, with two of them.
    found=$(systemctl show -p $kind --value marud | sed 's/\\\\/\\/g; s/"//g' | tr ' ' '\n' |
      grep '^dev-' | sort | tr '\n' ' ')
    [ "$found" = "$1" ] || fail "$kind= of marud.service has the devices $found, expected $1"
  done
}
waits_for ''
printf '[[pool]]\nname = "far"\nbackend = "dax"\n' >>/etc/marud/marud.toml
printf 'device = "/dev/dax7.0"\ncontrol_device = "/dev/far-one"\n' >>/etc/marud/marud.toml
waits_for 'dev-dax7.0.device dev-far\x2done.device '
systemctl cat marud | grep -q '^# /run/systemd/generator/marud.service.d/50-devices.conf$' ||
  fail "systemctl cat does not show what is waited for"
echo '[[pool' >>/etc/marud/marud.toml
waits_for ''
cp /tmp/good.toml /etc/marud/marud.toml
sed -i 's/^size = "2GiB"/size = "1GiB"/' /etc/marud/marud.toml
waits_for ''
echo "devices that pools name are waited for"

# So often that systemd would give up a unit with its usual limit.
for _ in 1 2 3 4 5 6; do
  old=$(main_pid)
  systemctl kill -s KILL marud
  new_main_pid "$old"
done
/tmp/keep_block find || fail "the memory was lost when marud was killed"
echo "killed, came back, the block is there"

mkdir -p /run/systemd/system/marud.service.d
# Long enough for a slow machine to be in time.
printf '[Service]\nWatchdogSec=5\n' >/run/systemd/system/marud.service.d/watchdog.conf
systemctl daemon-reload
old=$(main_pid)
systemctl restart marud
[ "$(main_pid)" != "$old" ] || fail "restart did not"
/tmp/keep_block find || fail "the memory was lost in a restart"
echo "restarted, the block is there"

old=$(main_pid)
kill -STOP "$old"
new_main_pid "$old"
[ "$(systemctl show -p NRestarts --value marud)" -ge 1 ] || fail "the watchdog did not restart a marud that stands still"
/tmp/keep_block find || fail "the memory was lost when the watchdog ended marud"
rm -r /run/systemd/system/marud.service.d
systemctl daemon-reload
echo "stalled, the watchdog restarted it, the block is there"

# A client is attached all the time, and holds the block.
mkfifo /tmp/go_on
: >/tmp/held
/tmp/keep_block hold </tmp/go_on >/tmp/held &
holder=$!
exec 8>/tmp/go_on
tries=0
until grep -q held /tmp/held; do
  tries=$((tries + 1))
  [ $tries -lt 600 ] && kill -0 $holder || fail "a client cannot hold the block"
  sleep 0.1
done
old=$(main_pid)
dpkg -i next/*.deb >/dev/null 8>&-
systemctl is-active -q marud || fail "marud does not run after an upgrade"
[ "$(main_pid)" != "$old" ] || fail "the upgrade left the old marud running"
/tmp/keep_block find || fail "the upgrade lost the memory"
exec 8>&-
wait $holder || fail "a client that was attached does not go on after the upgrade"
grep -q '^groups' /etc/marud/marud.toml || fail "the upgrade took a changed configuration away"
echo "upgraded under a client, the block is there"

# systemd listens, and the first client starts marud. What was stored goes with the stop, as ever, and the log says so: the
# first to attach waits as long as adopt_grace_ms says, which may be longer than it has patience.
systemctl stop marud
logged "a restart gets it back; a stop gives it up, since no client holds it"
systemctl start marud.socket || fail "systemd cannot listen for marud"
! systemctl is-active -q marud || fail "marud was started before there was a client"
! /tmp/keep_block find 2>/dev/null || fail "memory outlived a stop"
systemctl is-active -q marud || fail "systemd's socket does not start marud for the first client"
/tmp/keep_block store || fail "marud does not serve by systemd's socket"
logged "a socket that the service manager passed"
setpriv --reuid daemon --regid daemon --clear-groups /tmp/keep_block find || fail "others cannot come by systemd's socket"
systemctl restart marud
/tmp/keep_block find || fail "the memory was lost in a restart with systemd's socket"
systemctl stop marud
[ -S /run/marud/marud.sock ] || fail "stopping marud took systemd's socket away"
! /tmp/keep_block find 2>/dev/null || fail "memory outlived a second stop"
systemctl is-active -q marud || fail "the socket does not start marud a second time"
systemctl stop marud.socket marud
[ ! -e /run/marud/marud.sock ] || fail "systemd's socket is left"
systemctl start marud || fail "marud does not start without systemd's socket any more"
! /tmp/keep_block find 2>/dev/null || fail "memory outlived a third stop"
/tmp/keep_block store || fail "marud does not serve without systemd's socket any more"
echo "started by the first client, restarted, stopped, systemd's socket stayed"

# Memory limits that the kernel enforces. marud takes no memory where it would be killed for it, and serves its other pools; a
# client that is killed is nobody else's misfortune.
limited() {
  mkdir -p /run/systemd/system/marud.service.d
  printf '[Service]\nRestart=no\nMemoryMax=%s\n' "$1" >/run/systemd/system/marud.service.d/limit.conf
  systemctl daemon-reload
}
doctor_says() {
  marudctl doctor >/tmp/doctor || true  # its status is about the machine
  grep -q "$1" /tmp/doctor || { cat /tmp/doctor >&2; fail "marudctl doctor does not say: $1"; }
}
if grep -qw memory /sys/fs/cgroup/cgroup.controllers 2>/dev/null; then
  cat >>/etc/marud/marud.toml <<'POOL'
[[pool]]
name = "touched"
backend = "memory"
size = "256MiB"
first_touch = true
POOL
  limited 128M
  systemctl restart marud || fail "marud does not serve its other pools where one has no room"
  /tmp/keep_block find || fail "another pool's block was lost where one has no room"
  logged 'pool "touched": take all memory of the pool (first_touch): found room for .* in the control group .*/marud.service'
  logged 'which may have 128 MiB (memory.max), expected 256 MiB; raise its limit (MemoryMax= of a service)'
  doctor_says '^wrong *pool "touched": unavailable'
  limited 512M
  systemctl restart marud || fail "marud does not start with the limit that it asked for"
  doctor_says 'memory limit of marud: 512 MiB for the control group .*/marud.service$'
  cp /tmp/good.toml /etc/marud/marud.toml
  rm -r /run/systemd/system/marud.service.d
  systemctl daemon-reload
  systemctl restart marud
  /tmp/keep_block find || fail "a block was lost when the limit went"

  # What a client touches first is its own: here 48 MiB, where 32 are allowed.
  mkfifo /tmp/limit_ends
  exec 8<>/tmp/limit_ends
  systemd-run --quiet --unit=limited-reader -p MemoryMax=32M -p StandardInput=file:/tmp/limit_ends /tmp/keep_block hold
  tries=0
  until marudctl clients | grep -q keep_block; do
    tries=$((tries + 1))
    [ $tries -lt 600 ] || fail "a client with a memory limit does not attach"
    sleep 0.1
  done
  doctor_says '^warning *memory limit of keep_block ([0-9]*): 32 MiB for the control group .*/limited-reader.service, and pool'
  # Not --wait, which asks a message bus, and none may run here.
  systemd-run --quiet --unit=limited-writer -p MemoryMax=32M -p MemorySwapMax=0 /tmp/keep_block fill
  tries=0
  while systemctl is-active -q limited-writer; do
    tries=$((tries + 1))
    [ $tries -lt 600 ] || fail "a writer with a memory limit does not end"
    sleep 0.1
  done
  [ "$(systemctl show -p Result --value limited-writer)" = oom-kill ] || fail "the writer was not killed at its limit"
  exec 8>&-
  tries=0
  while systemctl is-active -q limited-reader; do
    tries=$((tries + 1))
    [ $tries -lt 600 ] || fail "a client with a memory limit does not end"
    sleep 0.1
  done
  [ "$(systemctl show -p Result --value limited-reader)" = success ] || fail "another client was hurt"
  /tmp/keep_block find || fail "what was stored is gone with the client that was killed"
  marudctl check --quiesce >/dev/null || fail "the pool is not in order"
  doctor_says '^warning *processes killed for want of memory: [1-9]'
  systemctl reset-failed
  echo "refused a memory limit that is too low, outlived a client that met its own"
else
  echo "no memory controller here: limits are not tried"
fi

# A pool in a file under /dev/shm is not the service manager's to delete.
cat >>/etc/marud/marud.toml <<'POOL'
[[pool]]
name = "file"
backend = "file"
path = "/dev/shm/marud-pool"
size = "256MiB"
lanes = 16
POOL
marud --config /etc/marud/marud.toml --check-config >/dev/null
systemctl restart marud || fail "a pool in /dev/shm cannot be served"
systemctl stop marud
[ "$(stat -c %U /dev/shm/marud-pool)" = marud ] || fail "the pool in /dev/shm was not kept"
rm /dev/shm/marud-pool
cp /tmp/good.toml /etc/marud/marud.toml
# Stopping gave the memory up, and nobody hands it back: the first to attach waits as long as adopt_grace_ms says.
systemctl start marud
! /tmp/keep_block find 2>/dev/null || fail "memory outlived everybody who held it"
/tmp/keep_block store || fail "marud does not begin anew after it was stopped"
[ "$(systemctl show -p NFileDescriptorStore --value marud)" = 2 ] || fail "the memory is not with the service manager"

# shellcheck disable=SC2046  # several words are meant
dpkg --purge $(for each in ./*.deb; do dpkg-deb -f "$each" Package; done) >/dev/null
! systemctl is-active -q marud || fail "purging left marud running"
for left in /run/marud /run/marud-provision /var/lib/marud /etc/marud \
  /etc/systemd/system/multi-user.target.wants/marud.service; do
  [ ! -e $left ] && [ ! -L $left ] || fail "purging left $left"
done
echo "stopped, purged"
