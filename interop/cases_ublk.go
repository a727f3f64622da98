package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"softiser/interop/internal/guest"
)

// attach --device ublk, inside a guest: the host's kernel need not have the driver.
var ublkCases = []Case{
	{Name: "attach/ublk", Expect: "/dev/ublkb0 in the guest: mkfs, mount, trim, fio verify over 2 queues, write zeroes, FUA, read-only, detach", Run: attachUblk},
	{Name: "attach/ublk-held", Expect: "SIGTERM while /dev/ublkb0 is held open with dirty pages: they are written", Run: attachUblkHeld},
	{Name: "attach/ublk-restart", Expect: "the target killed and restarted under I/O on /dev/ublkb0", Run: attachUblkRestart},
	{Name: "attach/ublk-recover", Expect: "iser-initiator killed under I/O on /dev/ublkb0, three times: the same attach takes the device again, fio verifies", Run: attachUblkRecover},
	{Name: "attach/ublk-upgrade", Expect: "three upgrades of iser-initiator under I/O on /dev/ublkb0: no error, data verified", Run: attachUblkUpgrade},
	{Name: "attach/ublk-abandoned", Expect: "iser-initiator killed and not started again: --list tells of it, --detach ends the device and its waiting I/O", Run: attachUblkAbandoned},
}

// ublkUp has a guest with the module, in place of the worker's where that has none.
func (e *Env) ublkUp() error {
	modules, err := e.h.images[e.w.kind].Ublk(guest.CacheDir(), func(s string) { fmt.Fprintln(os.Stderr, s) })
	if err != nil {
		return err
	}
	g, err := e.Guest()
	if err != nil {
		return err
	}
	if err := os.CopyFS(filepath.Join(g.Dir(), "ublk"), os.DirFS(modules)); err != nil && !os.IsExist(err) {
		return err
	}
	_, err = e.In("[ -e /dev/ublk-control ] || insmod /job/ublk/ublk_drv.ko || die module; dmesg -C")
	return err
}

// attachUblkGuest attaches in the guest; $a is the process.
const attachUblkGuest = `attach_ublk() { /host/iser-initiator attach iser://$HOST:%[1]d/%[2]s/0 --device ublk --connections 2 "$@" >>/tmp/attach.log 2>&1 & a=$!; }
ready() { for i in $(seq 300); do grep -q "^  device  /dev/ublkb0" /tmp/attach.log && return; kill -0 $a 2>/dev/null || break; sleep 0.1; done; cat /tmp/attach.log; die no device; }
: >/tmp/attach.log; attach_ublk; ready
[ "$(blockdev --getsize64 /dev/ublkb0)" = 67108864 ] || { cat /tmp/attach.log; die size; }
`

// ublkGone is that nothing is left of a device.
const ublkGone = `[ ! -e /dev/ublkb0 ] && [ ! -e /dev/ublkc0 ] || die the device is there; quiet_kernel || die kernel
`

func attachUblk(_ context.Context, e *Env) (string, error) {
	t, err := e.Target(fileTarget("64MiB"))
	if err != nil {
		return "", err
	}
	if err := e.ublkUp(); err != nil {
		return "", err
	}
	_, err = e.In(attachUblkGuest+`q=/sys/block/ublkb0
[ "$(ls $q/mq | wc -l)" = 2 ] || die queues; [ "$(cat $q/queue/write_cache)" = "write back" ] || die write cache; [ "$(cat $q/queue/fua)" = 1 ] || die fua
[ "$(cat $q/queue/discard_max_bytes)" -gt 0 ] && [ "$(cat $q/queue/write_zeroes_max_bytes)" -gt 0 ] || die limits
mkfs.ext4 -q /dev/ublkb0 && mount /dev/ublkb0 /mnt && cp -a /etc /mnt/ && sync && fstrim /mnt && umount /mnt && fsck.ext4 -fn /dev/ublkb0 || die fs
verify /dev/ublkb0 8 2 16 || die fio
dd if=/dev/urandom of=/tmp/r bs=1M count=4 2>/dev/null; dd if=/tmp/r of=/dev/ublkb0 bs=64k oflag=direct,sync 2>/dev/null && cmp -n 4194304 /tmp/r /dev/ublkb0 || die fua
blkdiscard -z -o 1M -l 2M /dev/ublkb0 && cmp -n 2097152 -i 1M:0 /dev/ublkb0 /dev/zero && cmp -n 1048576 /tmp/r /dev/ublkb0 && cmp -n 1048576 -i 3M:3M /tmp/r /dev/ublkb0 || die zeroes
dd if=/dev/ublkb0 of=/tmp/all bs=1M 2>/dev/null
/host/iser-initiator attach --list; /host/iser-initiator attach --detach /dev/ublkb0 || { cat /tmp/attach.log; die detach; }; wait $a || { cat /tmp/attach.log; die end; }
`+ublkGone+`/host/iser-initiator verify iscsi://$HOST:%[1]d/%[2]s/0 /tmp/all || die other content
attach_ublk --read-only; : >/tmp/attach.log; ready; [ "$(blockdev --getro /dev/ublkb0)" = 1 ] || die writable
dd if=/dev/zero of=/dev/ublkb0 bs=4k count=1 oflag=direct 2>/dev/null && die written
kill $a; wait $a || { cat /tmp/attach.log; die end; }
`+ublkGone, t.Port, ramIQN)
	return "mounted, verified, read-only, detached", err
}

