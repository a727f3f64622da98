package main

import (
	"context"
	"fmt"
	"strings"

	"softiser/interop/internal/tap"
)

// storagePort is where a target serves over RoCE, ours or the guest's.
const storagePort = 3260

// roceSession attaches the guest's kernel to a target of ours and runs a script. In it
// $d is a disk when login is the way to attach it.
func roceSession(group, name, expect, config, script string) Case {
	return Case{Name: group + "/" + name, Expect: expect, Run: func(_ context.Context, e *Env) (string, error) {
		if err := e.RoCE(tap.MTU); err != nil {
			return "", err
		}
		t, err := e.TargetRoCE(storagePort, config)
		if err != nil {
			return "", err
		}
		r := strings.NewReplacer("@PORT", fmt.Sprint(storagePort), "@NQN", ramNQN, "@IQN", ramIQN)
		out, err := e.In("%s", r.Replace("rxe_up || die rxe\ndmesg -C\n"+script+"\nquiet_kernel >/tmp/quiet || { cat /tmp/quiet; die kernel; }"))
		if err != nil {
			return out, err
		}
		if err := t.Stop(); err != nil {
			return "", fmt.Errorf("iser-target: %w", err)
		}
		return lastLine(out), nil
	}}
}

var roceStorageCases = func() []Case {
	const login = "d=$(attach iser @PORT @IQN) || die attach: $d\n"
	const logout = "\ndetach @IQN || die detach"
	const connect = "nvme_up rdma || die module; d=$(nvme_attach rdma @PORT @NQN) || die connect: $d\n"
	const disconnect = "\nnvme disconnect -n @NQN >/dev/null || die disconnect"
	iser := func(name, expect, config, script string) Case {
		return roceSession("roce-iser", name, expect, config, script)
	}
	nvme := func(name, expect, script string) Case {
		return roceSession("roce-nvme", name, expect, ramNamespace, script)
	}
	const lossy = "lossy 1 || die netem\n"
	const lost = "\nlost; lossless"
	return []Case{
		iser("discovery", "SendTargets lists the target, login to what it lists", ramTarget, `initiator || die iscsid
discover @PORT iser | tee /tmp/found; grep -q "$HOST:@PORT,1 @IQN" /tmp/found || die not listed
iscsiadm -m node -T @IQN -l >/dev/null || die login; disk @IQN || die disk; detach @IQN || die detach; echo listed, logged in and out`),
		iser("sizes", "direct I/O of 512 B to 4 MiB at odd offsets", ramTarget, login+"sizes $d || die"+logout+"; echo all the same"),
		iser("fio-verify", "2 jobs at depth 32 read back what they wrote", ramTarget, login+"verify $d 16 2 32 || die fio"+logout+"; echo verified"),
		iser("ext4", "mkfs, copy a tree, remount, compare, fsck", ramTarget, login+filesystem("ext4")+logout+"; echo same tree, clean"),
		iser("relogin", "ten logins and logouts", ramTarget, `
for i in $(seq 10); do d=$(attach iser @PORT @IQN) || die attach $i; dd if=$d of=/dev/null bs=64k count=4 iflag=direct 2>/dev/null || die read; detach @IQN || die detach; done; echo ten times`),
		iser("many", "8 targets of 4 LUNs, all readable", manyTargets(8, 4), `
for i in 0 1 2 3 4 5 6 7; do t=iqn.2026-11.softiser:t$i; d=$(attach iser @PORT $t) || die attach $t; for l in 0 1 2 3; do x=$(disk $t $l) || die lun $l; dd if=$x of=/dev/null bs=64k count=2 iflag=direct 2>/dev/null || die read $t $l; done; done
for i in 0 1 2 3 4 5 6 7; do detach iqn.2026-11.softiser:t$i || die detach; done; echo 32 disks`),
		iser("loss", "1 % of the packets lost each way: fio reads back what it wrote", ramTarget, login+lossy+"verify $d 4 1 8 || die fio"+lost+logout+"; echo verified"),
		nvme("discovery", "the log lists the subsystem, connect-all connects to what it lists", `nvme_up rdma || die module
nvme discover -t rdma -a $HOST -s @PORT -o json >/tmp/found || die discover; jq -e '.records[] | select(.subnqn=="@NQN" and .trtype=="rdma" and .trsvcid=="@PORT")' /tmp/found >/dev/null || { cat /tmp/found; die not listed; }
nvme connect-all -t rdma -a $HOST -s @PORT || die connect-all; d=$(nvme_disk @NQN) || die disk; [ "$(blockdev --getsize64 $d)" = 268435456 ] || die size`+disconnect+"; echo listed, connected and disconnected"),
		nvme("sizes", "direct I/O of 512 B to 4 MiB at odd offsets", connect+"sizes $d || die"+disconnect+"; echo all the same"),
		nvme("fio-verify", "jobs at depth over 2 queues read back what they wrote", connect+"verify $d 8 2 32 || die fio"+disconnect+"; echo verified"),
		nvme("ext4", "mkfs, copy a tree, remount, compare, fsck", connect+filesystem("ext4")+disconnect+"; echo same tree, clean"),
		nvme("loss", "1 % of the packets lost each way: fio reads back what it wrote", connect+lossy+"verify $d 4 1 8 || die fio"+lost+disconnect+"; echo verified"),
		{Name: "roce-lio/verify", Expect: "our initiator at LIO's isert: discovery, random writes at depth 32 read back the same", Fresh: true, Run: roceLIO},
		{Name: "roce-nvmet/verify", Expect: "our host at Linux's nvmet: random writes at depth 32 read back the same", Fresh: true, Run: roceNVMet},
	}
}()

// roceBench writes and reads back a volume of the guest's.
func roceBench(e *Env, url string) error {
	_, err := e.Host("iser-initiator", "bench", url, "--rw=randwrite", "--bsrange=512-256k", "--iodepth=32", "--size=16m", "--verify=crc32c")
	return err
}

func roceLIO(_ context.Context, e *Env) (string, error) {
	if err := e.RoCE(tap.MTU); err != nil {
		return "", err
	}
	if _, err := e.In("%s", "rxe_up\ndmesg -C; lio_ram ram0 64; lio_target "+lioIQN+" && lio_lun 0 $lio_path && lio_portal $SELF 3260 iser || die lio\necho 1 > $tpg/enable"); err != nil {
		return "", err
	}
	portal := fmt.Sprintf("iser+roce://%s:%d", tap.Guest4, storagePort)
	out, err := e.Host("iser-initiator", "discover", portal)
	if err == nil && !strings.Contains(out, lioIQN) {
		err = fmt.Errorf("not listed:\n%s", out)
	}
	if err != nil {
		return "", err
	}
	if err := roceBench(e, portal+"/"+lioIQN+"/0"); err != nil {
		return "", err
	}
	_, err = e.In("quiet_kernel")
	return "listed, verified", err
}

func roceNVMet(_ context.Context, e *Env) (string, error) {
	if err := e.RoCE(tap.MTU); err != nil {
		return "", err
	}
	if _, err := e.In("%s", "rxe_up\ndmesg -C; nvmet_up rdma "+nvmetNQN+" || die nvmet"); err != nil {
		return "", err
	}
	if err := roceBench(e, fmt.Sprintf("nvme+roce://%s:%d/%s/1", tap.Guest4, storagePort, nvmetNQN)); err != nil {
		return "", err
	}
	_, err := e.In("quiet_kernel")
	return "verified", err
}
