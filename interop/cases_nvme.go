package main

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"softiser/interop/internal/ports"
)

// Linux's NVMe host attaches to iser-target, over TCP and over siw, on the same
// kind of port as the initiators of iSCSI and iSER.

const ramNQN = "nqn.2026-11.softiser:ram"

// ramNamespace is one memory volume, as a namespace and as a LUN.
const ramNamespace = ramTarget + `subsystems:
  - nqn: ` + ramNQN + `
    namespaces: [{nsid: 1, volume: ram}]
`

// nvmeWire is what a host and a target speak NVMe over: "tcp", or "rdma", which is siw here.
type nvmeWire string

var nvmeCases = func() []Case {
	var cases []Case
	for _, c := range []struct {
		wire  nvmeWire
		fio   string // MiB, jobs, depth
		short bool
	}{{"tcp", "24 4 64", true}, {"rdma", "8 2 32", false}} {
		w := c.wire
		session := func(name, expect string, short bool, config, script string) {
			cases = append(cases, w.session(name, expect, short, config, script))
		}
		attached := func(name, expect string, short bool, config, script, said string) {
			session(name, expect, short, config, "d=$(nvme_attach @TRANSPORT @PORT @NQN) || die connect: $d\n"+script+"\nnvme disconnect -n @NQN >/dev/null || die disconnect; echo "+said)
		}
		session("discovery", "the log lists the subsystem, connect-all connects to what it lists", c.short, ramNamespace, `
nvme discover -t @TRANSPORT -a $HOST -s @PORT -o json >/tmp/found || die discover; jq -e '.records[] | select(.subnqn=="@NQN" and .trtype=="@TRANSPORT" and .trsvcid=="@PORT")' /tmp/found >/dev/null || { cat /tmp/found; die not listed; }
nvme connect-all -t @TRANSPORT -a $HOST -s @PORT || die connect-all; d=$(nvme_disk @NQN) || die disk; [ "$(blockdev --getsize64 $d)" = 268435456 ] || die size
nvme disconnect -n @NQN >/dev/null || die disconnect; echo listed, connected and disconnected`)
		attached("sizes", "direct I/O of 512 B to 4 MiB at odd offsets", true, ramNamespace, "sizes $d || die", "all the same")
		attached("fio-verify", "jobs at depth over 2 queues read back what they wrote", false, ramNamespace, "verify $d "+c.fio+" || die fio", "verified")
		attached("ext4", "mkfs, copy a tree, remount, compare, fsck", false, ramNamespace, filesystem("ext4"), "same tree, clean")
		attached("xfs", "mkfs, copy a tree, remount, compare, repair finds nothing", false, strings.Replace(ramNamespace, "256MiB", "512MiB", 1), filesystem("xfs"), "same tree, clean")
		attached("commands", "what nvme-cli can ask a controller is answered, and is what the controller claims", false, ramNamespace, askAll, "all answered")
		attached("format", "nvme-cli formats the namespace: it is empty; what is not offered is refused", false, ramNamespace, formatNamespace, "empty")
		attached("sanitize", "nvme-cli overwrites the subsystem, follows the log page, and reads the pattern", false, ramNamespace, sanitizeSubsystem, "overwritten")
		attached("write-protect", "nvme-cli protects the namespace: Linux sees a read-only disk, writes are refused, until it is lifted", false, ramNamespace, protectNamespace, "protected and lifted")
		attached("io-commands", "flush, compare, write zeroes, deallocate, verify, copy; write uncorrectable: reads fail until it is written", false, "admin: {state_dir: state}\n"+ramNamespace, ioCommands, "as they should")
		if w == "tcp" {
			session("digests", "header, data and both digests, verified", false, ramNamespace, `
for o in -g -G "-g -G"; do d=$(nvme_attach tcp @PORT @NQN $o) || die connect $o: $d; verify $d 8 2 16 || die fio $o; nvme disconnect -n @NQN >/dev/null || die disconnect; done; echo verified`)
		}
		session("reservations", "two hosts register, reserve, preempt and report", false, ramNamespace, twoHosts)
		of := func(name string) string { return "nvme-" + string(w) + "/" + name }
		cases = append(cases,
			Case{Name: of("reset"), Expect: "the controller is reset five times under I/O: no error, data verified", Run: w.reset},
			Case{Name: of("resize"), Expect: "the new size is seen by an event, without a rescan", Short: c.short, Run: w.resize},
			Case{Name: of("discovery-events"), Expect: "a persistent discovery controller tells of a subsystem that comes and one that goes; connect-all takes it from there", Run: w.discoveryEvents},
			Case{Name: of("target-killed"), Expect: "kill -9 under I/O, restart: no error, data verified", Run: w.targetKilled},
			Case{Name: of("ana"), Expect: "two portals become inaccessible in turn, and at once, under I/O: no error, data verified", Run: w.ana},
			Case{Name: of("both-wires"), Expect: "the kernel over NVMe and our initiator over iSER write one volume at once, both verify", Run: w.bothWires},
		)
	}
	return append(cases, Case{Name: "nvme-rdma/linux-target", Expect: "our host's transport and Linux' target: 512 B to 1 MiB, in capsules and by RDMA", Fresh: true, Run: nvmetTransfers})
}()

