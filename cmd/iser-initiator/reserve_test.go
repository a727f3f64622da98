package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A LUN that is a namespace as well has one set of reservations, which both wires change and
// show.
func TestReserve(t *testing.T) {
	addr, _ := serveBoth(t)
	lun, ns := "iscsi://"+addr+"/"+testIQN+"/0", "nvme+tcp://"+addr+"/"+testNQN+"/1"
	const isid, host = "--isid=80a1b2c30000", "--hostid=5c1e8a3e-6a5f-4c0c-9b1e-2d6f1f3a7b10"
	const name, nqn = "--initiator-name=iqn.2026-11.test:host", "--hostnqn=nqn.2014-08.org.nvmexpress:uuid:5c1e8a3e-6a5f-4c0c-9b1e-2d6f1f3a7b10"
	scsi := func(args ...string) []string {
		return append([]string{"reserve", args[0], lun, isid, name}, args[1:]...)
	}
	nvme := func(args ...string) []string { return append([]string{"reserve", args[0], ns, host, nqn}, args[1:]...) }
	report := func(url string) (r reservations) {
		t.Helper()
		if err := json.Unmarshal([]byte(must(t, "reserve", "report", url, "--json")), &r); err != nil {
			t.Fatal(err)
		}
		return r
	}
	conflict := func(args []string) {
		t.Helper()
		if _, errs, code := run(t, args...); code != exitConflict || !strings.Contains(errs, "reservation conflict") {
			t.Errorf("%v: exit code %d, %s", args, code, errs)
		}
	}

	if out := must(t, "reserve", "report", lun); !strings.Contains(out, "reservation: none, generation 0") || !strings.Contains(out, "nobody is registered") {
		t.Error(out)
	}
	conflict(scsi("acquire", "--key=0xabc", "--type=write-exclusive"))
	must(t, scsi("register", "--new-key=0xabc")...)
	must(t, nvme("register", "--new-key=2748")...)
	conflict(nvme("register", "--key=1", "--new-key=0xdef"))
	must(t, nvme("register", "--key=0xabc", "--new-key=0xdef")...)
	must(t, scsi("acquire", "--key=0xabc", "--type=write-exclusive-registrants-only")...)
	for _, url := range []string{lun, ns} {
		r := report(url)
		if len(r.Registrants) != 2 || r.Type.String() != "write-exclusive-registrants-only" || r.Persist || r.Generation == 0 {
			t.Fatalf("%s: %+v", url, r)
		}
		for _, x := range r.Registrants {
			if (x.Key == "0x0000000000000abc") != x.Holder || x.Name == "" {
				t.Errorf("%s: %+v", url, r)
			}
		}
	}
	text := must(t, "reserve", "report", lun)
	for _, want := range []string{"iqn.2026-11.test:host,i,0x80a1b2c30000", "0x0000000000000def", "no "} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
	if text = must(t, "reserve", "report", ns); !strings.Contains(text, "5c1e8a3e-6a5f-4c0c-9b1e-2d6f1f3a7b10") {
		t.Error(text)
	}

	conflict(nvme("acquire", "--key=0xdef", "--type=exclusive-access"))
	must(t, nvme("preempt", "--key=0xdef", "--victim=0xabc", "--type=exclusive-access", "--abort")...)
	if r := report(ns); len(r.Registrants) != 1 || !r.Registrants[0].Holder || r.Type.String() != "exclusive-access" {
		t.Errorf("%+v", r)
	}
	conflict(scsi("release", "--key=0xabc", "--type=exclusive-access"))
	file := filepath.Join(t.TempDir(), "block")
	if err := os.WriteFile(file, make([]byte, 4096), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, url := range []string{lun, ns} {
		conflict([]string{"write", url, file})
		conflict([]string{"read", url, file + ".read"})
	}
	must(t, scsi("register", "--new-key=7", "--ignore-key")...)
	must(t, scsi("register", "--new-key=8", "--ignore-key")...)
	must(t, nvme("register", "--new-key=9", "--ignore-key")...)
	must(t, nvme("release", "--key=9", "--type=exclusive-access")...)
	must(t, nvme("unregister", "--key=9")...)
	must(t, scsi("unregister", "--key=8")...)
	if r := report(lun); len(r.Registrants) != 0 {
		t.Errorf("%+v", r)
	}
	must(t, scsi("register", "--new-key=8")...)
	must(t, nvme("register", "--new-key=9", "--ignore-key")...)
	must(t, scsi("clear", "--key=8")...)
	if r := report(ns); len(r.Registrants) != 0 {
		t.Errorf("%+v", r)
	}
}

// What cannot work is refused with what to do instead, before anything is changed.
func TestReserveRefused(t *testing.T) {
	addr, _ := serveBoth(t)
	lun, ns := "iscsi://"+addr+"/"+testIQN+"/0", "nvme+tcp://"+addr+"/"+testNQN+"/1"
	for _, tt := range []struct {
		want string
		args []string
	}{
		{"is not a command of iser-initiator reserve; iser-initiator reserve --help lists them", []string{lun}},
		{"--isid is wanted", []string{"register", lun, "--new-key=1"}},
		{"--nr-sessions 2: each session", []string{"register", lun, "--new-key=1", "--isid=80a1b2c30000", "--nr-sessions=2"}},
		{"through one path", []string{"register", lun + "," + lun, "--new-key=1", "--isid=80a1b2c30000"}},
		{"--new-key 0 would end", []string{"register", ns, "--new-key=0"}},
		{"up to 64 bits", []string{"register", ns, "--new-key=0x10000000000000000"}},
		{`"shared" is no type of reservation; there are write-exclusive, `, []string{"acquire", ns, "--key=1", "--type=shared"}},
		{"release gives a reservation up", []string{"acquire", ns, "--key=1", "--type=none"}},
		{"--type is missing", []string{"acquire", ns, "--key=1"}},
		{"--victim is missing", []string{"preempt", ns, "--key=1", "--type=write-exclusive"}},
		{"persist", []string{"clear", ns, "--key=1", "--persist"}},
	} {
		if _, errs, code := run(t, append([]string{"reserve"}, tt.args...)...); code != exitUsage || !strings.Contains(errs, tt.want) {
			t.Errorf("%v: exit code %d, %q; want %q", tt.args, code, errs, tt.want)
		}
	}
	// There is nowhere to keep it: that is the target's to say.
	if _, errs, code := run(t, "reserve", "register", ns, "--new-key=1", "--persist"); code != exitError || errs == "" {
		t.Errorf("persist without a state_dir: exit code %d, %q", code, errs)
	}
	if out := must(t, "reserve", "report", ns); !strings.Contains(out, "nobody is registered") {
		t.Error(out)
	}
}

// A key is decimal, or hexadecimal behind 0x, and nothing else.
func TestReservationKeys(t *testing.T) {
	for text, want := range map[string]uint64{"1": 1, "0123": 123, "0x1f": 0x1f, "0XABC": 0xabc, "0": 0, "0xffffffffffffffff": 1<<64 - 1} {
		var k keyFlag
		if err := k.Set(text); err != nil || uint64(k) != want {
			t.Errorf("%s is %d, %v; want %d", text, k, err, want)
		}
	}
	for _, text := range []string{"", "0x", "1_0", "0b1", "0o7", "abc", "-1", "0x10000000000000000"} {
		var k keyFlag
		if err := k.Set(text); err == nil {
			t.Errorf("%q is %d", text, k)
		}
	}
}

// TestReserveHelpHasNoDefaults: an option that has to be given has none.
func TestReserveHelpHasNoDefaults(t *testing.T) {
	for _, a := range reserveActions {
		help, _, _ := run(t, "reserve", a.name, "--help")
		for line := range strings.Lines(help) {
			for _, name := range a.needs {
				if strings.Contains(line, " --"+name+" ") && strings.Contains(line, "(default") {
					t.Errorf("%s: %s", a.name, line)
				}
			}
		}
	}
}
