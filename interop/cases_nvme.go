package main

import (
	"context"
	"fmt"
	"strings"
)

// Part 11: Linux's NVMe/TCP host attaches to iser-target, on the same kind of port as
// the initiators of iSCSI and iSER.

const ramNQN = "nqn.2026-11.softiser:ram"

// ramNamespace is one memory volume, as a namespace and as a LUN.
const ramNamespace = ramTarget + `subsystems:
  - nqn: ` + ramNQN + `
    namespaces: [{nsid: 1, volume: ram}]
`

var nvmeCases = func() []Case {
	session := func(name, expect string, short bool, config, script string) Case {
		return Case{Name: "nvme-tcp/" + name, Expect: expect, Short: short, Run: func(_ context.Context, e *Env) (string, error) {
			t, err := e.Target(config)
			if err != nil {
				return "", err
			}
			r := strings.NewReplacer("@PORT", fmt.Sprint(t.Port), "@NQN", ramNQN, "@IQN", ramIQN)
			out, err := e.In("%s", r.Replace("dmesg -C; modprobe nvme-tcp || die module\n"+script+"\nquiet_kernel || die kernel"))
			if err != nil {
				return out, err
			}
			if err := t.Stop(); err != nil {
				return "", fmt.Errorf("iser-target: %w", err)
			}
			return lastLine(out), nil
		}}
	}
	const connect = "d=$(nvme_attach @PORT @NQN) || die connect: $d\n"
	const disconnect = "\nnvme disconnect -n @NQN >/dev/null || die disconnect"
	return []Case{
		session("discovery", "the log lists the subsystem, connect-all connects to what it lists", true, ramNamespace, `
nvme discover -t tcp -a $HOST -s @PORT -o json >/tmp/found || die discover; jq -e '.records[] | select(.subnqn=="@NQN" and .trtype=="tcp" and .trsvcid=="@PORT")' /tmp/found >/dev/null || { cat /tmp/found; die not listed; }
nvme connect-all -t tcp -a $HOST -s @PORT || die connect-all; d=$(nvme_disk @NQN) || die disk; [ "$(blockdev --getsize64 $d)" = 268435456 ] || die size`+disconnect+"; echo listed, connected and disconnected"),
		session("sizes", "direct I/O of 512 B to 4 MiB at odd offsets", true, ramNamespace, connect+"sizes $d || die"+disconnect+"; echo all the same"),
		session("fio-verify", "4 jobs at depth 64 over 2 queues read back what they wrote", true, ramNamespace, connect+"verify $d 24 4 64 || die fio"+disconnect+"; echo verified"),
		session("ext4", "mkfs, copy a tree, remount, compare, fsck", false, ramNamespace, connect+filesystem("ext4")+disconnect+"; echo same tree, clean"),
		session("xfs", "mkfs, copy a tree, remount, compare, repair finds nothing", false, strings.Replace(ramNamespace, "256MiB", "512MiB", 1), connect+filesystem("xfs")+disconnect+"; echo same tree, clean"),
	}
}()
