package registry

import (
	"os"
	"path/filepath"
	"strings"

	"go.uber.org/zap"
)

// epochDir is the folder in which volumes remember whether unflushed writes can have
// been lost while the target was away: that of the state, because it outlives a restart
// of the machine, else one that the system keeps for running programs. "" if there is
// none that can be used: a target that was killed then counts as one that has lost its cache.
func epochDir(stateDir string, log *zap.Logger) string {
	dir := stateDir
	if dir == "" {
		if dir = runtimeDir(); dir == "" {
			return ""
		}
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		log.Warn("no place to remember that caches were kept: if the target crashes, initiators will take unflushed writes for lost; set admin.state_dir", zap.Error(err))
		return ""
	}
	return dir
}

// runtimeDir is the program's folder in memory; RUNTIME_DIRECTORY is set by systemd's
// RuntimeDirectory=.
func runtimeDir() string {
	if dirs := os.Getenv("RUNTIME_DIRECTORY"); dirs != "" {
		first, _, _ := strings.Cut(dirs, ":")
		return first
	}
	if os.Geteuid() == 0 {
		return "/run/softiser"
	}
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" {
		return filepath.Join(dir, "softiser")
	}
	return ""
}
