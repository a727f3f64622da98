package main

import (
	"context"
	"fmt"
)

// Parts 5 and 6: tgt, libiscsi and qemu; attach inside a guest.
var toolCases = []Case{
	{Name: "tools/tgt", Expect: "our initiator verifies a volume of Debian's tgt", Fresh: true, Run: tgt},
	{Name: "tools/libiscsi", Expect: "iscsi-ls, -inq, -readcapacity16, -dd from the guest", Run: libiscsi},
	{Name: "tools/qemu-iscsi", Expect: "qemu-img reads and compares over iscsi://", Run: qemuISCSI},
	{Name: "tools/libiscsi-iser", Expect: "the same tools over iser://, by libiscsi's own iSER on siw", Run: libiscsiISER},
	{Name: "tools/qemu-iser", Expect: "qemu-io writes and reads over iser://", Run: qemuISER},
	{Name: "attach/nbd", Expect: "/dev/nbd0 in the guest: mkfs, mount, fio verify, detach", Run: attachNBD},
	{Name: "attach/nbd-held", Expect: "SIGTERM while /dev/nbd0 is held open with dirty pages: they are written", Run: attachHeld},
	{Name: "attach/nbd-restart", Expect: "the target killed and restarted under I/O on /dev/nbd0", Run: attachRestart},
	{Name: "attach/nbd-abandoned", Expect: "iser-initiator killed: --list tells of /dev/nbd0, --detach ends it, and so does the next attach", Run: attachAbandoned},
	{Name: "attach/nbd-upgrade", Expect: "ten upgrades of iser-initiator under I/O on /dev/nbd0: no error, data verified", Run: attachUpgrade},
}

func tgt(_ context.Context, e *Env) (string, error) {
	if _, err := e.In(`truncate -s 64M /tmp/tgt.img; tgtd || die tgtd; for i in $(seq 100); do tgtadm --op show --mode sys >/dev/null 2>&1 && break; sleep 0.1; done
tgtadm --lld iscsi --op new --mode target --tid 1 -T %[1]s && tgtadm --lld iscsi --op new --mode logicalunit --tid 1 --lun 1 -b /tmp/tgt.img && tgtadm --lld iscsi --op bind --mode target --tid 1 -I ALL`, lioIQN); err != nil {
		return "", err
	}
	url := fmt.Sprintf("iscsi://127.0.0.1:%d/%s/1", e.Port(3260), lioIQN)
	if _, err := e.Host("iser-initiator", "bench", url, "--rw=randwrite", "--bsrange=512-128k", "--iodepth=16", "--size=16m", "--verify=crc32c"); err != nil {
		return "", err
	}
	return "verified", nil
}

func libiscsi(_ context.Context, e *Env) (string, error) {
	t, err := e.Target(ramTarget)
	if err != nil {
		return "", err
	}
	_, err = e.In(`u=iscsi://$HOST:%[1]d
iscsi-ls -s $u | tee /tmp/ls; grep -q %[2]s /tmp/ls || die ls
iscsi-inq $u/%[2]s/0 >/dev/null || die inq; iscsi-readcapacity16 $u/%[2]s/0 | grep -q 524287 || die readcapacity
iscsi-dd --help >/dev/null 2>&1; iscsi-readcapacity16 $u/%[2]s/0`, t.Port, ramIQN)
	return "all answer", err
}

func libiscsiISER(_ context.Context, e *Env) (string, error) {
	t, err := e.Target(ramTarget)
	if err != nil {
		return "", err
	}
	_, err = e.In(settings("")+`dmesg -C; u=iser://$HOST:%[1]d/%[2]s/0
timeout 60 iscsi-inq $u | grep -qi softiser || die inq; timeout 60 iscsi-readcapacity16 $u | grep -q 524287 || die readcapacity; quiet_kernel`, t.Port, ramIQN)
	return "all answer", err
}

func qemuISER(_ context.Context, e *Env) (string, error) {
	t, err := e.Target(ramTarget)
	if err != nil {
		return "", err
	}
	// Debian's libiscsi 1.19 has buffers of 256 KiB for iSER and loses a CmdSN
	// when a command is longer, so the commands are kept short.
	_, err = e.In(settings("")+`dmesg -C; u=iser://$HOST:%d/%s/0
for n in 512 4k 64k 128k; do timeout 60 qemu-io -f raw -c "write -P 0x5a 1m $n" -c "read -P 0x5a 1m $n" -c "read -P 0 2m $n" $u >/tmp/q 2>&1 || { cat /tmp/q; die $n; }; grep -q 'verification failed' /tmp/q && die differs; done; quiet_kernel`, t.Port, ramIQN)
	return "written and read back", err
}

func qemuISCSI(_ context.Context, e *Env) (string, error) {
	t, err := e.Target(ramTarget)
	if err != nil {
		return "", err
	}
	_, err = e.In(`u=iscsi://$HOST:%d/%s/0
qemu-img info $u || die info
dd if=/dev/urandom of=/tmp/raw bs=1M count=256 2>/dev/null; qemu-img convert -n -f raw -O raw /tmp/raw $u || die convert; qemu-img compare -f raw -F raw /tmp/raw $u || die compare`, t.Port, ramIQN)
	return "256 MiB identical", err
}

