package cli

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"
)

// TestRestore: a removed volume is back with its data, and what the file does not
// fit is refused.
func TestRestore(t *testing.T) {
	s := newShell(t)
	s.group()
	file := filepath.Join(t.TempDir(), "backup")
	s.run("lvcreate", "-L8m", "-n", "a", "vg0")
	data := bytes.Repeat([]byte("restored"), 1<<20)
	if _, err := s.try(data, "import", "-y", "--raw", "vg0/a"); err != nil {
		t.Fatal(err)
	}
	s.run("vgcfgbackup", "-f", file, "vg0")
	s.run("lvremove", "vg0/a")
	s.run("lvcreate", "-L4m", "-n", "later", "vg0", s.disks[1])
	s.fails("say --yes", "vgcfgrestore", "-f", file, "vg0")
	s.says("Restored volume group vg0.", "vgcfgrestore", "-y", "-f", file, "vg0")
	if got := strings.Join(strings.Fields(s.run("lvs", "--noheadings", "-o", "lv_name")), " "); got != "a" || s.run("export", "--raw", "vg0/a") != string(data) {
		t.Errorf("volumes %q, or the content differs", got)
	}
	s.fails("no such file", "vgcfgrestore", "-y", "-f", file+"x", "vg0")
	s.run("vgrename", "vg0", "vg1")
	s.fails("not of", "vgcfgrestore", "-y", "-f", file, "vg1")
	s.run("vgrename", "vg1", "vg0")
	s.run("lvcreate", "-T", "-L8m", "vg0/pool")
	s.fails("thin pool pool", "vgcfgrestore", "-y", "-f", file, "vg0")
	s.run("lvremove", "-y", "vg0/pool")
	s.run("vgreduce", "vg0", s.disks[1])
	s.fails("physical volumes", "vgcfgrestore", "-y", "-f", file, "vg0")
}
