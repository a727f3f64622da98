package main

import (
	"bytes"
	"strings"
	"testing"
)

// What a journal may leave passes, what it may not does not.
func TestCheckRing(t *testing.T) {
	const slots = 8
	for acked := range uint64(20) {
		ring := func(last uint64) []byte {
			b := make([]byte, slots*blockSize)
			for n := uint64(1); n <= last; n++ {
				copy(b[n%slots*blockSize:], record(n))
			}
			return b
		}
		for _, last := range []uint64{acked, acked + 1} {
			if err := checkRing(ring(last), slots, acked); err != nil {
				t.Errorf("%d there, %d flushed: %v", last, acked, err)
			}
		}
		torn := ring(acked)
		copy(torn[(acked+1)%slots*blockSize:], record(acked + 1)[:512])
		if err := checkRing(torn, slots, acked); err != nil {
			t.Errorf("the record after %d, which was flushed, is torn, as it may be: %v", acked, err)
		}
		if acked == 0 {
			continue
		}
		if checkRing(ring(acked-1), slots, acked) == nil {
			t.Errorf("record %d was flushed and is lost", acked)
		}
		for n := max(acked, slots) - slots + 2; n <= acked; n++ {
			stale := ring(acked)
			clear(stale[n%slots*blockSize:][:blockSize])
			if n > slots {
				copy(stale[n%slots*blockSize:], record(n-slots))
			}
			if checkRing(stale, slots, acked) == nil {
				t.Errorf("%d was flushed, and record %d is that of before", acked, n)
			}
			stale[n%slots*blockSize+100] ^= 1
			if checkRing(stale, slots, acked) == nil {
				t.Errorf("%d was flushed, and record %d is torn", acked, n)
			}
		}
	}
}

// An action that is not said is none.
func TestFenceDoesNothingByDefault(t *testing.T) {
	for _, in := range []string{"", "port=n1\n", "action=\nport=n1\n", "action=explode\nport=n1\n", "action=off\nport=n1\n"} {
		if fence([]string{"/nowhere/switch.sock"}, strings.NewReader(in), &bytes.Buffer{}) == 0 {
			t.Errorf("%q has succeeded, without a switch", in)
		}
	}
	var out bytes.Buffer
	if fence([]string{"/nowhere/switch.sock", "-o", "metadata"}, strings.NewReader("action=metadata\n"), &out); !strings.Contains(out.String(), "<resource-agent") {
		t.Errorf("metadata: %q", out.String())
	}
}

// Every configuration can be written down, with the agent and the programs it names.
func TestFiles(t *testing.T) {
	for _, conf := range configurations {
		c := &cluster{configuration: conf, dir: "/d", bin: "/b"}
		for i := range conf.nodes {
			c.nodes = append(c.nodes, &node{name: "n" + string(rune('1'+i)), number: i + 1})
		}
		facts := c.facts()
		facts["Node"], facts["First"], facts["Last"] = "n1", 1, 1000
		for name, text := range map[string]string{"corosync.conf": corosyncConf, "cib.xml": cib, "target.yaml": targetConf} {
			b, err := render(name, text, facts)
			if err != nil {
				t.Fatalf("%s: %v", conf.name, err)
			}
			if bytes.Contains(b, []byte("<no value>")) {
				t.Errorf("%s: %s: %s", conf.name, name, b)
			}
		}
	}
}
