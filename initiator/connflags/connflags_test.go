package connflags

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
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
