package cli

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"
)

type pflagFlag = pflag.Flag

// blockDevices lists the machine's block devices that could be PVs: what
// /proc/partitions has, without the kernel's own mapped devices.
func blockDevices() []string {
	b, err := os.ReadFile("/proc/partitions")
	if err != nil {
		return nil
	}
	var out []string
	for i, line := range strings.Split(string(b), "\n") {
		f := strings.Fields(line)
		if i == 0 || len(f) != 4 || f[2] == "0" {
			continue
		}
		name := f[3]
		for _, skip := range []string{"dm-", "ram", "zram", "nbd", "sr", "fd"} {
			if strings.HasPrefix(name, skip) {
				name = ""
				break
			}
		}
		if name != "" {
			out = append(out, filepath.Join("/dev", name))
		}
	}
	return out
}