func attachUblkHeld(_ context.Context, e *Env) (string, error) {
	t, err := e.Target(fileTarget("64MiB"))
	if err != nil {
		return "", err
	}
	if err := e.ublkUp(); err != nil {
		return "", err
	}
	_, err = e.In(attachUblkGuest+`exec 7<>/dev/ublkb0; dd if=/dev/urandom of=/tmp/held bs=1M count=16 2>/dev/null; cat /tmp/held >&7 || die write
grep -q "^Dirty: *[1-9][0-9][0-9][0-9]" /proc/meminfo || die nothing is dirty
kill $a; sleep 3; kill -0 $a || { cat /tmp/attach.log; die it does not wait for who has it open; }
exec 7>&-; wait $a || { cat /tmp/attach.log; die detach; }
`+ublkGone+`/host/iser-initiator verify iscsi://$HOST:%[1]d/%[2]s/0 /tmp/held || die lost`, t.Port, ramIQN)
	return "all that was in the page cache is on the volume", err
}

func attachUblkRestart(_ context.Context, e *Env) (string, error) {
	t, err := e.Target(fileTarget("64MiB"))
	if err != nil {
		return "", err
	}
	if err := e.ublkUp(); err != nil {
		return "", err
	}
	if _, err := underIO(e, fmt.Sprintf(attachUblkGuest, t.Port, ramIQN)+"d=/dev/ublkb0", 32, func() error {
		t.Kill()
		_, err := e.TargetOn(t.Port, fileTarget("64MiB"))
		return err
	}); err != nil {
		return "", err
	}
	_, err = e.In("/host/iser-initiator attach --detach /dev/ublkb0 || die detach\n" + ublkGone)
	return "recovered, verified", err
}

// attachUblkRecover kills what serves the device, which waits for the next one.
func attachUblkRecover(_ context.Context, e *Env) (string, error) {
	t, err := e.Target(fileTarget("64MiB"))
	if err != nil {
		return "", err
	}
	if err := e.ublkUp(); err != nil {
		return "", err
	}
	attach := fmt.Sprintf(attachUblkGuest, t.Port, ramIQN)
	if _, err := underIO(e, attach+"echo $a >/tmp/attach.pid; d=/dev/ublkb0", 32, func() error {
		again := fmt.Sprintf("/host/iser-initiator attach iser://$HOST:%d/%s/0 --device ublk --connections 2 --daemon --log /tmp/again.log", t.Port, ramIQN)
		_, err := e.In("%s", `for n in 1 2 3; do kill -9 $(cat /tmp/attach.pid); sleep 0.5; `+again+` >/tmp/again 2>&1 || { cat /tmp/again /tmp/again.log; die again; }
cat /tmp/again; grep -q "^  device  /dev/ublkb0" /tmp/again || die another device; pgrep -f "device ublk" | tail -1 >/tmp/attach.pid; sleep 1; done`)
		return err
	}); err != nil {
		return "", err
	}
	_, err = e.In("/host/iser-initiator attach --detach /dev/ublkb0 || { cat /tmp/again.log; die detach; }\n" + ublkGone)
	return "taken again three times, verified", err
}

// attachUblkUpgrade has other processes take the device. Linux 6.1 looks every five seconds
// whether the one before is there.
func attachUblkUpgrade(_ context.Context, e *Env) (string, error) {
	t, err := e.Target(fileTarget("64MiB"))
	if err != nil {
		return "", err
	}
	if err := e.ublkUp(); err != nil {
		return "", err
	}
	pauses, err := upgradeAttached(e, fmt.Sprintf(attachUblkGuest, t.Port, ramIQN)+"d=/dev/ublkb0", "/dev/ublkb0", 3)
	if err != nil {
		return "", err
	}
	_, err = e.In("/host/iser-initiator attach --detach /dev/ublkb0 || { cat /tmp/attach.log; die detach; }\n" + ublkGone)
	return pauses, err
}

func attachUblkAbandoned(_ context.Context, e *Env) (string, error) {
	t, err := e.Target(fileTarget("64MiB"))
	if err != nil {
		return "", err
	}
	if err := e.ublkUp(); err != nil {
		return "", err
	}
	_, err = e.In(attachUblkGuest+`kill -9 $a; wait $a; dd if=/dev/zero of=/dev/ublkb0 bs=4k count=1 oflag=direct 2>/tmp/dd.log & w=$!
sleep 1; kill -0 $w || die the write does not wait
/host/iser-initiator attach --list | tee /tmp/list; grep -q killed /tmp/list || die list
/host/iser-initiator attach iser://$HOST:%[1]d/%[2]s/0 --device none >/tmp/none 2>&1 && die attached beside it; cat /tmp/none; grep -q "whose process was killed" /tmp/none || die reason
/host/iser-initiator attach --detach /dev/ublkb0 >/tmp/open 2>&1 && die detached under a write; cat /tmp/open; grep -q -- --force /tmp/open || die reason
/host/iser-initiator attach --detach /dev/ublkb0 --force || die detach; wait $w && die written; cat /tmp/dd.log
[ -z "$(/host/iser-initiator attach --list)" ] || die listed
`+ublkGone, t.Port, ramIQN)
	return "listed, ended", err
}
