package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
)

const addedNQN = "nqn.2026-11.softiser:added"

// twoSubsystems is ramNamespace with one more, of another volume.
var twoSubsystems = strings.Replace(ramNamespace, "targets:", "  - {name: added, type: memory, size: 64MiB}\ntargets:", 1) + `  - nqn: ` + addedNQN + `
    namespaces: [{nsid: 1, volume: added}]
`

// discoveryEvents has Linux stay connected to the discovery service, and does at each
// event what nvme-cli's rule of udev does: it connects by that controller.
func (w nvmeWire) discoveryEvents(_ context.Context, e *Env) (string, error) {
	admin := "admin: {socket: " + filepath.Join(e.dir, "admin.sock") + "}\n"
	t, err := e.Target(ramNamespace + admin)
	if err != nil {
		return "", err
	}
	in := func(script string) error {
		_, err := e.In("%s", w.fill(t.Port, `
c=$(nvme_ctrl nqn.2014-08.org.nvmexpress.discovery) || c=
# nvme discover keeps the event from coming again (RAE); the plain read lets it.
log() { nvme discover -d $c -t @TRANSPORT -a $HOST -s @PORT -o json >/tmp/found || die discover; nvme get-log /dev/$c -i 0x70 -l 1024 >/dev/null || die get-log; }
listed() { jq -e ".records[] | select(.subnqn==\"$1\")" /tmp/found >/dev/null; }
event() { for i in $(seq 200); do [ "$(grep -c '^NVME_AEN=0x70f002' /tmp/events)" = $1 ] && return; sleep 0.1; done; cat /tmp/events; die no event; }
`+script))
		return err
	}
	reload := func(config string) error {
		text, err := os.ReadFile(filepath.Join(e.dir, "target.yaml"))
		if err != nil {
			return err
		}
		portal, _, _ := strings.Cut(string(text), "volumes:")
		if err := os.WriteFile(filepath.Join(e.dir, "target.yaml"), []byte(portal+config+admin), 0o644); err != nil {
			return err
		}
		_, err = e.Host("iser-target", "reload", "--socket", filepath.Join(e.dir, "admin.sock"))
		return err
	}
	if err := in(`dmesg -C; nvme_up @TRANSPORT || die module
udevadm monitor --kernel --property --subsystem-match=nvme >/tmp/events 2>&1 & echo $! >/tmp/monitor
for i in $(seq 100); do grep -q KERNEL /tmp/events && break; sleep 0.1; done
nvme connect-all -t @TRANSPORT -a $HOST -s @PORT --persistent -k 5 || die connect-all
nvme_disk @NQN >/dev/null || die disk
c=$(nvme_ctrl nqn.2014-08.org.nvmexpress.discovery) || die "$c"; log; listed @NQN || die not listed; ! listed @ADDED || die listed`); err != nil {
		return "", err
	}
	if err := reload(twoSubsystems); err != nil {
		return "", err
	}
	if err := in(`event 1; log; listed @ADDED || die not listed after the event
nvme connect-all -d $c -t @TRANSPORT -a $HOST -s @PORT || die connect-all; d=$(nvme_disk @ADDED) || die disk; verify $d 8 2 16 || die fio
sleep 12; [ "$(cat /sys/class/nvme/$c/state)" = live ] || die kept alive
nvme disconnect -n @ADDED >/dev/null || die disconnect`); err != nil {
		return "", err
	}
	if err := reload(ramNamespace); err != nil {
		return "", err
	}
	if err := in(`event 2; log; listed @NQN || die not listed; ! listed @ADDED || die listed yet
nvme disconnect -n @NQN >/dev/null && nvme disconnect -d $c >/dev/null || die disconnect; kill $(cat /tmp/monitor); quiet_kernel || die kernel`); err != nil {
		return "", err
	}
	return "told of both, connected by it, verified", t.Stop()
}