// session is a case that is one script, against a target with config.
func (w nvmeWire) session(name, expect string, short bool, config, script string) Case {
	return Case{Name: "nvme-" + string(w) + "/" + name, Expect: expect, Short: short, Run: func(_ context.Context, e *Env) (string, error) {
		t, err := e.Target(config)
		if err != nil {
			return "", err
		}
		out, err := e.In("%s", w.fill(t.Port, "dmesg -C; nvme_up @TRANSPORT || die module\n"+script+"\nquiet_kernel || die kernel"))
		if err != nil {
			return out, err
		}
		if err := t.Stop(); err != nil {
			return "", fmt.Errorf("iser-target: %w", err)
		}
		return lastLine(out), nil
	}}
}

// fill puts what a script is about into it.
func (w nvmeWire) fill(port int, script string) string {
	return strings.NewReplacer("@PORT", fmt.Sprint(port), "@NQN", ramNQN, "@ADDED", addedNQN, "@IQN", ramIQN, "@TRANSPORT", string(w)).Replace(script)
}

// askAll asks for everything that can be asked for without changing anything. What a
// controller claims is answered; a feature that it does not claim is refused.
const askAll = `c=/dev/$(nvme_ctrl @NQN)
ask() { "$@" >/tmp/out 2>&1 || { cat /tmp/out; die "$*"; }; }
refused() { ! "$@" >/tmp/out 2>&1 || { cat /tmp/out; die "answered: $*"; }; }
for q in "id-ctrl -H $c" "id-ns -H -n 1 $c" "ns-descs -n 1 $c" "list-ns $c" "list-ns -a $c" "list-ctrl $c" "list-ctrl -n 1 $c" "nvm-id-ctrl $c" "cmdset-ind-id-ns -n 1 $c" "id-iocs $c" "show-regs $c" \
  "smart-log $c" "error-log $c" "fw-log $c" "effects-log -H $c" "changed-ns-list-log $c" "ana-log $c" "resv-notif-log $c" "sanitize-log $c" "supported-log-pages $c" "list" "list-subsys" "resv-report -n 1 --eds $c" \
  "smart-log -n 1 $c" "get-ns-id $d" "get-log -i 2 -l 512 $c" "get-property -o 0x1c $c" "list -v" "list -o json" "list-subsys -o json" "show-topology"; do ask nvme $q; done
# What a controller need not have is answered, or refused with a status.
for q in "id-nvmset $c" "id-uuid $c" "id-domain $c" "list-endgrp $c" "id-ns-granularity $c" "nvm-id-ns -n 1 $c" "primary-ctrl-caps $c" "list-secondary $c" "fid-support-effects-log $c" "mi-cmd-support-effects-log $c" \
  "telemetry-log $c -o /tmp/telemetry" "endurance-log -g 1 $c" "predictable-lat-log -i 1 $c" "pred-lat-event-agg-log -e 1 $c" "endurance-event-agg-log -e 1 $c" "persistent-event-log -a 0 $c" "lba-status-log $c" "phy-rx-eom-log $c" \
  "media-unit-stat-log $c" "supported-cap-config-log $c" "self-test-log $c" "get-lba-status -n 1 -s 0 -m 1 -a 16 -l 8 $c" "dir-receive -n 1 -D 0 -O 1 -H $c"; do
  nvme $q >/tmp/out 2>&1 || grep -qi "status\|not supported\|no such" /tmp/out || { cat /tmp/out; die "$q"; }
done
ask nvme id-ctrl $c
is() { local v; v=$(jq -r "$1" /tmp/id); [ "$v" = "$2" ] || die "$1 is $v, not $2"; }
nvme id-ctrl -o json $c >/tmp/id || die id-ctrl
is .cntrltype 1; is .cmic 11; is .oncs 429; is .fuses 1; is .ocfs 1; is .vwc 7; is .oacs 2; is .fna 8; is .nwpc 1; is .anacap 95; is .nanagrpid 1024; is .subnqn @NQN
nvme id-ns -n 1 -o json $c >/tmp/id || die id-ns
is .nsze 524288; is .nmic 1; is .anagrpid 1; is .msrc 127; is .nsattr 0
nvme ana-log -o json $c >/tmp/id || die ana-log; grep -q optimized /tmp/id || { cat /tmp/id; die ana state; }
[ "$(nvme list-ns -o json $c | jq -r '.nsid_list[0].nsid')" = 1 ] || die list-ns
claimed=" 1 2 4 5 6 7 8 9 10 11 15 129 130 131 132 "
for f in $(seq 1 17) 22 23 127 128 $(seq 129 133); do
  l=; [ $f = 129 ] && l="-l 16 --cdw11=1"
  case "$claimed" in *" $f "*) ask nvme get-feature $c -n 1 -f $f $l;; *) refused nvme get-feature $c -n 1 -f $f;; esac
done`

