package main

import (
	"context"
	"fmt"
	"strings"
)

// Parts 2 and 3: Linux's initiator attaches to iser-target, over siw and over
// plain TCP, on the same kind of port.

const ramIQN = "iqn.2026-11.softiser:ram"

// ramTarget is one memory volume without conditions.
const ramTarget = `volumes:
  - {name: ram, type: memory, size: 256MiB}
targets:
  - iqn: ` + ramIQN + `
    luns: [{lun: 0, volume: ram}]
`

var (
	iserCases = linuxCases("iser")
	tcpCases  = append(linuxCases("tcp"), digestCases()...)
)

// linuxCases are open-iscsi of a guest against our target, over iSER or TCP.
func linuxCases(mode string) []Case {
	session := func(name, expect string, short bool, config string, script string) Case {
		return Case{Name: mode + "/" + name, Expect: expect, Short: short, Run: func(_ context.Context, e *Env) (string, error) {
			t, err := e.Target(config)
			if err != nil {
				return "", err
			}
			r := strings.NewReplacer("@MODE", mode, "@PORT", fmt.Sprint(t.Port), "@IQN", ramIQN, "@IFACE", map[string]string{"iser": "iser", "tcp": "default"}[mode],
				"@LOAD", fmt.Sprint(e.MiB(24, 8)))
			out, err := e.In("%s", r.Replace("dmesg -C; siw_up; initiator || die iscsid\n"+script+"\nquiet_kernel || die kernel"))
			if err != nil {
				return out, err
			}
			if err := t.Stop(); err != nil {
				return "", fmt.Errorf("iser-target: %w", err)
			}
			return lastLine(out), nil
		}}
	}
	const login = "d=$(attach @MODE @PORT @IQN) || die attach: $d\n"
	const logout = "\ndetach @IQN || die detach"
	cases := []Case{
		session("discovery", "SendTargets lists the target, login to what it lists", mode != "iser", ramTarget, `
discover @PORT @IFACE | tee /tmp/found; grep -q "$HOST:@PORT,1 @IQN" /tmp/found || die not listed
iscsiadm -m node -T @IQN -l >/dev/null || die login; disk @IQN || die disk; detach @IQN || die detach; echo listed, logged in and out`),
		session("sizes", "direct I/O of 512 B to 4 MiB at odd offsets", false, ramTarget, login+"sizes $d || die"+logout+"; echo all the same"),
		session("sg-tools", "sg_inq, sg_vpd, sg_readcap, sg_luns, sg_modes, sg_opcodes agree", mode == "iser", ramTarget, login+`
g=$d; sg_inq $g | grep -q SOFTISER || sg_inq $g || die inq
for p in 0x00 0x80 0x83 0x86 0xb0 0xb1 0xb2; do sg_vpd -p $p $g >/tmp/vpd || { cat /tmp/vpd; die vpd $p; }; done
sg_readcap -l $g | grep -q 'Last LBA=524287' || die readcap; sg_luns $g >/dev/null || die luns; sg_modes -a $g >/dev/null || die modes
sg_opcodes -n $g >/dev/null || die opcodes; sg_turs -n 10 $g || die turs; sg_sync $g || die sync; sg_verify --count=8 $g || die verify`+logout+"; echo all answer"),
		session("fio-verify", "4 jobs at depth 64 read back what they wrote", mode == "iser", ramTarget, login+"verify $d @LOAD 4 64 || die fio"+logout+"; echo verified"),
		session("ext4", "mkfs, copy a tree, remount, compare, fsck", mode == "iser", ramTarget, login+filesystem("ext4")+logout+"; echo same tree, clean"),
		session("xfs", "mkfs, copy a tree, remount, compare, repair finds nothing", false, strings.Replace(ramTarget, "256MiB", "512MiB", 1), login+filesystem("xfs")+logout+"; echo same tree, clean"),
		session("fstrim", "blocks freed in the file system are freed in the volume", false, ramTarget, login+`
cat /sys/block/${d##*/}/queue/discard_max_bytes | grep -qv '^0$' || die no discard
mkfs.ext4 -q -E nodiscard $d && mount $d /mnt && dd if=/dev/urandom of=/mnt/x bs=1M count=32 2>/dev/null && sync && rm /mnt/x && sync && fstrim -v /mnt | tee /tmp/trim && umount /mnt || die fstrim
blkdiscard $d || die blkdiscard; blkdiscard -z $d || die zeroout; [ "$(head -c 1M $d | tr -d '\0' | wc -c)" = 0 ] || die not zero`+logout+"; echo trimmed"),
		session("relogin", "ten logins and logouts", false, ramTarget, `
for i in $(seq 10); do d=$(attach @MODE @PORT @IQN) || die attach $i; dd if=$d of=/dev/null bs=64k count=4 iflag=direct 2>/dev/null || die read; detach @IQN || die detach; done; echo ten times`),
		session("lun-reset", "sg_reset during I/O; the I/O goes on", false, slowTarget, login+`
fio --name=w --filename=$d --rw=randrw --bs=4k --size=4m --direct=1 --ioengine=libaio --iodepth=8 --runtime=6 --time_based --verify=crc32c >/tmp/w.log 2>&1 & w=$!
sleep 2; sg_reset -d $d || die reset; wait $w || { cat /tmp/w.log; die fio; }`+logout+"; echo reset, I/O unharmed"),
		session("task-abort", "a command that hangs is aborted by Linux; the disk works afterwards", false, hangingTarget, login+`
n=/sys/block/${d##*/}/device; echo 1 > $n/timeout; echo 0 > $(echo $n/scsi_disk/*/max_retries)
timeout 100 dd if=/dev/zero of=$d bs=64k count=1 seek=128 oflag=direct 2>/tmp/dd && die it did not hang
echo 60 > $n/timeout; grep -q running $n/state || die state; dd if=$d of=/dev/null bs=4k count=2 iflag=direct 2>/dev/null || die the disk cannot be read
dd if=/dev/zero of=$d bs=64k count=1 oflag=direct 2>/dev/null || die the disk cannot be written`+logout+"; echo aborted, disk alive"),
		session("at-boot", "what README's fstab and node.startup do at boot: log in, mount, write; after a restart it is there", false, ramTarget, login+`
mkfs.ext4 -q -L softdisk $d && echo 'LABEL=softdisk /mnt ext4 _netdev,nofail 0 0' > /etc/fstab; iscsiadm -m node -T @IQN -p $HOST:@PORT -o update -n node.startup -v automatic || die startup
iscsiadm -m node -T @IQN -u >/dev/null || die logout; [ -b $d ] && die still there
for i in 1 2; do
  iscsiadm -m node --loginall=automatic >/dev/null || die loginall; d=$(disk @IQN) || die disk
  for n in $(seq 50); do blkid -L softdisk >/dev/null && break; sleep 0.1; done; mount -a -O _netdev || die mount
  [ $i = 1 ] && cp -a /etc/. /mnt/ ; diff -r --no-dereference /etc /mnt --exclude=lost+found >/tmp/diff || { cat /tmp/diff; die differs; }
  umount -a -O _netdev || die umount; iscsiadm -m node --logoutall=automatic >/dev/null || die logoutall
done; : > /etc/fstab; iscsiadm -m node -T @IQN -o delete; echo mounted twice`),
		session("beside", "an iSER and a TCP session on one port at once, on the same disk", mode == "iser", ramTarget, `
no="node.conn[0].timeo.noop_out_interval=0 node.conn[0].timeo.noop_out_timeout=0" # two loads at once in an emulated guest outlast its pings
d=$(attach @MODE @PORT @IQN $no) || die attach: $d
siw_up; other=default; [ @MODE = tcp ] && other=iser
iscsiadm -m node -o new -T @IQN -p $HOST:@PORT -I $other >/dev/null && for kv in $no; do iscsiadm -m node -T @IQN -p $HOST:@PORT -I $other -o update -n "${kv%%=*}" -v 0 || die update; done && iscsiadm -m node -T @IQN -p $HOST:@PORT -I $other -l >/dev/null || die second login
for i in $(seq 100); do set -- /sys/class/iscsi_session/session*/device/target*/*/block/sd*; [ $# = 2 ] && break; sleep 0.1; done
[ $# = 2 ] || die two disks: "$@"
a=/dev/${1##*/} b=/dev/${2##*/}; iscsiadm -m session | tee /tmp/sessions; grep -q ^iser: /tmp/sessions && grep -q ^tcp: /tmp/sessions || die the transports
dd if=/dev/urandom of=/tmp/p bs=1M count=8 2>/dev/null; dd if=/tmp/p of=$a bs=256k oflag=direct 2>/dev/null; dd if=$b bs=256k count=32 iflag=direct 2>/dev/null | cmp - /tmp/p || die differs
dd if=/tmp/p of=$b bs=64k seek=256 oflag=direct 2>/dev/null; dd if=$a bs=64k skip=256 count=128 iflag=direct 2>/dev/null | cmp - /tmp/p || die differs the other way
verify $a 8 1 16 >/tmp/a & x=$!; fio --name=o --filename=$b --offset=64m --size=8m --rw=randrw --bsrange=512-256k --direct=1 --ioengine=libaio --iodepth=16 --verify=crc32c --verify_fatal=1 >/tmp/b 2>&1 || { cat /tmp/b; die fio; }; wait $x || { cat /tmp/a; die fio; }`+logout+"; echo both verified"),
		session("many", "8 targets of 4 LUNs, all readable", false, manyTargets(8, 4), `
for i in 0 1 2 3 4 5 6 7; do t=iqn.2026-11.softiser:t$i; d=$(attach @MODE @PORT $t) || die attach $t; for l in 0 1 2 3; do x=$(disk $t $l) || die lun $l; dd if=$x of=/dev/null bs=64k count=2 iflag=direct 2>/dev/null || die read $t $l; done; done
for i in 0 1 2 3 4 5 6 7; do detach iqn.2026-11.softiser:t$i || die detach; done; echo 32 disks`),
	}
	for _, alg := range []string{"MD5", "SHA1", "SHA256", "SHA3-256"} {
		ours := strings.ToLower(alg)
		for _, mutual := range []bool{false, true} {
			name, expect := "chap-"+ours, "login with the secret, refused without"
			if mutual {
				name, expect = name+"-mutual", "both ends prove themselves"
			}
			cases = append(cases, Case{Name: mode + "/" + name, Expect: expect, Short: ours == "sha256" && mutual, Run: func(_ context.Context, e *Env) (string, error) {
				return chap(e, mode, alg, ours, mutual)
			}})
		}
	}
	for _, b := range []struct{ imm, r2t, first string }{
		{"Yes", "Yes", "65536"}, {"Yes", "No", "65536"}, {"No", "Yes", "65536"}, {"No", "No", "65536"}, {"Yes", "No", "4096"}, {"No", "No", "262144"},
	} {
		name := fmt.Sprintf("bursts-imm-%s-r2t-%s-first-%s", strings.ToLower(b.imm), strings.ToLower(b.r2t), b.first)
		set := fmt.Sprintf(" node.session.iscsi.ImmediateData=%s node.session.iscsi.InitialR2T=%s node.session.iscsi.FirstBurstLength=%s", b.imm, b.r2t, b.first)
		config := ramTarget + burstLimits
		cases = append(cases, session(name, "every size the same", false, config, "d=$(attach @MODE @PORT @IQN"+set+") || die attach: $d\nsizes $d || die; verify $d 8 1 16 || die fio"+logout+"; echo all the same"))
	}
	return cases
}

