package attach

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// RunDir returns the directory of the records.
func RunDir() string { return runDirOf(os.Geteuid()) }

func runDirOf(uid int) string {
	if d := os.Getenv("ISER_RUN_DIR"); d != "" {
		return d
	}
	if uid == 0 {
		return "/run/softiser-attach" // that of the units; /run/softiser is the target's, which is another user
	}
	if d := os.Getenv("XDG_RUNTIME_DIR"); d != "" {
		return filepath.Join(d, "softiser")
	}
	return filepath.Join(os.TempDir(), "softiser-"+strconv.Itoa(uid))
}

// makeRunDir creates the run directory; somebody else's is not used.
func makeRunDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("run directory: %w (name another with --run-dir or ISER_RUN_DIR)", err)
	}
	st, err := os.Lstat(dir)
	if err != nil {
		return fmt.Errorf("run directory: %w", err)
	}
	if sys, ok := st.Sys().(*syscall.Stat_t); !st.IsDir() || ok && int(sys.Uid) != os.Geteuid() {
		return fmt.Errorf("run directory %s belongs to somebody else (name another with --run-dir or ISER_RUN_DIR)", dir)
	}
	return nil
}

// nameOf is the file name of a volume's record: short, so that the socket's
// path stays below the 108 bytes that the kernel allows.
func nameOf(url string) string {
	sum := sha256.Sum256([]byte(url))
	return "attach-" + hex.EncodeToString(sum[:6])
}

func recordPath(dir, url string) string { return filepath.Join(dir, nameOf(url)+".json") }

// absolute is a path from the root, or as it is where that cannot be told.
func absolute(path string) string {
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}
	return path
}
