#!/bin/busybox sh
# The guest's first process. The host's files, or those of a folder there ($root), become its root, with everything that is
# written kept in memory.
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
. /payload/settings
for module in $(cat /modules/order); do insmod "/modules/$module" || echo "module $module cannot be loaded"; done
ifconfig lo 127.0.0.1 up || true
if mount -t 9p -o trans=virtio,version=9p2000.L,ro,cache=loose,msize=262144 host /host &&
  mount -t tmpfs own /own && mkdir /own/upper /own/aside &&
  mount -t overlay -o "lowerdir=/host$root,upperdir=/own/upper,workdir=/own/aside" both /root; then
  for folder in proc sys dev; do mount -o move "/$folder" "/root/$folder"; done
  mkdir -p /root/dev/shm /root/dev/pts
  mount -t tmpfs shm /root/dev/shm
  mount -t devpts pts /root/dev/pts
  mount -t tmpfs run /root/run
  mkdir -m 0755 /root/run/machine
  # busybox and the modules, for steps that take a driver away and put it back.
  cp -r /payload/. /bin/busybox /modules /root/run/machine/
  [ -z "$first_process" ] || exec switch_root /root "$first_process"
  chroot /root /bin/bash /run/machine/steps
else
  echo "the files of the host cannot be mounted"
fi
# Asked of the kernel directly; there is no service to stop.
poweroff -f
