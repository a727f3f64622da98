package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"softiser/config"
	"softiser/internal/doctor"
	"softiser/internal/loopback"
)

// examined runs doctor and returns what it has found, by check.
func examined(t *testing.T, wantCode int, args ...string) map[string]doctor.Finding {
	t.Helper()
	code, out := command(t, append([]string{"doctor", "--json"}, args...)...)
	if code != wantCode {
		t.Errorf("doctor %v ends with %d\n%s", args, code, out)
	}
	end := strings.LastIndex(out, "]")
	var all []doctor.Finding
	if err := json.Unmarshal([]byte(out[:end+1]), &all); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	by := map[string]doctor.Finding{}
	for _, f := range all {
		by[f.Check] = f
	}
	return by
}

func TestDoctor(t *testing.T) {
	dir := t.TempDir()
	addr, metrics, state := loopback.FreeAddr(t), loopback.FreeAddr(t), filepath.Join(dir, "state")
	f := filepath.Join(dir, "t.yaml")
	text := `
portals: [{listen: "` + addr + `"}]
volumes: [{name: ram, type: memory, size: 1MiB}]
targets: [{iqn: "iqn.2026-11.test:a", luns: [{lun: 0, volume: ram}]}]
admin: {socket: "` + filepath.Join(dir, "s") + `", state_dir: "` + state + `", metrics: "` + metrics + `"}
`
	if err := os.WriteFile(f, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	port := "TCP " + addr
	by := examined(t, 0, "-c", f)
	for name, want := range map[string]doctor.Level{"configuration": doctor.OK, "target": doctor.Note, port: doctor.OK, "TCP " + metrics: doctor.OK, "state_dir": doctor.Note} {
		if by[name].Level != want || by[name].Found == "" {
			t.Errorf("%s: %+v, want %v", name, by[name], want)
		}
	}
	if err := os.Mkdir(state, 0o700); err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	if by = examined(t, exitFailure, "-c", f); by[port].Level != doctor.Error || !strings.Contains(by[port].Mend, "ss -ltnp") || by["state_dir"].Level == doctor.Error {
		t.Errorf("somebody listens: %+v; state_dir %+v", by[port], by["state_dir"])
	}
	ln.Close()
	_, stop := start(t, "--config", f)
	by = examined(t, 0, "-c", f)
	for _, name := range []string{port, "TCP " + metrics, "target"} {
		if by[name].Level != doctor.OK {
			t.Errorf("while it runs, %s: %+v", name, by[name])
		}
	}
	if code, out := command(t, "doctor", "-c", f); code != 0 || !strings.Contains(out, "0 errors") {
		t.Errorf("doctor ends with %d\n%s", code, out)
	}
	stop()
	if err := os.WriteFile(f, []byte("portals: [{listen: 7}]\nvolumes: x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if by = examined(t, exitFailure, "-c", f); by["configuration"].Level != doctor.Error || !strings.Contains(by["configuration"].Mend, "iser-target check --config "+f) {
		t.Errorf("a configuration that is wrong: %+v", by["configuration"])
	}
}

// A volume that is not served is what somebody who asks wants to know.
func TestDoctorNamesTheUnserved(t *testing.T) {
	dir := t.TempDir()
	f, _ := configFile(t, dir, `
portals: [{listen: "ADDR"}]
volumes: [{name: ram, type: memory, size: 1MiB}, {name: gone, type: file, path: gone.img}]
targets: [{iqn: "iqn.2026-11.test:a", luns: [{lun: 0, volume: ram}, {lun: 1, volume: gone}]}]
admin: {socket: "`+filepath.Join(dir, "s")+`"}
`)
	start(t, "--config", f)
	if by := examined(t, exitFailure, "-c", f); by["target"].Level != doctor.Error || !strings.Contains(by["target"].Found, "LUN 1 of iqn.2026-11.test:a") {
		t.Errorf("%+v", by["target"])
	}
}

// A portal for RoCE has a port of UDP.
func TestDoctorOfRoCE(t *testing.T) {
	f, _ := configFile(t, t.TempDir(), `
portals: [{listen: "ADDR"}, {listen: "roce://127.0.0.9"}]
volumes: [{name: ram, type: memory, size: 1MiB}]
targets: [{iqn: "iqn.2026-11.test:a", luns: [{lun: 0, volume: ram}]}]
`)
	p := &patient{file: f, sock: socketFlag{path: filepath.Join(t.TempDir(), "none")}}
	for _, found := range p.examine(t.Context()) {
		if found.Check == "UDP 127.0.0.9:4791" {
			return
		}
	}
	t.Error("nobody has looked at UDP port 4791")
}

// TestDoctorWithoutPortals: a file that names no portal is one that serve takes, for the default.
func TestDoctorWithoutPortals(t *testing.T) {
	f := filepath.Join(t.TempDir(), "t.yaml")
	text := `
volumes: [{name: ram, type: memory, size: 1MiB}]
targets: [{iqn: "iqn.2026-11.test:a", luns: [{lun: 0, volume: ram}]}]
`
	if err := os.WriteFile(f, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	p := patient{file: f}
	if p.load(); p.err != nil || len(p.cfg.Portals) != 1 {
		t.Errorf("%v, %+v", p.err, p.cfg.Portals)
	}
}

// TestDoctorOfTheConfigurationFile: what is to be done about a file that is not there is enough for the service, and about one that only
// whoever asks may not read nothing is said to be wrong.
func TestDoctorOfTheConfigurationFile(t *testing.T) {
	denied := &fs.PathError{Op: "open", Path: defaultConfig, Err: fs.ErrPermission}
	for _, c := range []struct {
		name  string
		p     patient
		level doctor.Level
		mend  string
	}{
		{"none", patient{cfg: &config.Config{}}, doctor.Note, "install -D -m 640 -g softiser "},
		{"another user's", patient{cfg: &config.Config{}, file: defaultConfig, err: fmt.Errorf("configuration: %w", denied)}, doctor.Warning, "sudo iser-target doctor --config " + defaultConfig},
		{"wrong", patient{cfg: &config.Config{}, file: "x.yaml", err: errors.New("x.yaml:1: no")}, doctor.Error, "iser-target check --config x.yaml"},
		{"the environment is wrong", patient{cfg: &config.Config{}, err: errors.New("the environment variable …")}, doctor.Error, ""},
	} {
		if f := c.p.configuration(nil); f.Level != c.level || !strings.HasPrefix(f.Mend, c.mend) || c.mend == "" && f.Mend != "" {
			t.Errorf("%s: %+v", c.name, f)
		}
	}
}
