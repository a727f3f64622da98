package registry

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"softiser/config"
	"softiser/config/examples"
	"softiser/rdma"
	"softiser/target/scsi"
)

// A portal speaks what it is told to, and all protocols otherwise.
func TestProtocols(t *testing.T) {
	c, err := config.Default()
	if err != nil {
		t.Fatal(err)
	}
	c.Portals = []config.Portal{{Listen: ":0"}, {Listen: ":0", Protocols: []string{"iser", "nvme-rdma"}}, {Listen: ":0", Protocols: []string{"iscsi", "nvme-tcp"}}}
	tc, err := ServerConfig(c)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range [][4]bool{{}, {true, false, true, false}, {false, true, false, true}} {
		p := &tc.Portals[i]
		if got := [4]bool{p.NoTCP, p.NoISER, p.NoNVMeTCP, p.NoNVMeRDMA}; got != want {
			t.Errorf("portal %d does not speak %v, want %v", i, got, want)
		}
	}
}

// Every example configuration becomes a server.
func TestExamplesBuild(t *testing.T) {
	dir := t.TempDir()
	if err := os.CopyFS(dir, examples.Files); err != nil {
		t.Fatal(err)
	}
	// What secure.yaml refers to.
	if err := os.Mkdir(filepath.Join(dir, "secrets"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"alice", "target"} {
		if err := os.WriteFile(filepath.Join(dir, "secrets", name), []byte("the secret of "+name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil || len(files) < 4 {
		t.Fatalf("examples %v: %v", files, err)
	}
	for _, f := range files {
		t.Run(filepath.Base(f), func(t *testing.T) {
			cfg, err := config.Load(f)
			if err != nil {
				t.Fatal(err)
			}
			if err := Check(cfg); err != nil {
				t.Error(err)
			}
			for _, v := range cfg.Volumes {
				for _, l := range cfg.Targets[0].LUNs {
					if _, err := lunConfig(cfg, v, l); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
}

func TestBusyPoll(t *testing.T) {
	for in, want := range map[string]time.Duration{"auto": rdma.BusyPollAuto, "0": rdma.BusyPollOff, "50": 50 * time.Microsecond} {
		if got := busyPoll(in); got != want {
			t.Errorf("busy_poll_us %s: %v, want %v", in, got, want)
		}
	}
}

// 0 in the file is 0 on the wire, and not the default.
func TestTime2Retain(t *testing.T) {
	for in, want := range map[time.Duration]int{0: -1, time.Second: 1, time.Hour: 3600} {
		if got := sessionParams(&config.ISCSI{Time2Retain: config.Duration(in)}).DefaultTime2Retain; got != want {
			t.Errorf("%v: %d, want %d", in, got, want)
		}
	}
}

// A wwid may be written with its prefix, as the check of the file allows.
func TestWWIDPrefix(t *testing.T) {
	v := config.Volume{Name: "a", WWID: "naa.6001405AAAAAAAAAAAAAAAAAAAAAAAAA"}
	lc, err := lunConfig(&config.Config{}, v, config.LUN{})
	if err != nil || len(lc.NAA) != 16 || lc.NAA[0] != 0x60 {
		t.Errorf("%x, %v", lc.NAA, err)
	}
}

func TestPlacement(t *testing.T) {
	for name, want := range map[string]scsi.Placement{"": scsi.PlacementDirect, "direct": scsi.PlacementDirect, "verified": scsi.PlacementVerified} {
		c, err := lunConfig(&config.Config{}, config.Volume{Placement: name}, config.LUN{})
		if err != nil || c.Placement != want {
			t.Errorf("%q: the LUN has placement %v, %v", name, c.Placement, err)
		}
	}
}

// A server is made with the queue depth of the file.
func TestQueueDepth(t *testing.T) {
	tc, err := ServerConfig(&config.Config{ISCSI: config.ISCSI{QueueDepth: 7}})
	if err != nil || tc.Limits.Commands != 7 {
		t.Errorf("%d commands of a session, %v", tc.Limits.Commands, err)
	}
}

// The check of a configuration finds what a start would fail of.
func TestCheckRefuses(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*config.Config){
		"":                   func(*config.Config) {},
		"admin.state_dir: ":  func(c *config.Config) { c.Admin.StateDir = file },
		"iqn.2026-11.test:a": func(c *config.Config) { c.Targets = append(c.Targets, c.Targets[0]) },
		"LUN 0":              func(c *config.Config) { c.Targets[0].LUNs = append(c.Targets[0].LUNs, c.Targets[0].LUNs[0]) },
		"nqn.2026-11.test:s": func(c *config.Config) { c.Subsystems = append(c.Subsystems, c.Subsystems[0]) },
		"namespace 1": func(c *config.Config) {
			c.Subsystems[0].Namespaces = append(c.Subsystems[0].Namespaces, c.Subsystems[0].Namespaces[0])
		},
		`acl: network "10.0.0.0/40"`: func(c *config.Config) { c.Targets[0].ACL.Networks = []string{"10.0.0.0/40"} },
		`wwid "6x"`:                  func(c *config.Config) { c.Volumes[0].WWID = "6x" },
	} {
		c, err := config.Default()
		if err != nil {
			t.Fatal(err)
		}
		c.Portals = []config.Portal{{Listen: ":0"}}
		c.Volumes = []config.Volume{{Name: "v", Type: config.VolumeMemory, Size: 1 << 20}}
		c.Targets = []config.Target{{IQN: "iqn.2026-11.test:a", LUNs: []config.LUN{{LUN: 0, Volume: "v"}}}}
		c.Subsystems = []config.Subsystem{{NQN: "nqn.2026-11.test:s", Namespaces: []config.Namespace{{NSID: 1, Volume: "v"}}}}
		change(c)
		if err := Check(c); (want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", want, err)
		}
	}
}
