#!/bin/bash
# Process 1 of a node, in namespaces of its own; when it is killed the node's power is cut.
#   node.sh DIR NAME NUMBER     DIR/NAME holds what is the node's, DIR/corosync.conf all nodes'
set -eu
D=$1 name=$2 number=$3 N=$1/$2
read -r _ # until the cable is there
hostname "$name"
mount -t proc proc /proc
# A node that gives itself up must not take the machine along.
[ ! -e /proc/sysrq-trigger ] || mount --bind /dev/null /proc/sysrq-trigger
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /dev/shm
mkdir -p /run/lock /run/crm /run/resource-agents /run/corosync-qdevice /run/softiser
mkdir -p "$N"/{log/pacemaker,corosync,state,etc} "$N"/pacemaker/{blackbox,cib,cores,pengine}
chown -R hacluster:haclient /run/crm "$N/pacemaker" "$N/log/pacemaker"
cp "$D/corosync.conf" "$N/etc/"
cp "$N/target.yaml" /run/softiser/
mount --bind "$N/corosync" /var/lib/corosync
mount --bind "$N/pacemaker" /var/lib/pacemaker
mount --bind "$N/log" /var/log
mount --bind "$N/etc" /etc/corosync
mount --bind "$D/hosts" /etc/hosts
# The nodes have one configuration, so ways to a shared disk of each have the same path.
for way in disk0 fenced; do
  [ ! -d "$N/$way" ] || mount --bind "$N/$way" "$D/shared/$way"
done
# Our agents appear where the cluster looks for them; the machine's folders stay as they are.
mount -t overlay overlay -o "lowerdir=$D/sbin:/usr/sbin" /usr/sbin
mount -t overlay overlay -o "lowerdir=$D/ocf:/usr/lib/ocf/resource.d" /usr/lib/ocf/resource.d
ip link set lo up
ip addr add "10.77.0.$number/24" dev eth0
ip link set eth0 up
# A first configuration saves the 20 s that an empty cluster waits before its first election.
[ -e "$N/pacemaker/cib/cib.xml" ] || install -o hacluster -g haclient -m 600 "$D/cib.xml" "$N/pacemaker/cib/cib.xml"
export PCMK_logfile=/var/log/pacemaker/pacemaker.log PCMK_logpriority=notice PCMK_node_start_state=default
corosync -f &
until corosync-cfgtool -s >/dev/null 2>&1; do sleep 0.1; done
if grep -q 'model: net' /etc/corosync/corosync.conf; then corosync-qdevice -f & fi
pacemakerd &
while :; do wait -n || sleep 0.2; done # orphans are reaped for ever
