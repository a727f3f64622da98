package connflags

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"softiser/rdma"
)

func TestSecret(t *testing.T) {
	t.Setenv("VAR", "")
	t.Setenv("VAR_FILE", "")
	path := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(path, []byte("the secret\r\nand a note\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if s, err := secret("", path, "VAR", "VAR_FILE"); err != nil || s != "the secret" {
		t.Errorf("a file: %q, %v", string(s), err)
	}
	if s, err := secret("given", path, "VAR", "VAR_FILE"); err != nil || s != "given" {
		t.Errorf("one that is given: %q, %v", string(s), err)
	}
	if s, err := secret("", "", "VAR", "VAR_FILE"); err != nil || s != "" {
		t.Errorf("none: %q, %v", string(s), err)
	}
	for file, want := range map[string]string{"/dev/zero": "longer than", "/dev/null": "empty", path + ".no": "no such file"} {
		if _, err := secret("", file, "VAR", "VAR_FILE"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", file, err)
		}
	}
	t.Setenv("VAR_FILE", path)
	if s, err := secret("", "", "VAR", "VAR_FILE"); err != nil || s != "the secret" {
		t.Errorf("a variable that names a file: %q, %v", string(s), err)
	}
	t.Setenv("VAR", "from the environment")
	if s, err := secret("", "", "VAR", "VAR_FILE"); err != nil || s != "from the environment" {
		t.Errorf("a variable: %q, %v", string(s), err)
	}
}

func TestBusyPoll(t *testing.T) {
	for in, want := range map[string]time.Duration{"auto": rdma.BusyPollAuto, "0": rdma.BusyPollOff, "0s": rdma.BusyPollOff, "50us": 50 * time.Microsecond} {
		if got, err := busyPoll(in); err != nil || got != want {
			t.Errorf("%q: %v, %v, want %v", in, got, err, want)
		}
	}
	for _, in := range []string{"", "always", "50", "-1us"} {
		if got, err := busyPoll(in); err == nil {
			t.Errorf("%q was taken for %v", in, got)
		}
	}
}
