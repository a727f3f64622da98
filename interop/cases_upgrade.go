package main

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
)

// A target whose process is replaced under I/O: what it carries over does not notice.
var upgradeCases = []Case{
	{Name: "tcp/upgrade", Expect: "ten upgrades of the target under I/O: one connection all the time, no error, data verified", Run: upgradeISCSI("tcp", "1 sessions of iSCSI over TCP")},
	{Name: "iser/upgrade", Expect: "ten upgrades of the target under I/O: one connection all the time, no error, data verified", Run: upgradeISCSI("iser", "1 sessions of iSER")},
	{Name: "nvme-tcp/upgrade", Expect: "ten upgrades of the target under I/O: no reconnect, no error, data verified", Run: upgradeNVMe("tcp", "1 controllers of NVMe over TCP")},
	{Name: "nvme-rdma/upgrade", Expect: "ten upgrades of the target under I/O: no reconnect, no error, data verified", Run: upgradeNVMe("rdma", "1 controllers of NVMe over RDMA")},
}

const upgrades = 10

// upgradeISCSI has open-iscsi write and verify meanwhile, over one of its transports. That there
// was no other connection the guest knows by its local port, and the target by the number and
// the age of the session.
func upgradeISCSI(transport, carried string) func(context.Context, *Env) (string, error) {
	return func(_ context.Context, e *Env) (string, error) {
		socket := filepath.Join(e.dir, "admin.sock")
		t, err := e.Target(ramTarget + "admin: {socket: " + socket + "}\n")
		if err != nil {
			return "", err
		}
		var before, after []openSession
		ports := fmt.Sprintf(`awk '$3 ~ /:%04X$/ && $4 == "01" {print $2}' /proc/net/tcp`, t.Port)
		attach := fmt.Sprintf("d=$(attach %s %d %s) || die attach: $d; dmesg -C; %s >/tmp/connections; [ $(wc -l </tmp/connections) = 1 ] || { cat /proc/net/tcp; die connections; }", transport, t.Port, ramIQN, ports)
		if _, err := steadyIO(e, attach, func() error {
			if before, err = e.sessions(socket); err != nil {
				return err
			}
			for i := range upgrades {
				if err := t.upgrade(e, socket, carried); err != nil {
					return fmt.Errorf("upgrade %d: %w", i+1, err)
				}
			}
			after, err = e.sessions(socket)
			return err
		}); err != nil {
			return "", err
		}
		if len(before) != 1 || len(after) != 1 || before[0].TSIH != after[0].TSIH || after[0].Age < before[0].Age {
			return "", fmt.Errorf("the sessions were %+v, and are %+v", before, after)
		}
		_, err = e.In(ports+` | cmp - /tmp/connections || die another connection
iscsiadm -m session -P 3 >/tmp/sessions; grep -q 'iSCSI Session State: LOGGED_IN' /tmp/sessions || { cat /tmp/sessions; die state; }
! dmesg | grep -i 'conn error\|connection[0-9:]*: \|I/O error\|timing out\|device reset' || die the kernel has noticed
detach %s || die detach; quiet_kernel`, ramIQN)
		if err != nil {
			return "", err
		}
		return "one connection, verified", t.Stop()
	}
}

// upgradeNVMe has Linux' host write and verify meanwhile, over one of its transports. It tells
// of every controller that it connects again.
func upgradeNVMe(w nvmeWire, carried string) func(context.Context, *Env) (string, error) {
	return func(_ context.Context, e *Env) (string, error) {
		socket := filepath.Join(e.dir, "admin.sock")
		t, err := e.Target(ramNamespace + "admin: {socket: " + socket + "}\n")
		if err != nil {
			return "", err
		}
		if _, err := steadyIO(e, w.attach(t.Port)+"; dmesg -C", func() error {
			for i := range upgrades {
				if err := t.upgrade(e, socket, carried); err != nil {
					return fmt.Errorf("upgrade %d: %w", i+1, err)
				}
			}
			return nil
		}); err != nil {
			return "", err
		}
		if _, err := e.In("! dmesg | grep -i 'nvme.*\\(reconnect\\|error\\|timeout\\|reset\\|starting\\)' || die the kernel has noticed"); err != nil {
			return "", err
		}
		if _, err := nvmeDone(e, ""); err != nil {
			return "", err
		}
		return "no reconnect, verified", t.Stop()
	}
}

// openSession is a session as `iser-target session list --json` shows it.
type openSession struct {
	TSIH uint16 `json:"tsih"`
	Age  int64  `json:"age_ns"`
}

func (e *Env) sessions(socket string) (all []openSession, err error) {
	out, err := e.Host("iser-target", "session", "list", "--json", "--socket", socket)
	if err != nil {
		return nil, err
	}
	return all, json.Unmarshal([]byte(out), &all)
}

// upgrade has another process of iser-target take the place of p, which that process is from
// then on, and wants it to carry something.
func (p *Process) upgrade(e *Env, socket, carried string) error {
	if err := adopts(); err != nil {
		return err
	}
	out, err := e.Host("iser-target", "upgrade", "--json", "--socket", socket)
	if err != nil {
		return err
	}
	var u struct {
		New     int      `json:"new_pid"`
		Carried []string `json:"carried"`
	}
	if err := json.Unmarshal([]byte(out), &u); err != nil {
		return err
	}
	if err := p.succeeded(e.ctx, u.New); err != nil {
		return err
	}
	if !strings.Contains(strings.Join(u.Carried, "\n"), carried) {
		return fmt.Errorf("%s has not been carried:\n%s", carried, out)
	}
	return nil
}

// attachUpgrade has other processes of iser-initiator serve /dev/nbd0.
func attachUpgrade(_ context.Context, e *Env) (string, error) {
	t, err := e.Target(fileTarget("64MiB"))
	if err != nil {
		return "", err
	}
	pauses, err := upgradeAttached(e, fmt.Sprintf(attachGuest, t.Port, ramIQN)+"d=/dev/nbd0", "/dev/nbd0", upgrades)
	if err != nil {
		return "", err
	}
	_, err = e.In("/host/iser-initiator attach --detach /dev/nbd0 || { cat /tmp/attach.log; die detach; }; quiet_kernel || die kernel")
	return pauses, err
}

// upgradeAttached upgrades so many times what serves a device in the guest, which writes and
// verifies meanwhile.
func upgradeAttached(e *Env, attach, device string, times int) (string, error) {
	out, err := steadyIO(e, attach+"; dmesg -C", func() error {
		_, err := e.In(`for n in $(seq %[1]d); do sleep 1; was=$(pgrep -f "iser-initiator attach" | head -1)
/host/iser-initiator attach --upgrade %[2]s >/tmp/upgrade 2>&1 || { cat /tmp/upgrade /tmp/attach.log; die upgrade $n; }
cat /tmp/upgrade; [ "$(pgrep -f "iser-initiator attach" | wc -l)" = 1 ] && [ "$(pgrep -f "iser-initiator attach")" != "$was" ] || { ps ax; die process; }
s=$(awk '{ print $5 }' /sys/block/%[3]s/stat); for i in $(seq 300); do [ "$(awk '{ print $5 }' /sys/block/%[3]s/stat)" != "$s" ] && break; sleep 0.1; done
[ "$(awk '{ print $5 }' /sys/block/%[3]s/stat)" != "$s" ] || { cat /tmp/attach.log; die no I/O; }; done
! dmesg | grep -i 'error\|timed out\|reset' || die the kernel has noticed; /host/iser-initiator attach --list`, times, device, filepath.Base(device))
		return err
	})
	if err != nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	return fmt.Sprintf("%d upgrades, no error, verified", times), nil
}
