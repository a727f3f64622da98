package ublk

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

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

// Whoever is interrupted while the driver has not seen yet that a server is gone does not begin with the device.
func TestRecoveryInterrupted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		asked, limit := 0, 3
		start := func() error {
			if asked++; asked == limit {
				cancel()
			}
			return syscall.EBUSY
		}
		if err := startRecovery(ctx, start); !errors.Is(err, context.Canceled) || asked != limit {
			t.Errorf("interrupted: %v, asked %d times", err, asked)
		}
		if err := startRecovery(ctx, start); !errors.Is(err, context.Canceled) || asked != limit {
			t.Errorf("interrupted before: %v, asked %d times", err, asked)
		}
		begun := time.Now()
		if err := startRecovery(t.Context(), func() error { return syscall.EBUSY }); !errors.Is(err, syscall.EBUSY) || time.Since(begun) < quiesceLimit {
			t.Errorf("nobody saw it: %v after %v", err, time.Since(begun))
		}
	})
}
