package main

import (
	"context"
	"fmt"
	"strings"
)

// Part 11: Linux's NVMe host attaches to iser-target, over TCP and over siw, on the same
// kind of port as the initiators of iSCSI and iSER.

const ramNQN = "nqn.2026-11.softiser:ram"

// ramNamespace is one memory volume, as a namespace and as a LUN.
const ramNamespace = ramTarget + `subsystems:
  - nqn: ` + ramNQN + `
    namespaces: [{nsid: 1, volume: ram}]
`

var nvmeCases = func() []Case {
	session := func(transport, name, expect string, short bool, config, script string) Case {
		return Case{Name: "nvme-" + transport + "/" + name, Expect: expect, Short: short, Run: func(_ context.Context, e *Env) (string, error) {
			t, err := e.Target(config)
			if err != nil {
				return "", err
			}
			r := strings.NewReplacer("@PORT", fmt.Sprint(t.Port), "@NQN", ramNQN, "@IQN", ramIQN, "@TRANSPORT", transport)
			out, err := e.In("%s", r.Replace("dmesg -C; nvme_up @TRANSPORT || die module\n"+script+"\nquiet_kernel || die kernel"))
			if err != nil {
				return out, err
			}
			if err := t.Stop(); err != nil {
				return "", fmt.Errorf("iser-target: %w", err)
			}
			return lastLine(out), nil
		}}
	}
	const connect = "d=$(nvme_attach @TRANSPORT @PORT @NQN) || die connect: $d\n"
	const disconnect = "\nnvme disconnect -n @NQN >/dev/null || die disconnect"
	var cases []Case
	for _, t := range []struct {
		transport string
		fio       string // MiB, jobs, depth
		short     bool
	}{{"tcp", "24 4 64", true}, {"rdma", "8 2 32", false}} {
		add := func(name, expect string, short bool, config, script string) {
			cases = append(cases, session(t.transport, name, expect, short, config, script+disconnect))
		}
		add("discovery", "the log lists the subsystem, connect-all connects to what it lists", t.short, ramNamespace, `
nvme discover -t @TRANSPORT -a $HOST -s @PORT -o json >/tmp/found || die discover; jq -e '.records[] | select(.subnqn=="@NQN" and .trtype=="@TRANSPORT" and .trsvcid=="@PORT")' /tmp/found >/dev/null || { cat /tmp/found; die not listed; }
nvme connect-all -t @TRANSPORT -a $HOST -s @PORT || die connect-all; d=$(nvme_disk @NQN) || die disk; [ "$(blockdev --getsize64 $d)" = 268435456 ] || die size; echo listed, connected and disconnected`)
		add("sizes", "direct I/O of 512 B to 4 MiB at odd offsets", true, ramNamespace, connect+"sizes $d || die; echo all the same")
		add("fio-verify", "jobs at depth over 2 queues read back what they wrote", t.short, ramNamespace, connect+"verify $d "+t.fio+" || die fio; echo verified")
		add("ext4", "mkfs, copy a tree, remount, compare, fsck", false, ramNamespace, connect+filesystem("ext4")+"; echo same tree, clean")
		add("xfs", "mkfs, copy a tree, remount, compare, repair finds nothing", false, strings.Replace(ramNamespace, "256MiB", "512MiB", 1), connect+filesystem("xfs")+"; echo same tree, clean")
	}
	return cases
}()
