package peers

import (
	"testing"

	"softiser/config"
	"softiser/initiator/nvmf"
)

// The volume is a namespace where it is asked for, at the URL that NVMe gives, and nothing
// but a LUN elsewhere.
func TestTargetsNamespace(t *testing.T) {
	const addr = "127.0.0.1:3260"
	for _, c := range []TargetConfig{{}, {NVMe: true, CRC: "off", BusyPoll: "50"}} {
		cfg, err := config.Parse([]byte(c.yaml(addr)), "row.yaml")
		if err != nil {
			t.Fatalf("%+v: %v", c, err)
		}
		if !c.NVMe {
			if len(cfg.Subsystems) != 0 {
				t.Errorf("%+v: subsystems %+v", c, cfg.Subsystems)
			}
			continue
		}
		u, err := nvmf.ParseURL(NVMe("iser://" + addr + "/iqn.2026-11.softiser:ram0/0"))
		if err != nil {
			t.Fatal(err)
		}
		if len(cfg.Subsystems) != 1 || u.Address != addr || u.Subsystem != cfg.Subsystems[0].NQN || u.NSID != uint32(cfg.Subsystems[0].Namespaces[0].NSID) {
			t.Errorf("URL %+v, subsystems %+v", u, cfg.Subsystems)
		}
	}
}
