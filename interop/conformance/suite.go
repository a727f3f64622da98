package main

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// suite is a version of the test program.
type suite struct {
	tool string // path of iscsi-test-cu
	name string // "libiscsi 1.19.0-3 of Debian 12"
}

//go:embed libiscsi.sh
var buildScript []byte

// installed is the suite that the host has, or the program that -tool names.
func installed(tool string) (suite, error) {
	path, err := exec.LookPath(tool)
	if err != nil {
		return suite{}, fmt.Errorf("%w; install Debian's libiscsi-bin, or name the program with -tool", err)
	}
	if strings.ContainsRune(tool, '/') {
		return suite{path, tool}, nil
	}
	// The program does not tell its version.
	out, err := exec.Command("dpkg-query", "-W", "-f", "${Version}", "libiscsi-bin").Output()
	if err != nil {
		return suite{path, tool}, nil
	}
	return suite{path, "libiscsi-bin " + string(out)}, nil
}

// newer builds the suite of the newest libiscsi that Debian has, unless the cache
// holds what the present script has built.
func newer(ctx context.Context, cache string) (suite, error) {
	sum := sha256.Sum256(buildScript)
	dir := filepath.Join(cache, "libiscsi-"+hex.EncodeToString(sum[:6]))
	s := suite{tool: filepath.Join(dir, "iscsi-test-cu")}
	version, err := os.ReadFile(filepath.Join(dir, "version"))
	if err != nil {
		if _, err := exec.LookPath("apt-get"); err != nil || os.Geteuid() != 0 {
			return s, errors.New("building it needs Debian's apt-get and root")
		}
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return s, err
		}
		cmd := exec.CommandContext(ctx, "bash", "-s", dir)
		cmd.Stdin = strings.NewReader(string(buildScript))
		out, err := cmd.CombinedOutput()
		if err != nil {
			return s, fmt.Errorf("building it: %w\n%s", err, out)
		}
		fmt.Print(string(out))
		if version, err = os.ReadFile(filepath.Join(dir, "version")); err != nil {
			return s, err
		}
	}
	s.name = "libiscsi " + strings.TrimSpace(string(version)) + ", built from Debian sid's source package"
	return s, nil
}
