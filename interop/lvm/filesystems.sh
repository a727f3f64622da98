# One group, two implementations, in one guest: ./iser-target lvm ($T) and lvm2
# with device-mapper take turns on the same disks; what one writes the other
# must read. Needs two blank disks of 640 MiB.
#   filesystems.sh ISER-TARGET DISK DISK
set -eu
T=$1 A=$2 B=$3
export DM_DISABLE_UDEV=1 LVM_SUPPRESS_FD_WARNINGS=1 LVM_DEVICES=$A,$B
for m in dm-mod dm-snapshot dm-thin-pool ext4 xfs; do modprobe $m 2>/dev/null || true; done
mkdir -p /run/lvm /run/lock/lvm /tmp/m
ours() { "$T" lvm "$@"; }
fail() { echo "LVM: FAILED: $*"; exit 1; }
tree() { (cd "$1" && find . -type f ! -path './lost+found/*' -print0 | sort -z | xargs -0 sha256sum | sha256sum); }
# same LV: our reading of a volume against the kernel's, which is active.
sums() { for l in "$@"; do sha256sum < /dev/vgf/$l; done; }
our_sums() { for l in "$@"; do ours export --raw vgf/$l | sha256sum; done; }

# Without udev a device may be open for a moment longer than its user.
off() { for i in 1 2 3 4 5 6 7 8; do vgchange -an vgf >/dev/null 2>/tmp/off && return; sleep 1; done; cat /tmp/off; dmsetup info -c; fail "vgchange -an"; }

ours vgcreate vgf $A $B
ours lvcreate -L 24m -n data vgf
ours lvcreate -i2 -L 16m -n striped vgf
ours lvcreate -T -L 160m vgf/pool
ours lvcreate -V 60m -T vgf/pool -n thin
ours lvcreate -L 304m -n xdata vgf
ours lvcreate -V 304m -T vgf/pool -n xthin
vgck vgf || fail "vgck after vgcreate by us"
vgchange -ay -K vgf || fail "activating what we made"
ours lvextend -L+4m vgf/data 2>/tmp/busy && fail "we changed disks that the kernel has active"
mkfs.ext4 -q /dev/vgf/data; mkfs.ext4 -q /dev/vgf/striped; mkfs.ext4 -q /dev/vgf/thin
mkfs.xfs -q /dev/vgf/xdata; mkfs.xfs -q /dev/vgf/xthin
for l in data striped thin xdata xthin; do
	mount /dev/vgf/$l /tmp/m; cp -r /usr/bin/[a-b]* /etc /tmp/m/ 2>/dev/null || true
	tree /tmp/m > /tmp/tree.$l; umount /tmp/m
done
sums data striped thin xdata xthin > /tmp/kernel; off
our_sums data striped thin xdata xthin | cmp - /tmp/kernel || fail "we read other data than the kernel wrote"
echo "LVM: file systems made by the kernel on our volumes read the same"

ours lvcreate -s -L 24m -n snap vgf/data
ours lvcreate -s -n thinsnap -k n vgf/thin
ours lvcreate -s -L 24m -n xsnap vgf/xdata
ours lvcreate -s -n xthinsnap -k n vgf/xthin
ours lvextend -L 24m vgf/striped
ours pvmove -n data $A
vgck vgf || fail "vgck after our changes"
vgchange -ay -K vgf || fail "activating our snapshots"
for l in data thin xdata xthin; do
	mount /dev/vgf/$l /tmp/m; tree /tmp/m | cmp - /tmp/tree.$l || fail "tree of $l"
	rm -rf /tmp/m/etc; dd if=/dev/urandom of=/tmp/m/new bs=64k count=20 status=none; umount /tmp/m
done
mount -o ro,noload /dev/vgf/snap /tmp/m; tree /tmp/m | cmp - /tmp/tree.data || fail "tree of snap"; umount /tmp/m
mount -o ro,noload /dev/vgf/thinsnap /tmp/m; tree /tmp/m | cmp - /tmp/tree.thin || fail "tree of thinsnap"; umount /tmp/m
for l in xsnap:xdata xthinsnap:xthin; do
	mount -o ro,norecovery,nouuid /dev/vgf/${l%:*} /tmp/m; tree /tmp/m | cmp - /tmp/tree.${l#*:} || fail "tree of ${l%:*}"; umount /tmp/m
done
e2fsck -fn /dev/vgf/data >/dev/null || fail "fsck data"
xfs_repair -n /dev/vgf/xdata >/dev/null 2>&1 || fail "xfs_repair xdata"
lvcreate -y -s -n thinsnap2 vgf/thin >/dev/null; lvchange -ay -K vgf/thinsnap2
lvcreate -y -s -L 20m -n snap2 vgf/data >/dev/null
sums data striped thin snap thinsnap thinsnap2 snap2 xdata xthin xsnap xthinsnap > /tmp/kernel; off
our_sums data striped thin snap thinsnap thinsnap2 snap2 xdata xthin xsnap xthinsnap | cmp - /tmp/kernel || fail "snapshots read differently"
echo "LVM: snapshots, classic and thin, by both sides read the same on both"

ours diff vgf/thinsnap vgf/thin | tail -1
ours lvconvert --merge vgf/snap
ours lvconvert --merge vgf/thinsnap
ours lvconvert --merge vgf/xsnap vgf/xthinsnap
ours lvremove -y vgf/snap2 vgf/thinsnap2
vgck vgf || fail "vgck after our merges"
vgchange -ay -K vgf || fail "activating after our merges"
for l in data thin; do
	e2fsck -fp /dev/vgf/$l >/dev/null || [ $? -le 1 ] || fail "fsck $l"
	mount /dev/vgf/$l /tmp/m; tree /tmp/m | cmp - /tmp/tree.$l || fail "tree of $l after the merge"; umount /tmp/m
done
for l in xdata xthin; do
	mount /dev/vgf/$l /tmp/m; tree /tmp/m | cmp - /tmp/tree.$l || fail "tree of $l after the merge"; umount /tmp/m
	xfs_repair -n /dev/vgf/$l >/dev/null 2>&1 || fail "xfs_repair $l after the merge"
done
lvcreate -y -s -L 24m -n snap3 vgf/data >/dev/null
mount /dev/vgf/data /tmp/m; rm -rf /tmp/m/etc; umount /tmp/m
off
lvconvert -y --merge vgf/snap3 >/dev/null 2>&1 || fail "lvm2 cannot merge"
off
ours export --raw vgf/data > /dev/null || fail "we cannot go on with a merge that lvm2 has begun"
vgck vgf || fail "vgck at the end"
vgchange -ay -K vgf; mount /dev/vgf/data /tmp/m; tree /tmp/m | cmp - /tmp/tree.data || fail "tree at the end"; umount /tmp/m
off
ours lvs -a vgf; ours vgremove -y vgf >/dev/null
pvs $A $B >/dev/null || fail pvs
echo "LVM: done: merges by us and by lvm2 agree"
