package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"text/tabwriter"
	"time"
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
func writeReport(path, kernel string, when time.Time, results []Result) error {
	var b strings.Builder
	fmt.Fprintf(&b, "# Interoperability\n\nWritten by `make interop` on %s. Guest: Debian's kernel %s with siw built from its source; host: %s.\n",
		when.UTC().Format("2006-01-02"), kernel, hostKernel())
	b.WriteString("Versions in the guest are Debian's: open-iscsi, rdma-core, libiscsi, qemu, tgt, sg3-utils, lvm2, fio.\n\n")
	b.WriteString("| case | expected | seen | seconds |\n| --- | --- | --- | --- |\n")
	for _, r := range results {
		fmt.Fprintf(&b, "| %s | %s | %s | %.1f |\n", r.Name, r.Expect, r.Seen, r.Took.Seconds())
	}
	return os.WriteFile(path, []byte(b.String()), 0o644)
}

func hostKernel() string {
	out, err := exec.Command("uname", "-sr").Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(out))
}
