package crc32c

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
)

func TestAllowed(t *testing.T) {
	for _, tc := range []struct {
		godebug string
		w       width
		step    bool
	}{
		{"", width512, true},
		{"gctrace=1,cpu.avx512f=on", width512, true},
		{"cpu.avx512f=off", width256, true},
		{"gctrace=0,cpu.avx512vl=off,cpu.adx=off", width256, true},
		{"cpu.avx2=off,cpu.avx512f=off", width128, true},
		{"cpu.vpclmulqdq=off", width128, true},
		{"cpu.pclmulqdq=off", noFolding, true},
		{"cpu.all=off", noFolding, false},
	} {
		if w, step := allowed(tc.godebug); w != tc.w || step != tc.step {
			t.Errorf("GODEBUG=%s: %v, CRC32 %v; want %v, %v", tc.godebug, w, step, tc.w, tc.step)
		}
	}
}

// forced names, in a test process that was started for it, the width that GODEBUG leaves.
const forced = "CRC32C_TEST_WIDTH"

// TestForced: processes whose GODEBUG hides parts of the processor take the path below, and
// it gives what hash/crc32 gives, which is then without them as well.
func TestForced(t *testing.T) {
	if want := os.Getenv(forced); want != "" {
		if got := fmt.Sprintf("%v, CRC32 %v", folding, canStep); got != want {
			t.Errorf("%s, want %s", got, want)
		}
		return
	}
	_, sse42 := detect()
	for _, off := range []string{"cpu.avx512f=off", "cpu.avx2=off,cpu.avx512f=off", "cpu.pclmulqdq=off,cpu.avx512f=off", "cpu.all=off"} {
		t.Run(off, func(t *testing.T) {
			t.Parallel()
			w, step := allowed(off)
			cmd := exec.Command(os.Args[0], "-test.run=^(TestForced|TestAgainstLibrary)$", "-test.v")
			cmd.Env = append(os.Environ(), "GODEBUG="+off, fmt.Sprintf("%s=%v, CRC32 %v", forced, min(w, widest()), step && sse42))
			out, err := cmd.CombinedOutput()
			if err != nil || !strings.Contains(string(out), "--- PASS: TestAgainstLibrary") {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}
