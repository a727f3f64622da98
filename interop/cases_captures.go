package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"softiser/internal/pcaptest"
	"softiser/interop/internal/guest"
)

// What our two ends say to each other, captured on an MTU-1500 link (one
// end is in a guest whose network card segments nothing itself) and read by
// tshark, which knows nothing of us.
var captureCases = []Case{
	{Name: "captures/iser-initiator", Expect: "tshark finds no fault; our FPDUs fit the MSS", Fresh: true,
		Run: func(_ context.Context, e *Env) (string, error) { return captureInitiator(e, "iser") }},
	{Name: "captures/iser-target", Expect: "tshark finds no fault; our FPDUs fit the MSS", Fresh: true,
		Run: func(_ context.Context, e *Env) (string, error) { return captureTarget(e, "iser") }},
	{Name: "captures/iscsi-initiator", Expect: "tshark finds no fault", Fresh: true,
		Run: func(_ context.Context, e *Env) (string, error) { return captureInitiator(e, "iscsi") }},
	{Name: "captures/iscsi-target", Expect: "tshark finds no fault", Fresh: true,
		Run: func(_ context.Context, e *Env) (string, error) { return captureTarget(e, "iscsi") }},
}

const guestIP = "10.0.2.15"

// noProbe: a slow guest is no target that has moved, and the second connection, which would find
// that out, speaks iSCSI over TCP.
const noProbe = "--silence-probe=-1s"

var captureBench = []string{noProbe, "--rw=randrw", "--bsrange=512-64k", "--size=2m", "--iodepth=8", "--verify=crc32c"}

func captureInitiator(e *Env, scheme string) (string, error) {
	t, err := e.Target(ramTarget)
	if err != nil {
		return "", err
	}
	pcap := filepath.Join(e.dir, scheme+".pcap")
	g, err := e.Boot(guest.Options{MTU1500: true, Capture: pcap})
	if err != nil {
		return "", err
	}
	url := fmt.Sprintf("%s://10.0.2.2:%d/%s/0", scheme, t.Port, ramIQN)
	if _, err := g.Run(e.ctx, "/host/iser-initiator bench '"+url+"' "+strings.Join(captureBench, " ")); err != nil {
		return "", err
	}
	return judge(e, pcap, scheme, t.Port)
}

func captureTarget(e *Env, scheme string) (string, error) {
	pcap := filepath.Join(e.dir, scheme+".pcap")
	g, err := e.Boot(guest.Options{MTU1500: true, Capture: pcap})
	if err != nil {
		return "", err
	}
	if _, err := g.Start("/host/iser-target serve --listen 0.0.0.0:3260 --export ram=memory,size=64MiB"); err != nil {
		return "", err
	}
	url := fmt.Sprintf("%s://127.0.0.1:%d/%s/0", scheme, e.Port(3260), ramIQN)
	if err := e.retry(func() error { _, err := e.Host("iser-initiator", "info", noProbe, url); return err }); err != nil {
		return "", err
	}
	if _, err := e.Host("iser-initiator", append([]string{"bench", url}, captureBench...)...); err != nil {
		return "", err
	}
	return judge(e, pcap, scheme, 3260)
}

// judge ends the guest, which completes the capture, and lets tshark read it.
func judge(e *Env, pcap, scheme string, port int) (string, error) {
	// tshark knows iSCSI by its port only.
	var as []string
	if scheme == "iscsi" {
		as = []string{"-d", fmt.Sprintf("tcp.port==%d,iscsi", port)}
	}
	time.Sleep(200 * time.Millisecond) // the last segments
	e.w.drop()
	once := strings.TrimSuffix(pcap, ".pcap") + "-once.pcap"
	mpaPort := port
	if scheme == "iscsi" {
		mpaPort = 0
	}
	if err := everyByteOnce(pcap, once, mpaPort); err != nil {
		return "", err
	}
	pcap = once
	bad, err := tshark(e.ctx, pcap, append(as, "-Y", "_ws.malformed || _ws.expert.severity >= 0x00800000")...)
	if err != nil {
		return "", err
	}
	if bad != "" {
		return "", fmt.Errorf("tshark complains about\n%s", firstLines(bad, 10))
	}
	if scheme == "iscsi" {
		out, err := tshark(e.ctx, pcap, append(as, "-Y", "iscsi", "-T", "fields", "-e", "iscsi.opcode")...)
		if n := strings.Count(out, "\n"); err != nil || n < 50 {
			return "", fmt.Errorf("only %d packets were recognised as iSCSI: %v", n, err)
		}
		return "no fault", nil
	}
	return judgeFPDUs(e.ctx, pcap)
}

// judgeFPDUs checks the sizes of what our end in the guest has sent. Slirp's MSS
// is 1460 bytes; an FPDU is 2 bytes of length, the ULPDU, padding and 4 of CRC.
func judgeFPDUs(ctx context.Context, pcap string) (string, error) {
	const largest = 1460 - 2 - 4
	out, err := tshark(ctx, pcap, "-Y", "iwarp_mpa.fpdu && ip.src == "+guestIP, "-T", "fields", "-e", "iwarp_mpa.ulpdulength", "-e", "iwarp_rdma.opcode")
	if err != nil {
		return "", err
	}
	sizes, longest := 0, 0
	kinds := map[string]bool{}
	for line := range strings.Lines(out) {
		lengths, opcodes, _ := strings.Cut(strings.TrimSpace(line), "\t")
		for s := range strings.SplitSeq(lengths, ",") {
			n, err := strconv.Atoi(s)
			if err != nil {
				return "", fmt.Errorf("tshark's ULPDU length %q: %w", s, err)
			}
			sizes++
			longest = max(longest, n)
		}
		for o := range strings.SplitSeq(opcodes, ",") {
			kinds[o] = true
		}
	}
	if sizes < 50 || len(kinds) < 2 {
		return "", fmt.Errorf("only %d FPDUs of %d kinds were recognised", sizes, len(kinds))
	}
	if longest > largest {
		return "", fmt.Errorf("an FPDU has a ULPDU of %d bytes; %d fit into a segment", longest, largest)
	}
	return fmt.Sprintf("no fault; longest ULPDU %d bytes", longest), nil
}

// tshark reads a capture.
func tshark(ctx context.Context, pcap string, args ...string) (string, error) {
	undisturbed, err := pcaptest.Undisturbed(ctx)
	if errors.Is(err, exec.ErrNotFound) {
		return "", errors.New("tshark is not installed here; make tools installs it")
	}
	if err != nil {
		return "", fmt.Errorf("tshark: %w", err)
	}
	args = append(append([]string{"-r", pcap, "--disable-protocol", "nvme-tcp"}, undisturbed...), args...)
	cmd := exec.CommandContext(ctx, "tshark", args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("tshark: %w: %s", err, errs.String())
	}
	return out.String(), nil
}

func firstLines(s string, n int) string {
	lines := strings.SplitN(s, "\n", n+1)
	return strings.Join(lines[:min(n, len(lines))], "\n")
}
