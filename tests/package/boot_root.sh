#!/bin/sh
# Starts a root's own systemd as the first process of namespaces of its own: boot_root.sh ROOT CGROUP
# CGROUP is an empty folder of a cgroup2 hierarchy. Everything ends with this process. What the root's systemd must not do to
# this machine (kernel settings, modules, clock) it is not able to do. Its exit status is the status here.
set -eu
echo $$ >"$2/cgroup.procs"
# shellcheck disable=SC2016  # these are for the inner shell
exec unshare --mount --pid --net --ipc --uts --cgroup --fork --kill-child --propagation private sh -eu -c '
  mount --bind "$0" "$0"
  cd "$0"
  mount -t proc proc proc
  mount --bind proc/sys proc/sys
  mount -o remount,bind,ro proc/sys
  mount -t sysfs -o ro sysfs sys
  mount -t cgroup2 cgroup2 sys/fs/cgroup
  mount -t tmpfs -o mode=0755 run run
  mount -t tmpfs tmp tmp
  exec env -i container=other PATH=/usr/sbin:/usr/bin:/sbin:/bin SYSTEMD_PROC_CMDLINE=systemd.unified_cgroup_hierarchy=yes \
    setpriv --bounding-set=-sys_module,-sys_time,-sys_rawio,-sys_boot,-syslog \
    chroot . /lib/systemd/systemd --system --log-target=journal --show-status=no' "$1"
