package cli

import (
	"io"
	"slices"
	"strings"
	"testing"
)

// TestComplete: the shell is offered the names that a command can take.
func TestComplete(t *testing.T) {
	s := newShell(t)
	s.group()
	s.run("lvcreate", "-L8m", "-n", "data", "vg0")
	s.run("lvcreate", "-L8m", "-n", "dump", "vg0")
	s.run("lvcreate", "-T", "-L8m", "vg0/pool")
	disks := strings.Join(s.disks, " ")
	for line, want := range map[string]string{
		"lvremove |":             "vg0 vg0/data vg0/dump vg0/pool",
		"lvextend vg0/d|":        "vg0/data vg0/dump",
		"lvextend vg0/data |":    disks,
		"lvremove vg0/data |":    "vg0 vg0/dump vg0/pool",
		"lvrename vg0 |":         "data dump pool",
		"lvrename vg0/data |":    "",
		"vgremove |":             "vg0",
		"vgremove vg0 |":         "",
		"vgreduce vg0 |":         disks,
		"pvmove |":               disks,
		"pvs |":                  disks,
		"vgdisplay |":            "vg0",
		"diff vg0/data vg0/du|":  "vg0/dump",
		"lvcreate vg|":           "vg0 vg0/data vg0/dump vg0/pool",
		"vgcreate |":             "",
		"lvs -o lv_na|":          "lv_name",
		"lvs -o lv_size,lv_met|": "lv_size,lv_metadata_size",
		"lvs -O +lv_na|":         "+lv_name",
	} {
		line, word := line[:strings.LastIndexByte(line, ' ')], strings.TrimSuffix(line[strings.LastIndexByte(line, ' ')+1:], "|")
		words := strings.Fields(line)
		args := slices.Concat([]string{"__completeNoDesc", words[0], "--devices", strings.Join(s.disks, ",")}, words[1:], []string{word})
		var out strings.Builder
		c := Command(s.env)
		c.SetArgs(args)
		c.SetOut(&out)
		c.SetErr(io.Discard)
		if err := c.ExecuteContext(t.Context()); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, l := range strings.Fields(out.String()) {
			if !strings.HasPrefix(l, ":") {
				got = append(got, l)
			}
		}
		slices.Sort(got)
		if g := strings.Join(got, " "); g != want {
			t.Errorf("%s %s: %q, not %q", line, word, g, want)
		}
	}
	for _, c := range Command(s.env).Commands() {
		if arguments[c.Name()] == nil {
			t.Errorf("%s: nothing is said of its arguments", c.Name())
		}
	}
}