// slowTarget answers after 30 ms, so that commands are there to be aborted.
const slowTarget = `volumes:
  - {name: ram, type: memory, size: 64MiB, fault: {read_delay: 30ms, write_delay: 30ms}}
targets:
  - iqn: ` + ramIQN + `
    luns: [{lun: 0, volume: ram}]
`

// hangingTarget answers writes after 8 s; open-iscsi aborts about 3 s after a
// command has timed out, because it pings the target first.
const hangingTarget = `volumes:
  - {name: ram, type: memory, size: 64MiB, fault: {write_delay: 8s}}
targets:
  - iqn: ` + ramIQN + `
    luns: [{lun: 0, volume: ram}]
`

func manyTargets(targets, luns int) string {
	var v, t strings.Builder
	for i := range targets {
		fmt.Fprintf(&t, "  - iqn: iqn.2026-11.softiser:t%d\n    luns:\n", i)
		for l := range luns {
			fmt.Fprintf(&v, "  - {name: v%d-%d, type: memory, size: 8MiB}\n", i, l)
			fmt.Fprintf(&t, "      - {lun: %d, volume: v%d-%d}\n", l, i, l)
		}
	}
	return "volumes:\n" + v.String() + "targets:\n" + t.String()
}

func filesystem(kind string) string {
	check := map[string]string{"ext4": "fsck.ext4 -fn $d >/tmp/fsck", "xfs": "xfs_repair -n $d >/tmp/fsck 2>&1"}[kind]
	return fmt.Sprintf(`modprobe %[1]s; mkfs.%[1]s -q $d && mount $d /mnt && cp -a /usr/lib/python3 /usr/share/perl5 /mnt/ 2>/dev/null; cp -a /usr/sbin /mnt/ && sync && umount /mnt || die copy
mount $d /mnt && diff -r --no-dereference /usr/sbin /mnt/sbin >/tmp/diff && umount /mnt || { head /tmp/diff; die compare; }
%[2]s || { cat /tmp/fsck; die fsck; }`, kind, check)
}

