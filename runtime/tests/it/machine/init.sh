#!/bin/busybox sh
# First process of the machine: what a kernel needs, then commands from the test.
#
#   test ─► ttyS1: "number base64(script)" ─► sh ─► "number exit-code bytes", output ─► test
if [ -z "$SWITCHED" ]; then
    # The first file system of a kernel is none that a task's own root could take the place of.
    /bin/busybox --install -s /bin
    mkdir /real
    mount -t tmpfs real /real
    cp -a /bin /etc /init /lib* /modules /root /real
    for place in dev proc sys run tmp data tools; do mkdir /real/$place; done
    cd /real && SWITCHED=1 exec switch_root /real /init
fi
export PATH=/bin:/tools HOME=/root OSTLER_DATA_DIR=/data/agent OSTLER_CONFIG=/etc/agent.hcl
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts pts /dev/pts
for place in /dev/shm /run /tmp; do mount -t tmpfs none $place; done
mount -t cgroup2 cgroup /sys/fs/cgroup
for module in virtio_ring virtio virtio_pci_legacy_dev virtio_pci_modern_dev virtio_pci virtio_blk; do
    insmod /modules/$module.ko
done
ip link set lo up
mount -o ro /dev/vda /tools
mount /dev/vdb /data || echo "the data disk cannot be mounted"
stty -F /dev/ttyS1 raw -echo
exec 3<>/dev/ttyS1
echo ready >&3
while read -r number script <&3; do
    echo "$script" | base64 -d >/run/script
    sh /run/script >/run/output 2>&1 </dev/null 3>&-
    code=$?
    { echo "$number $code $(wc -c </run/output)"; cat /run/output; } >&3
done
poweroff -f
