package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"softiser/interop/internal/ports"
)

const tgtName = "tgt"

// runTGT runs the same tests against Debian's tgt with a thin-provisioned file.
func runTGT(ctx context.Context, o *options, dir string, tests []string) (*summary, error) {
	s := &summary{kind: tgtName, remark: "Debian's tgt, thin-provisioned file"}
	for _, p := range []string{"tgtd", "tgtadm"} {
		if _, err := exec.LookPath(p); err != nil {
			s.remark += ": not run, not installed"
			return s, nil
		}
	}
	if os.Geteuid() != 0 {
		s.remark += ": not run, needs root"
		return s, nil
	}
	port := ports.Free()
	file := filepath.Join(dir, "tgt.img")
	if err := makeFile(file, volumeSize); err != nil {
		return nil, err
	}
	control := fmt.Sprint(port % 30000)
	d := exec.Command("tgtd", "-f", "-C", control, "--iscsi", fmt.Sprintf("portal=127.0.0.1:%d", port))
	if err := d.Start(); err != nil {
		return nil, err
	}
	defer func() {
		d.Process.Kill()
		d.Wait()
	}()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		if c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			c.Close()
			break
		}
		if time.Now().After(deadline) {
			s.remark += ": not run, tgtd does not listen"
			return s, nil
		}
	}
	for _, args := range []string{
		"--op new --mode target --tid 1 -T " + iqn,
		"--op new --mode logicalunit --tid 1 --lun 1 --backing-store " + file,
		"--op update --mode logicalunit --tid 1 --lun 1 --params thin_provisioning=1",
		"--op bind --mode target --tid 1 -I ALL",
	} {
		a := append([]string{"-C", control, "--lld", "iscsi"}, strings.Fields(args)...)
		if out, err := exec.CommandContext(ctx, "tgtadm", a...).CombinedOutput(); err != nil {
			s.remark += ": not run, tgtadm: " + strings.TrimSpace(string(out))
			return s, nil
		}
	}
	started := time.Now()
	url := fmt.Sprintf("iscsi://127.0.0.1:%d/%s/1", port, iqn)
	limit := *o
	limit.timeout = min(limit.timeout, 40*time.Second)
	for i, t := range tests {
		s.add(runTest(ctx, &limit, tgtName, t, url, url))
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		progress(tgtName, i+1, len(tests), s)
	}
	s.took = time.Since(started)
	return s, nil
}
