# Rounds of changes to one group by lvm2 with device-mapper and by ./iser-target
# lvm ($T) in turns: writes, snapshots, growth (also of an origin that has
# snapshots), moves, merges. After each turn the other side must read every
# volume the same.
#   rounds.sh ISER-TARGET DISK DISK
set -eu
T=$1 A=$2 B=$3
export DM_DISABLE_UDEV=1 LVM_SUPPRESS_FD_WARNINGS=1 LVM_DEVICES=$A,$B
modprobe -a dm-mod dm-snapshot dm-thin-pool
mkdir -p /run/lvm /run/lock/lvm
ours() { "$T" lvm "$@"; }
fail() { echo "LVM: FAILED: round ${r:-0}: $*"; exit 1; }
volumes() { lvs --noheadings -o lv_name,segtype vgr | while read -r lv type; do [ "$type" = thin-pool ] || echo "$lv"; done; }
on() { vgck vgr || fail vgck; vgchange -ay -K vgr >/dev/null || fail "vgchange -ay"; }
off() { for i in 1 2 3 4 5 6 7 8; do vgchange -an vgr >/dev/null 2>/tmp/off && return; sleep 1; done; cat /tmp/off; fail "vgchange -an"; }
sums() { for l in $(volumes); do echo "$l $(sha256sum < /dev/vgr/$l)"; done; }
our_sums() { for l in $(volumes); do echo "$l $(ours export --raw vgr/$l | sha256sum)"; done; }
same() { cmp -s /tmp/ours /tmp/kernel || { diff /tmp/ours /tmp/kernel; fail "$1"; }; }
# scribble LV: the kernel writes at random places.
scribble() {
	dd if=/dev/urandom of=/dev/vgr/$1 bs=4k count=30 seek=$((RANDOM % 4000)) conv=notrunc,fsync status=none
	dd if=/dev/urandom of=/dev/vgr/$1 bs=512 count=5 seek=$((RANDOM % 30000)) conv=notrunc,fsync status=none
}
# overwrite LV: we write its first 300 KiB.
overwrite() { head -c 307200 /dev/urandom | ours import --raw -y vgr/$1; }
merged() { for i in $(seq 30); do lvs vgr/$1 >/dev/null 2>&1 || return 0; lvpoll --polloperation merge vgr/$2 >/dev/null 2>&1 || true; sleep 1; done; fail "lvm2 does not end the merge of $1"; }

vgcreate -y vgr $A $B >/dev/null
lvcreate -y -L 24m -n lin vgr >/dev/null; lvcreate -y -i2 -L 24m -n str vgr >/dev/null
lvcreate -y -T -L 96m vgr/pool >/dev/null 2>&1; lvcreate -y -V 40m -T vgr/pool -n thin >/dev/null 2>&1
for r in 1 2 3; do
	for l in $(volumes); do scribble $l; done
	lvcreate -y -s -L 16m -n ks$r vgr/lin >/dev/null; lvcreate -y -s -n kt$r vgr/thin >/dev/null 2>&1
	lvextend -L+8m vgr/thin >/dev/null 2>&1
	[ $r = 2 ] && lvextend -l+2 vgr/str >/dev/null
	if [ $r = 3 ]; then
		# os1 is smaller than lin, which we have extended since.
		lvconvert -y --merge vgr/os1 >/dev/null || fail "lvm2 cannot merge os1"; merged os1 lin
		lvconvert -y --merge vgr/ot1 >/dev/null 2>&1 || fail "lvm2 cannot merge ot1"
	fi
	lvchange -ay -K vgr/kt$r
	for l in lin thin; do scribble $l; done
	sums > /tmp/kernel; off; our_sums > /tmp/ours; same "we read other data than the kernel"

	for l in $(volumes); do overwrite $l; done
	ours lvcreate -s -L 16m -n os$r vgr/lin >/dev/null; ours lvcreate -s -n ot$r -k n vgr/thin >/dev/null
	ours lvextend -L+4m vgr/lin >/dev/null || fail "we cannot extend an origin"
	for l in lin thin; do overwrite $l; done
	ours pvmove -n lin $A >/dev/null || ours pvmove -n lin $B >/dev/null || fail "pvmove"
	case $r in
	2) ours lvconvert --merge vgr/ks1 vgr/kt1 >/dev/null || fail "our merges" ;;
	3) ours lvremove -y vgr/ks2 vgr/kt2 >/dev/null; ours lvreduce -y -L-4m vgr/str >/dev/null ;;
	esac
	our_sums > /tmp/ours; on; sums > /tmp/kernel; same "the kernel reads other data than we"
	echo "LVM: round $r: $(volumes | wc -l) volumes read the same on both sides"
done
off; ours vgremove -y vgr >/dev/null; pvs $A $B >/dev/null || fail pvs
echo "LVM: done: three rounds"
