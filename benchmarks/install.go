package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"softiser/benchmarks/internal/rows"
)

// packages are the peers, their clients, and what counts and compiles.
var packages = []string{"tgt", "nbdkit", "qemu-utils", "qemu-block-extra", "iperf3", "ucx-utils", "fio", "libiscsi-bin", "libnbd-bin",
	"linux-perf", "iproute2", "gcc", "libc6-dev", "e2fsprogs", "xfsprogs"}

// install installs what the rows need, unless everything is there.
func install(ctx context.Context) error {
	missing := rows.Missing(rows.All())
	if len(missing) == 0 {
		return nil
	}
	fmt.Fprintln(os.Stderr, "installing the peers from Debian; not there yet:", strings.Join(missing, " "))
	apt, err := exec.LookPath("apt-get")
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, apt, append([]string{"install", "-y", "-q", "--no-install-recommends"}, packages...)...)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("apt-get: %w: %s", err, out[max(0, len(out)-300):])
	}
	return nil
}
