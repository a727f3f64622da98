package main

import (
	"strings"
	"testing"
)

// A recovery level that does nothing is told, by check and by serve.
func TestIneffectiveLevelWarns(t *testing.T) {
	for _, c := range []struct {
		iscsi, transport string
		warns            bool
	}{
		{"{error_recovery_level: 1}", "{}", true}, // stream_login's default is true
		{"{error_recovery_level: 2}", "{stream_login: true}", true},
		{"{error_recovery_level: 2}", "{stream_login: false}", false},
		{"{}", "{stream_login: true}", false},
	} {
		f, _ := configFile(t, t.TempDir(), `
portals: [{listen: "ADDR"}]
volumes: [{name: ram, type: memory, size: 1MiB}]
targets: [{iqn: "iqn.2026-11.test:a", luns: [{lun: 0, volume: ram}]}]
iscsi: `+c.iscsi+`
transport: `+c.transport+"\n")
		const told = "error_recovery_level has no effect"
		code, out := command(t, "check", "-c", f)
		if code != 0 || strings.Contains(out, told) != c.warns {
			t.Errorf("iscsi %s, transport %s: check ends with %d and says %q", c.iscsi, c.transport, code, out)
		}
		log, stop := start(t, "--config", f)
		stop()
		if strings.Contains(log.String(), told) != c.warns {
			t.Errorf("iscsi %s, transport %s: serve's log says %s", c.iscsi, c.transport, log)
		}
	}
}

// A file that serves nothing is told of, by check and by serve.
func TestNothingServedWarns(t *testing.T) {
	f, _ := configFile(t, t.TempDir(), `portals: [{listen: "ADDR"}]`)
	const told = "no volume is served"
	code, out := command(t, "check", "-c", f)
	if code != 0 || !strings.Contains(out, told) || !strings.Contains(out, f) {
		t.Errorf("check ends with %d and says %q", code, out)
	}
	log, stop := start(t, "--config", f)
	stop()
	if !strings.Contains(log.String(), told) || !strings.Contains(log.String(), f) {
		t.Errorf("serve's log says %s", log)
	}
}