// withData makes what commands on blocks want.
const withData = `cd /tmp; head -c 65536 /dev/urandom >a; head -c 65536 /dev/zero >zero
io() { nvme "$@" >/tmp/out 2>&1 || { cat /tmp/out; die "$*"; }; }
not() { ! nvme "$@" >/tmp/out 2>&1 || die "succeeded: $*"; }
read8() { nvme read $d -s $1 -c $2 -z $((($2 + 1) * 512)) -d b >/dev/null 2>&1 || die read; }
`

// formatNamespace formats, with the erasure of user data.
const formatNamespace = withData + `io write $d -s 0 -c 127 -z 65536 -d a; io write $d -s 500000 -c 127 -z 65536 -d a
io format $d -n 1 -l 0 -s 1 --force
read8 0 127; cmp zero b || die the beginning; read8 500000 127; cmp zero b || die the end
not format $d -n 1 -l 5 --force; not format $d -n 1 -l 0 -s 2 --force
io write $d -s 0 -c 127 -z 65536 -d a; read8 0 127; cmp a b || die written again`

// sanitizeSubsystem overwrites everything once.
const sanitizeSubsystem = withData + `c=/dev/$(nvme_ctrl @NQN); io write $d -s 0 -c 127 -z 65536 -d a
state() { nvme sanitize-log -b $c 2>/dev/null | od -An -tu1 -j2 -N1 | awk '{print $1 % 8}'; }
[ "$(state)" = 0 ] || die sanitized before: $(state)
not sanitize $c -a 4
io sanitize $c -a 3 -n 1 -p 0xa5a5a5a5
for i in $(seq 600); do [ "$(state)" = 1 ] && break; sleep 0.1; done; [ "$(state)" = 1 ] || { nvme sanitize-log $c; die not completed; }
tr '\0' '\245' <zero >pattern; read8 0 127; cmp pattern b || die the beginning; read8 500000 127; cmp pattern b || die the end
io write $d -s 0 -c 127 -z 65536 -d a; read8 0 127; cmp a b || die written again`

