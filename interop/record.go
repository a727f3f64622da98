package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"softiser/interop/internal/guest"
)

// record is what is known of the cases of a run, kept in the output folder as
// results.json after each case, so that a run can be gone on with: it takes the
// better part of an hour, and one stalled guest need not cost it all.
type record struct {
	Guest string             `json:"guest,omitempty"` // kernel of the guests
	Host  string             `json:"host,omitempty"`  // the kernel under QEMU
	Peers string             `json:"peers,omitempty"` // versions of the guest's packages
	Cases map[string]outcome `json:"cases"`

	commit, day string
}

// outcome is one case of a record.
type outcome struct {
	Seen    string  `json:"seen"`
	Skipped bool    `json:"skipped,omitempty"`
	Error   string  `json:"error,omitempty"`
	Seconds float64 `json:"seconds"`
	Commit  string  `json:"commit"`
	Day     string  `json:"day"`
}

func recordFile(out string) string { return filepath.Join(out, "results.json") }

func loadRecord(path string) (record, error) {
	var rec record
	b, err := os.ReadFile(path)
	if err != nil {
		return rec, err
	}
	if err := json.Unmarshal(b, &rec); err != nil {
		return rec, fmt.Errorf("%s: %w", path, err)
	}
	return rec, nil
}

func (rec *record) save(path string) error {
	b, err := json.MarshalIndent(rec, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(b, '\n'), 0o644)
}

// begin notes what is tested from now on. The image of clusters has all packages; where it
// is not used, what is known of the peers stays.
func (rec *record) begin(images map[guest.Kind]*guest.Image) {
	rec.commit, rec.day = commit(), time.Now().UTC().Format(time.DateOnly)
	rec.Host = hostKernel()
	if im := images[guest.Cluster]; im != nil {
		rec.Guest, rec.Peers = im.Kernel, peerVersions(im.Versions())
	}
	if rec.Cases == nil {
		rec.Cases = map[string]outcome{}
	}
}

func (rec *record) add(r Result) {
	o := outcome{Seen: r.Seen, Skipped: r.Skipped, Seconds: r.Took.Seconds(), Commit: rec.commit, Day: rec.day}
	if r.Err != nil {
		o.Error = r.Err.Error()
	}
	rec.Cases[r.Name] = o
}

// merge takes over what a later run, whole or not, has come to: its failures as well as the
// rest. A case that was skipped there, or was run here on a later day, stays as it was. Cases
// that are not in the matrix any more go.
func (rec *record) merge(later *record, cases []Case) {
	known := map[string]outcome{}
	for _, c := range cases {
		was, here := rec.Cases[c.Name]
		now, there := later.Cases[c.Name]
		switch {
		case there && (!here || !now.Skipped && now.Day >= was.Day):
			known[c.Name] = now
		case here:
			known[c.Name] = was
		}
	}
	rec.Cases = known
	if later.Peers != "" {
		rec.Guest, rec.Host, rec.Peers = later.Guest, later.Host, later.Peers
	}
}

func (rec *record) passed(name string) bool {
	o, ok := rec.Cases[name]
	return ok && o.Error == "" && !o.Skipped
}

// results are the known ones of these cases, in their order.
func (rec *record) results(cases []Case) []Result {
	var list []Result
	for _, c := range cases {
		o, ok := rec.Cases[c.Name]
		if !ok {
			continue
		}
		r := Result{Case: c, Seen: o.Seen, Skipped: o.Skipped, Took: time.Duration(o.Seconds * float64(time.Second)), Commit: o.Commit, Day: o.Day}
		if o.Error != "" {
			r.Err = errors.New(o.Error)
		}
		list = append(list, r)
	}
	return list
}

// commit names the tree that is tested; "-dirty" marks one with changes.
func commit() string {
	out, err := exec.Command("git", "describe", "--always", "--dirty", "--exclude", "*").Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(out))
}
