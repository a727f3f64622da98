package cli

import (
	"os"
	"testing"
)

// A disk that an interrupted vgreduce has left with the mark and the metadata of its group is not used by
// mistake, and can be made one of the group again.
func TestInterruptedReduce(t *testing.T) {
	for _, again := range [][]string{{"pvremove", "-ff"}, {"pvcreate", "-ff"}} {
		s := newShell(t)
		s.group()
		before, err := os.ReadFile(s.disks[1])
		if err != nil {
			t.Fatal(err)
		}
		s.run("vgreduce", "vg0", s.disks[1])
		if err := os.WriteFile(s.disks[1], before, 0o600); err != nil { // its part of that is not done
			t.Fatal(err)
		}
		s.fails("-ff overrides", again[0], "-ff", s.disks[0]) // the group has it
		s.fails("is not in volume group", "vgreduce", "vg0", s.disks[1])
		s.fails("pvcreate -ff", "vgextend", "vg0", s.disks[1])
		s.fails("-ff overrides", "pvremove", s.disks[1])
		s.fails("-ff overrides", "pvremove", "-f", s.disks[1])
		s.fails("-ff overrides", "pvcreate", "-f", s.disks[1])
		s.run(append(again, s.disks[1])...)
		s.run("vgextend", "vg0", s.disks[1])
		s.says("2", "vgs", "--noheadings", "-o", "pv_count", "vg0")
	}
}