// protectNamespace protects, and lifts it.
const protectNamespace = withData + `c=/dev/$(nvme_ctrl @NQN); io write $d -s 0 -c 127 -z 65536 -d a
ro() { nvme ns-rescan $c; for i in $(seq 100); do [ "$(blockdev --getro $d)" = $1 ] && return; sleep 0.1; done; die "blockdev --getro is not $1"; }
io set-feature $c -n 1 -f 0x84 -v 1; ro 1
nvme get-feature $c -n 1 -f 0x84 | grep -q 0x*1 || die get-feature
not write $d -s 0 -c 127 -z 65536 -d zero; not write-zeroes $d -s 0 -c 7; not dsm $d -n 1 --ad -s 0 -b 64; not format $d -n 1 --force
read8 0 127; cmp a b || die changed
io set-feature $c -n 1 -f 0x84 -v 0; ro 0
io write $d -s 0 -c 127 -z 65536 -d zero; read8 0 127; cmp zero b || die written again`

// ioCommands are those that the block layer sends seldom or never.
const ioCommands = withData + `io write $d -s 0 -c 127 -z 65536 -d a
io flush $d -n 1
io compare $d -s 0 -c 127 -z 65536 -d a; not compare $d -s 0 -c 127 -z 65536 -d zero
io verify $d -s 0 -c 127
io copy $d --sdlba=1024 --slbs=64,0 --blocks=63,63
read8 1024 127; { tail -c 32768 a; head -c 32768 a; } | cmp - b || die copy
io write-zeroes $d -s 64 -c 63; read8 64 63; cmp -n 32768 zero b || die write-zeroes
io dsm $d -n 1 --ad -s 0 -b 64; read8 0 63; cmp -n 32768 zero b || die dsm
io write-uncor $d -s 0 -c 7
not read $d -s 0 -c 7 -z 4096 -d b; grep -qi 'unrecovered read' /tmp/out || { cat /tmp/out; die how it fails; }
! dd if=$d of=/dev/null bs=4096 count=1 iflag=direct 2>/dev/null || die Linux reads what is marked
read8 8 7; io write $d -s 0 -c 7 -z 4096 -d a; read8 0 7; cmp -n 4096 a b || die written again
blkdiscard -o 1048576 -l 1048576 $d || die blkdiscard; blkdiscard -z -o 0 -l 1048576 $d || die blkdiscard -z
read8 1024 127; cmp zero b || die blkdiscard -z`