// The kernel lets go of an nbd device a moment after it was detached.
const attachGuest = `modprobe nbd nbds_max=2 || die nbd
for i in $(seq 100); do [ -e /sys/block/nbd0/pid ] || break; sleep 0.1; done
/host/iser-initiator attach iser://$HOST:%[1]d/%[2]s/0 --device /dev/nbd0 >/tmp/attach.log 2>&1 &
for i in $(seq 100); do [ "$(blockdev --getsize64 /dev/nbd0 2>/dev/null)" = 67108864 ] && break; sleep 0.1; done
[ "$(blockdev --getsize64 /dev/nbd0)" = 67108864 ] || { cat /tmp/attach.log; die no device; }
`

func attachNBD(_ context.Context, e *Env) (string, error) {
	t, err := e.Target(fileTarget("64MiB"))
	if err != nil {
		return "", err
	}
	_, err = e.In(attachGuest+`mkfs.ext4 -q /dev/nbd0 && mount /dev/nbd0 /mnt && cp -a /etc /mnt/ && sync && fstrim /mnt && umount /mnt && fsck.ext4 -fn /dev/nbd0 || die fs
verify /dev/nbd0 16 1 16 || die fio
/host/iser-initiator attach --detach /dev/nbd0 || die detach; wait; cat /tmp/attach.log`, t.Port, ramIQN)
	return "mounted, verified, detached", err
}

// attachHeld ends the attachment while another process has the device open: the last
// close, at which the kernel writes its page cache back, comes too late.
func attachHeld(_ context.Context, e *Env) (string, error) {
	t, err := e.Target(fileTarget("64MiB"))
	if err != nil {
		return "", err
	}
	_, err = e.In(attachGuest+`a=$!; exec 7<>/dev/nbd0; dd if=/dev/urandom of=/tmp/held bs=1M count=16 2>/dev/null; cat /tmp/held >&7 || die write
grep -q "^Dirty: *[1-9][0-9][0-9][0-9]" /proc/meminfo || die nothing is dirty
kill $a; wait $a || { cat /tmp/attach.log; die detach; }; exec 7>&-; cat /tmp/attach.log
/host/iser-initiator verify iscsi://$HOST:%[1]d/%[2]s/0 /tmp/held || die lost`, t.Port, ramIQN)
	return "all that was in the page cache is on the volume", err
}

// attachAbandoned kills what serves the device, unused, used, and resized by a successor before.
func attachAbandoned(_ context.Context, e *Env) (string, error) {
	t, err := e.Target(fileTarget("64MiB"))
	if err != nil {
		return "", err
	}
	_, err = e.In(attachGuest+`a=$!; u=iser://$HOST:%[1]d/%[2]s/0; i=/host/iser-initiator
$i attach --upgrade /dev/nbd0 || { cat /tmp/attach.log; die upgrade; }
p=$($i attach --list | awk '$2 == "/dev/nbd0" { print $1 }'); kill -9 $p; sleep 1
$i attach --list | tee /tmp/list; grep -q "/dev/nbd0 .*abandoned" /tmp/list || die list
$i attach --detach /dev/nbd0 || die detach; [ ! -e /sys/block/nbd0/pid ] || die connected; [ -z "$($i attach --list)" ] || die listed
$i attach --daemon --device /dev/nbd0 $u || die attach; p=$($i attach --list | awk '$2 == "/dev/nbd0" { print $1 }'); kill -9 $p; sleep 1
$i attach --daemon --device /dev/nbd0 $u || die again; p=$($i attach --list | awk '$2 == "/dev/nbd0" { print $1 }')
exec 7</dev/nbd0; kill -9 $p; sleep 1
$i attach --daemon --device auto $u || die beside; $i attach --list | tee /tmp/list; grep -q "/dev/nbd0 .*abandoned" /tmp/list && grep -q "/dev/nbd1 .*connected" /tmp/list || die lists
$i attach --detach $u || die live; $i attach --list | tee /tmp/list; grep -q "/dev/nbd1" /tmp/list && die nbd1
$i attach --detach /dev/nbd0 --force || die forced; exec 7<&-; [ -z "$($i attach --list)" ] || die left`, t.Port, ramIQN)
	return "listed, ended, attached again", err
}

func attachRestart(_ context.Context, e *Env) (string, error) {
	t, err := e.Target(fileTarget("64MiB"))
	if err != nil {
		return "", err
	}
	if _, err := underIO(e, fmt.Sprintf(attachGuest, t.Port, ramIQN)+"d=/dev/nbd0", 32, func() error {
		t.Kill()
		_, err := e.TargetOn(t.Port, fileTarget("64MiB"))
		return err
	}); err != nil {
		return "", err
	}
	_, err = e.In("/host/iser-initiator attach --detach /dev/nbd0")
	return "recovered, verified", err
}