func chap(e *Env, mode, alg, ours string, mutual bool) (string, error) {
	both := ""
	set := "node.session.auth.authmethod=CHAP node.session.auth.chap_algs=" + alg + " node.session.auth.username=alice node.session.auth.password=correct-horse-battery"
	if mutual {
		both = "      mutual: {name: target, secret_file: target.secret}\n"
		set += " node.session.auth.username_in=target node.session.auth.password_in=staple-horse-battery"
	}
	if err := e.files(map[string]string{"alice.secret": "correct-horse-battery\n", "target.secret": "staple-horse-battery\n"}); err != nil {
		return "", err
	}
	t, err := e.Target(ramTarget + "    auth:\n      method: chap\n      algorithms: [" + ours + "]\n      users: [{name: alice, secret_file: alice.secret}]\n" + both)
	if err != nil {
		return "", err
	}
	wrong := strings.Replace(set, "correct-horse", "erroneous-horse", 1)
	_, err = e.In(`dmesg -C; initiator || die iscsid
if d=$(attach %[1]s %[2]d %[3]s node.session.initial_login_retry_max=1 %[5]s); then die let in with a wrong secret; fi
iscsiadm -m node -T %[3]s -o delete
d=$(attach %[1]s %[2]d %[3]s %[4]s) || die attach: $d; dd if=$d of=/dev/null bs=64k count=4 iflag=direct || die read; detach %[3]s || die detach; quiet_kernel`, mode, t.Port, ramIQN, set, wrong)
	return "refused with the wrong secret, served with the right one", err
}

func digestCases() []Case {
	var cases []Case
	for _, d := range []struct{ name, header, data string }{{"header", "CRC32C", "None"}, {"data", "None", "CRC32C"}, {"both", "CRC32C", "CRC32C"}} {
		cases = append(cases, Case{Name: "tcp/digest-" + d.name, Expect: "every size the same", Short: d.name == "both", Run: func(_ context.Context, e *Env) (string, error) {
			t, err := e.Target(ramTarget)
			if err != nil {
				return "", err
			}
			_, err = e.In(`dmesg -C; initiator || die iscsid; d=$(attach tcp %[1]d %[2]s node.conn[0].iscsi.HeaderDigest=%[3]s node.conn[0].iscsi.DataDigest=%[4]s) || die attach
iscsiadm -m session -P 2 | grep -E 'Digest'; sizes $d || die; verify $d 8 1 16 || die fio; detach %[2]s || die detach; quiet_kernel`, t.Port, ramIQN, d.header, d.data)
			return "all the same", err
		}})
	}
	return cases
}

func lastLine(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return lines[len(lines)-1]
}

// burstLimits lets the initiator's wishes decide.
const burstLimits = "iscsi: {initial_r2t: false, first_burst: 256KiB}\n"