// twoHosts connects twice, as two hosts. Commands go by the controllers, since both are
// paths of one disk to Linux.
const twoHosts = `
a=nqn.2014-08.org.nvmexpress:uuid:00000000-0000-0000-0000-00000000000a b=nqn.2014-08.org.nvmexpress:uuid:00000000-0000-0000-0000-00000000000b
# nvme-cli takes the second one for the first one again.
two() { echo "transport=@TRANSPORT,traddr=$HOST,trsvcid=@PORT,nqn=@NQN,nr_io_queues=1,hostnqn=$1,hostid=${1##*uuid:}" > /dev/nvme-fabrics; }
two $a || die connect a; two $b || die connect b
d=$(nvme_disk @NQN) || die disk
ca= cb=; for c in /sys/class/nvme/nvme*; do case $(cat $c/hostnqn) in $a) ca=/dev/${c##*/};; $b) cb=/dev/${c##*/};; esac; done
[ -n "$ca" ] && [ -n "$cb" ] || die two controllers
io() { nvme "$@" >/tmp/out 2>&1 || { cat /tmp/out; die "$*"; }; }
not() { ! nvme "$@" >/tmp/out 2>&1 || die "succeeded: $*"; }
io resv-register $ca -n 1 --nrkey=0xa --rrega=0; io resv-register $cb -n 1 --nrkey=0xb --rrega=0
io resv-acquire $ca -n 1 --crkey=0xa --rtype=1 --racqa=0; not resv-acquire $cb -n 1 --crkey=0xb --rtype=1 --racqa=0
head -c 512 /dev/zero >/tmp/block
io write $ca -n 1 -s 0 -c 0 -z 512 -d /tmp/block; not write $cb -n 1 -s 0 -c 0 -z 512 -d /tmp/block; io read $cb -n 1 -s 0 -c 0 -z 512 -d /tmp/b
nvme resv-report $cb -n 1 --eds -o json >/tmp/r || die report; [ "$(jq -r .regctl /tmp/r)" = 2 ] && [ "$(jq -r .rtype /tmp/r)" = 1 ] || { cat /tmp/r; die report; }
io resv-acquire $cb -n 1 --crkey=0xb --prkey=0xa --rtype=2 --racqa=1
io write $cb -n 1 -s 0 -c 0 -z 512 -d /tmp/block; not write $ca -n 1 -s 0 -c 0 -z 512 -d /tmp/block
nvme resv-notif-log $ca -o json >/tmp/r || die resv-notif-log
io resv-release $cb -n 1 --crkey=0xb --rtype=2 --rrela=0; io write $ca -n 1 -s 0 -c 0 -z 512 -d /tmp/block
nvme disconnect -n @NQN >/dev/null || die disconnect; echo reserved, preempted, released`

// fileNamespace is one file, as a namespace and as a LUN.
func fileNamespace(size string) string {
	return fileTarget(size) + "subsystems: [{nqn: " + ramNQN + ", namespaces: [{nsid: 1, volume: disk}]}]\n"
}

// attach is a script that attaches soon again, and for a long time.
func (w nvmeWire) attach(port int) string {
	return w.fill(port, "nvme_up @TRANSPORT || die module; d=$(nvme_attach @TRANSPORT @PORT @NQN -c 1 -l 120 -k 5) || die connect: $d")
}

// steadyIO has fio write and verify the first 16 MiB of $d over and over while something is
// done to the path or the target, and wants it to see no error.
func steadyIO(e *Env, attach string, disturb func() error) (string, error) {
	g, err := e.Guest()
	if err != nil {
		return "", err
	}
	job, err := g.Start(attach + `
rm -f /tmp/enough; echo begun
while :; do
  fio --name=w --filename=$d --rw=randwrite --bs=16k --size=16m --direct=1 --ioengine=libaio --iodepth=16 --verify=crc32c --do_verify=1 --verify_fatal=1 >/tmp/w.log 2>&1 || { cat /tmp/w.log; die fio; }
  [ ! -e /tmp/enough ] || break
done; echo fio done`)
	if err != nil {
		return "", err
	}
	for !strings.Contains(job.Output(), "begun") {
		if job.Done() {
			return job.Wait(e.ctx)
		}
		select {
		case <-e.ctx.Done():
			return "", context.Cause(e.ctx)
		case <-time.After(100 * time.Millisecond):
		}
	}
	if err := disturb(); err != nil {
		return job.Output(), err
	}
	if _, err := e.In("touch /tmp/enough"); err != nil {
		return "", err
	}
	return job.Wait(e.ctx)
}

func nvmeDone(e *Env, what string) (string, error) {
	_, err := e.In("nvme disconnect -n %s >/dev/null && quiet_kernel", ramNQN)
	return what, err
}

