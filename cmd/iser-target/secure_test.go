package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"softiser/blockdev/open"
	"softiser/config"
	"softiser/config/examples"
	"softiser/initiator"
	"softiser/internal/loopback"
	"softiser/internal/sizeflag"
)

// The example of a guarded target lets in its own initiator, as it is named here and as
// it names itself without open-iscsi, and nobody else.
func TestSecureExample(t *testing.T) {
	dir := t.TempDir()
	if err := os.CopyFS(dir, examples.Files); err != nil {
		t.Fatal(err)
	}
	secrets := map[string]string{"alice": "the secret of alice", "target": "the secret of target"}
	if err := os.Mkdir(filepath.Join(dir, "secrets"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, s := range secrets {
		if err := os.WriteFile(filepath.Join(dir, "secrets", name), []byte(s+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	addr := loopback.FreeAddr(t)
	log, _ := start(t, "--config", filepath.Join(dir, "secure.yaml"), "--listen", addr)
	if strings.Contains(log.String(), "WARN") {
		t.Errorf("the example warns:\n%s", log)
	}
	auth := initiator.Auth{User: "alice", Secret: initiator.Secret(secrets["alice"]), TargetUser: "payroll-target", TargetSecret: initiator.Secret(secrets["target"])}
	base := initiator.Config{Transport: initiator.TransportTCP, Address: addr, TargetName: "iqn.2026-11.softiser:payroll", Auth: auth, LoginTimeout: 20 * time.Second}
	for _, name := range []string{initiator.DefaultInitiatorName(), "iqn.2026-11.softiser:initiator:0123456789ab", "iqn.1993-08.org.debian:01:fedcba987654"} {
		cfg := base
		cfg.InitiatorName = name
		l, err := initiator.Open(t.Context(), cfg)
		if err != nil {
			t.Errorf("%s is refused: %v", name, err)
			continue
		}
		l.Close()
		if found, err := initiator.Discover(t.Context(), cfg); err != nil || len(found) != 1 {
			t.Errorf("%s discovers %v, %v", name, found, err)
		}
	}
	for what, change := range map[string]func(*initiator.Config){
		"another name":   func(c *initiator.Config) { c.InitiatorName = "iqn.2026-11.test:other" },
		"a wrong secret": func(c *initiator.Config) { c.Auth.Secret = "the secret of mallory" },
		"no secret":      func(c *initiator.Config) { c.Auth = initiator.Auth{} },
	} {
		cfg := base
		cfg.InitiatorName = "iqn.2026-11.softiser:initiator:1"
		change(&cfg)
		if l, err := initiator.Open(t.Context(), cfg); err == nil {
			l.Close()
			t.Errorf("%s is let in", what)
		}
	}
	for _, s := range secrets {
		if strings.Contains(log.String(), s) {
			t.Error("a secret is in the log")
		}
	}
}

// A target that whoever reaches this machine may write to is worth a warning.
func TestExposedTargetWarns(t *testing.T) {
	const want = "without auth and acl"
	_, port, _ := strings.Cut(loopback.FreeAddr(t), ":")
	o, stop := start(t, "--listen", "0.0.0.0:"+port, "--export", "d=memory,size=1MiB")
	if !strings.Contains(o.String(), want) || !strings.Contains(o.String(), "iqn.2026-11.softiser:d") {
		t.Errorf("serve does not warn:\n%s", o)
	}
	stop()
	o, stop = start(t, "--listen", loopback.FreeAddr(t), "--export", "d=memory,size=1MiB")
	if strings.Contains(o.String(), want) {
		t.Errorf("serve warns of the loopback:\n%s", o)
	}
	stop()
	f, _ := configFile(t, t.TempDir(), `
portals: [{listen: "0.0.0.0:3260"}]
volumes: [{name: d, type: memory, size: 1MiB}]
targets: [{iqn: "iqn.2026-11.test:a", luns: [{lun: 0, volume: d}]}]
`)
	if code, out := command(t, "check", "--config", f); code != 0 || !strings.Contains(out, "warning: target iqn.2026-11.test:a") {
		t.Errorf("check: exit %d\n%s", code, out)
	}
}

// A password that somebody pastes where a volume belongs is not shown again.
func TestPasswordsAreNotRepeated(t *testing.T) {
	for _, spec := range []string{"d=iser://alice:pass-word@host/iqn.x/0", "d=iscsi://alice%pass-word@host/iqn.x/0,ro", "iser://alice:pass-word@host/iqn.x/0"} {
		for _, args := range [][]string{{"serve", "--export", spec}, {"lun", "add", "iqn.2026-11.test:a", "1", spec}} {
			if code, out := command(t, args...); code != exitUsage || strings.Contains(out, "pass-word") || !strings.Contains(out, "URL") {
				t.Errorf("%v: exit %d, %s", args, code, out)
			}
		}
	}
}

// The commands that talk to a target are told of a mistyped name of the socket, too.
func TestMistypedEnvironment(t *testing.T) {
	t.Setenv("SOFTISER_ADMIN_SOKCET", "/run/x")
	for _, args := range [][]string{{"status"}, {"session", "list"}, {"serve"}, {"reload"}, {"lvm", "lvs"}} {
		want := exitUsage
		if args[0] == "lvm" {
			want = 5 // lvm2's code
		}
		if code, out := command(t, args...); code != want || !strings.Contains(out, `SOFTISER_ADMIN_SOKCET`) || !strings.Contains(out, `did you mean "SOFTISER_ADMIN_SOCKET"?`) {
			t.Errorf("%v: exit %d, %s", args, code, out)
		}
	}
}

// --export, a configuration, options and resize agree about what a size is.
func TestSizesAreTakenAlike(t *testing.T) {
	for text, want := range map[string]int64{
		"1048576": 1 << 20, "1MiB": 1 << 20, "1 MiB": 1 << 20, "1mib": 1 << 20, "1.5GiB": 3 << 29, "4096kB": 4096000, "2TB": 2e12, "1024KiB": 1 << 20, "8PiB": 8 << 50,
		"512B": 512, "1_024": 1024,
		"4k": -1, "1M": -1, "1g": -1, "1T": -1, "-1": -1, "-1MiB": -1, "": -1, "MiB": -1, "1.5": -1, "1x": -1, "16EiB": -1, "9000000TiB": -1, "1e6": -1, "0x1000": -1,
	} {
		got := map[string]int64{}
		note := func(where string, n int64, err error) {
			if err != nil {
				n = -1
			}
			got[where] = n
		}
		n, err := config.ParseSize(text)
		note("resize", int64(n), err)
		var v sizeflag.Value
		err = v.Set(text)
		note("options", int64(v), err)
		s, err := open.Parse("d,size=" + text)
		note("--export", s.Size, err)
		cfg, err := config.Parse(fmt.Appendf(nil, "volumes: [{name: d, type: file, path: d, block_size: 512, size: %q}]\n", text), "x.yaml")
		if err == nil {
			note("the configuration", int64(cfg.Volumes[0].Size), nil)
		} else {
			note("the configuration", 0, err)
		}
		for where, n := range got {
			if n != want {
				t.Errorf("%q is %d for %s, want %d", text, n, where, want)
			}
		}
	}
}
