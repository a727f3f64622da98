package pcaptest

import (
	"context"
	"os/exec"
	"strconv"
	"strings"
)

// Undisturbed are the arguments by which tshark(1) lets iSER and NVMe over RDMA be what they
// are: some of its dissectors mistake their payload for their own, and some believe that a port
// of those that the kernel gives out to anybody is theirs (57000 is IRC's), which comes before
// MPA is looked for.
func Undisturbed(ctx context.Context) (args []string, err error) {
	tables, err := exec.CommandContext(ctx, "tshark", "-G", "decodes").Output()
	if err != nil {
		return nil, err
	}
	for _, of := range append([]string{"smb_direct", "rpcordma"}, onFreePorts(string(tables))...) {
		args = append(args, "--disable-protocol", of)
	}
	return args, nil
}

// onFreePorts finds the protocols that have TCP ports of the kernel's usual range, 32768 and
// above, in lines of a table, a port and a protocol.
func onFreePorts(tables string) (protocols []string) {
	for line := range strings.Lines(tables) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(f) != 3 || f[0] != "tcp.port" {
			continue
		}
		if port, err := strconv.Atoi(f[1]); err == nil && port >= 32768 {
			protocols = append(protocols, f[2])
		}
	}
	return protocols
}
