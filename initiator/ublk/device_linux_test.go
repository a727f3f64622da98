package ublk

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"softiser/blockdev"
)

// The driver keeps what a device was made with: whoever takes it over serves it as that, or not at all.
func TestFits(t *testing.T) {
	sys := t.TempDir()
	if err := os.Mkdir(filepath.Join(sys, "queue"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		block, size, ro string
		readOnly        bool
		want            string // in the error; "": there is none
	}{
		{"512", "2048", "0", false, ""},
		{"512", "2048", "1", true, ""},
		{"512", "2048", "1", false, ""},
		{"4096", "2048", "0", false, "blocks of 4096 bytes"},
		{"512", "2049", "0", false, "1049088 bytes"},
		{"512", "2048", "0", true, "without --read-only"}, // what it holds would not be flushed
	} {
		for name, text := range map[string]string{"queue/logical_block_size": tc.block, "size": tc.size, "ro": tc.ro} {
			if err := os.WriteFile(filepath.Join(sys, name), []byte(text+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		err := fits("/dev/ublkb3", sys, blockdev.Info{Size: 1 << 20, BlockSize: 512}, tc.readOnly)
		if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%+v: %v", tc, err)
		}
	}
}
