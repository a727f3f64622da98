package iscsi

import (
	"fmt"
	"strings"
	"testing"

	"softiser/blockdev"
	"softiser/blockdev/faulty"
	"softiser/blockdev/mem"
	"softiser/target/scsi"
)

// What a volume cannot do is in the log, once for a flood of failures.
func TestVolumeFaultsAreLogged(t *testing.T) {
	log, lines := observedLog()
	s := serve(t, func(c *serverConfig, _ *Target) { c.Log = log })
	below, err := mem.Open(mem.Config{Name: "bad", Size: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	vol := faulty.New(below, 1, faulty.Rule{Op: faulty.Read, Err: fmt.Errorf("sector 7 is gone: %w", blockdev.ErrMedium)})
	s.more = append(s.more, vol)
	if err := s.AddLUN(testIQN, LUN{Name: "bad", LUConfig: scsi.LUConfig{LUN: 5, Volume: vol}}); err != nil {
		t.Fatal(err)
	}
	r := s.session()
	failed := 0
	for range 5 {
		if res := r.do(command{cdb: cdbRW10(0x28, 0, 1), lun: 5, read: true, edtl: 512}, nil); len(res.sense) > 2 && res.sense[2]&15 == 3 {
			failed++
		}
	}
	if failed < 4 { // the first answer may be a unit attention
		t.Fatalf("%d READs failed with MEDIUM ERROR", failed)
	}
	said := 0
	for _, l := range lines() {
		if e, _ := l["error"].(string); strings.Contains(e, "sector 7") && fmt.Sprint(l["lun"]) == "5" && l["target"] == testIQN {
			said++
		}
	}
	if said == 0 || said == failed {
		t.Errorf("%d lines for %d failures:\n%v", said, failed, lines())
	}
	// A mistake of the initiator is none of the volume.
	n := len(lines())
	r.do(command{cdb: cdbRW10(0x28, 1<<30, 1), lun: 5, read: true, edtl: 512}, nil)
	if len(lines()) != n {
		t.Errorf("logged: %v", lines()[n:])
	}
}