func (w nvmeWire) resize(_ context.Context, e *Env) (string, error) {
	socket := filepath.Join(e.dir, "admin.sock")
	t, err := e.Target(fileNamespace("64MiB") + "admin: {socket: " + socket + "}\n")
	if err != nil {
		return "", err
	}
	if _, err := e.In("%s; [ $(blockdev --getsize64 $d) = 67108864 ] || die size before", w.attach(t.Port)); err != nil {
		return "", err
	}
	if _, err := e.Host("iser-target", "resize", "--socket", socket, "disk", "96MiB"); err != nil {
		return "", err
	}
	if _, err := e.In(`d=$(nvme_disk %s) || die disk
for i in $(seq 100); do [ $(blockdev --getsize64 $d) = 100663296 ] && break; sleep 0.1; done
[ $(blockdev --getsize64 $d) = 100663296 ] || die size after: $(blockdev --getsize64 $d)
dd if=/dev/zero of=$d bs=1M seek=80 count=4 oflag=direct || die write behind the old end`, ramNQN); err != nil {
		return "", err
	}
	return nvmeDone(e, "96 MiB seen and written")
}

func (w nvmeWire) reset(_ context.Context, e *Env) (string, error) {
	t, err := e.Target(ramNamespace)
	if err != nil {
		return "", err
	}
	if _, err := steadyIO(e, w.attach(t.Port), func() error {
		_, err := e.In("c=$(nvme_ctrl %s) || die controller; for i in 1 2 3 4 5; do sleep 1; echo 1 > /sys/class/nvme/$c/reset_controller || die reset $i; done", ramNQN)
		return err
	}); err != nil {
		return "", err
	}
	return nvmeDone(e, "five resets, verified")
}

func (w nvmeWire) targetKilled(_ context.Context, e *Env) (string, error) {
	t, err := e.Target(fileNamespace("64MiB"))
	if err != nil {
		return "", err
	}
	if _, err := steadyIO(e, w.attach(t.Port), func() error {
		t.Kill()
		_, err := e.TargetOn(t.Port, fileNamespace("64MiB"))
		return err
	}); err != nil {
		return "", err
	}
	return nvmeDone(e, "reconnected, verified")
}

// ana has Linux' own multipathing go from one portal to the other and back.
func (w nvmeWire) ana(_ context.Context, e *Env) (string, error) {
	socket, port2 := filepath.Join(e.dir, "admin.sock"), ports.Free()
	t, err := e.Target(fmt.Sprintf("    group: 1\n  - listen: 127.0.0.1:%d\n    advertise: 10.0.2.2:%d\n    group: 2\n", port2, port2) + ramNamespace + "admin: {socket: " + socket + "}\n")
	if err != nil {
		return "", err
	}
	access := func(group, state string) error {
		_, err := e.Host("iser-target", "lun", "access", "--socket", socket, ramNQN, "1", group, state)
		return err
	}
	attach := w.attach(t.Port) + w.fill(port2, "; nvme_attach @TRANSPORT @PORT @NQN -c 1 -l 120 >/dev/null || die second path")
	if _, err := steadyIO(e, attach, func() error {
		for _, step := range [][2]string{{"1", "standby"}, {"1", "active-optimized"}, {"2", "standby"}, {"2", "active-optimized"}, {"1", "standby"}, {"2", "standby"}, {"2", "active-optimized"}} {
			if err := access(step[0], step[1]); err != nil {
				return err
			}
			if _, err := e.In("sleep 0.5"); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		return "", err
	}
	return nvmeDone(e, "there and back, verified")
}

// bothWires has two initiators write their halves of one volume at once.
func (w nvmeWire) bothWires(_ context.Context, e *Env) (string, error) {
	t, err := e.Target(ramNamespace)
	if err != nil {
		return "", err
	}
	if _, err := steadyIO(e, w.attach(t.Port), func() error {
		_, err := e.Host("iser-initiator", "bench", fmt.Sprintf("iser://127.0.0.1:%d/%s/0", t.Port, ramIQN),
			"--rw=randwrite", "--bsrange=512-256k", "--iodepth=32", "--offset=64m", "--size=64m", "--verify=crc32c")
		return err
	}); err != nil {
		return "", err
	}
	return nvmeDone(e, "both verified")
}
