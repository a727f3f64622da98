package main

import (
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"text/tabwriter"
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

// peerNotes is what the cases have shown about the peers, kept by hand.
//
//go:embed peers.md
var peerNotes string

// docRecord is what docs/INTEROP.md is written from: the last outcome of each case, with the
// commit that was tested and the day.
const docRecord = "docs/INTEROP.json"

// writeReport merges a run into docRecord and writes docs/INTEROP.md anew.
func writeReport(run *record) error {
	rec, err := loadRecord(docRecord)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	rec.merge(run, matrix)
	if err := rec.save(docRecord); err != nil {
		return err
	}
	return os.WriteFile("docs/INTEROP.md", []byte(document(&rec, matrix)), 0o644)
}

// document is docs/INTEROP.md. Nothing in it is left out or made better: a case that failed
// says so, and what it said is below the table; a case that nobody has run is named.
func document(rec *record, cases []Case) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# Interoperability\n\nWritten by `make interop`, or by a part of it, from INTEROP.json. Guest: Debian's kernel %s, with siw built from its source and its own rdma_rxe, under QEMU's emulation; host: %s.\n\n", rec.Guest, rec.Host)
	if rec.Peers != "" {
		fmt.Fprintf(&b, "Peers: %s.\n\n", rec.Peers)
	}
	report(&b, rec.results(cases), cases)
	b.WriteString(peerNotes)
	return b.String()
}

// report is the part that depends on the results only.
func report(b *strings.Builder, results []Result, cases []Case) {
	failed := slices.DeleteFunc(slices.Clone(results), func(r Result) bool { return r.Err == nil })
	skips := skips(results)
	fmt.Fprintf(b, "%d of %d cases ended as expected, %s. Seconds are those of an emulated guest on a shared machine.\n\n", len(results)-len(failed)-skips, len(cases), runs(results))
	if skips > 0 {
		fmt.Fprintf(b, "%d cases were skipped, with the reason in their line.\n\n", skips)
	}
	if missing := missing(results, cases); len(missing) > 0 {
		fmt.Fprintf(b, "%d cases have no line, because no run of them has come to an end: %s.\n\n", len(missing), strings.Join(missing, ", "))
	}
	b.WriteString("| case | expected | seen | seconds | tested |\n| --- | --- | --- | --- | --- |\n")
	for _, r := range results {
		seen := r.Seen
		if r.Err != nil {
			seen = "**failed**"
		}
		fmt.Fprintf(b, "| %s | %s | %s | %.1f | %s, %s |\n", r.Name, cell(r.Expect), cell(seen), r.Took.Seconds(), r.Commit, r.Day)
	}
	if len(failed) > 0 {
		b.WriteString("\n## What failed\n")
	}
	for _, r := range failed {
		fmt.Fprintf(b, "\n%s:\n\n    %s\n", r.Name, strings.ReplaceAll(strings.TrimSpace(r.Err.Error()), "\n", "\n    "))
	}
}

// missing are the names of the cases without a result.
func missing(results []Result, cases []Case) []string {
	var names []string
	for _, c := range cases {
		if !slices.ContainsFunc(results, func(r Result) bool { return r.Name == c.Name }) {
			names = append(names, c.Name)
		}
	}
	return names
}

// skips counts the cases that this host could not run.
func skips(results []Result) int {
	n := 0
	for _, r := range results {
		if r.Skipped {
			n++
		}
	}
	return n
}

// runs names the days and commits of the results: one, unless a run was continued.
func runs(results []Result) string {
	var order []string
	n := map[string]int{}
	for _, r := range results {
		k := fmt.Sprintf("on %s at commit %s", r.Day, r.Commit)
		if n[k]++; n[k] == 1 {
			order = append(order, k)
		}
	}
	if len(order) == 1 {
		return order[0]
	}
	for i, k := range order {
		order[i] = fmt.Sprintf("%d %s", n[k], k)
	}
	return strings.Join(order, ", ")
}

// cell keeps a text within its cell.
func cell(s string) string {
	return strings.NewReplacer("|", "\\|", "\n", " ").Replace(s)
}

// peers are the packages that a reader wants to know the versions of.
var peers = []string{"rdma-core", "rdmacm-utils", "perftest", "open-iscsi", "libiscsi-bin", "qemu-utils", "tgt", "sg3-utils", "multipath-tools", "nvme-cli", "drbd-utils", "corosync", "pacemaker", "ocfs2-tools", "gfs2-utils", "dlm-controld", "fence-agents", "fio", "e2fsprogs", "xfsprogs"}

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
