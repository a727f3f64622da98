package main

import (
	"bytes"
	"os"
	"path/filepath"
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

// The files in docs/ha are those that the nodes run (go run ./interop/ha -files docs/ha).
func TestDocuments(t *testing.T) {
	docs, err := documents()
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range docs {
		got, err := os.ReadFile(filepath.Join("../../docs/ha", name))
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("docs/ha/%s is not what the nodes run (%v); go run ./interop/ha -files docs/ha", name, err)
		}
		if bytes.Contains(want, []byte("<no value>")) {
			t.Errorf("%s: %s", name, want)
		}
	}
}
