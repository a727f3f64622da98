package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"softiser/interop/internal/guest"
)

// printTable prints the matrix and returns how many cases failed.
func printTable(w io.Writer, results []Result) int {
	failed := 0
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "case\texpected\tseen\tseconds")
	for _, r := range results {
		if r.Err != nil {
			failed++
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%.1f\n", r.Name, r.Expect, r.Seen, r.Took.Seconds())
	}
	t.Flush()
	return failed
}

// writeReport writes docs/INTEROP.md.
func writeReport(path string, image *guest.Image, when time.Time, results []Result) error {
	var b strings.Builder
	fmt.Fprintf(&b, "# Interoperability\n\nWritten by `make interop` on %s. Guest: Debian's kernel %s, with siw built from its source, under QEMU's emulation; host: %s.\n\n",
		when.UTC().Format("2006-01-02"), image.Kernel, hostKernel())
	if peers := peerVersions(image.Versions()); peers != "" {
		fmt.Fprintf(&b, "Peers: %s.\n\n", peers)
	}
	failed := 0
	for _, r := range results {
		if r.Err != nil {
			failed++
		}
	}
	fmt.Fprintf(&b, "%d of %d cases ended as expected. Seconds are those of an emulated guest on a shared machine.\n\n", len(results)-failed, len(results))
	b.WriteString("| case | expected | seen | seconds |\n| --- | --- | --- | --- |\n")
	for _, r := range results {
		fmt.Fprintf(&b, "| %s | %s | %s | %.1f |\n", r.Name, r.Expect, r.Seen, r.Took.Seconds())
	}
	return os.WriteFile(path, []byte(b.String()), 0o644)
}

// peers are the packages that a reader wants to know the versions of.
var peers = []string{"rdma-core", "rdmacm-utils", "open-iscsi", "libiscsi-bin", "qemu-utils", "tgt", "sg3-utils", "fio", "e2fsprogs", "xfsprogs"}

func peerVersions(all []string) string {
	var list []string
	for _, v := range all {
		name, _, _ := strings.Cut(v, " ")
		if slices.Contains(peers, name) {
			list = append(list, v)
		}
	}
	return strings.Join(list, ", ")
}

func hostKernel() string {
	out, err := exec.Command("uname", "-sr").Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(out))
}
