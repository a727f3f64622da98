package main

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// runAll makes the clusters in turn and has events happen to them.
func runAll(ctx context.Context, dir string, o options) (seen []*outcome, err error) {
	if err := prepare(dir); err != nil {
		return nil, fmt.Errorf("%w: %w", errUnmade, err)
	}
	began := time.Now()
	rnd := rand.New(rand.NewPCG(o.seed, 0))
	for turn := 0; ; turn++ {
		for i, conf := range configurations {
			var due []event
			for _, e := range events {
				if o.only.MatchString(conf.name+"/"+e.name) && e.suits(conf) && (!o.short || conf.name == "process" && (e.name == "kill" || e.name == "power")) {
					due = append(due, e)
				}
			}
			if len(due) == 0 {
				continue
			}
			if o.length > 0 { // as many at random
				drawn := make([]event, 2*len(due))
				for k := range drawn {
					drawn[k] = due[rnd.IntN(len(due))]
				}
				due = drawn
			}
			here := filepath.Join(dir, fmt.Sprintf("%s.%d", conf.name, turn))
			more, err := runOne(ctx, here, o, conf, due, turn*len(configurations)+i)
			seen = append(seen, more...)
			if err != nil {
				return seen, err
			}
			os.RemoveAll(here)
			if o.length > 0 && time.Since(began) > o.length {
				break
			}
		}
		if time.Since(began) >= o.length {
			break
		}
	}
	met := 0
	for _, s := range seen {
		if s.longest() <= s.budget {
			met++
		}
	}
	fmt.Printf("ha: %d events in %.0fs; no acknowledged write was lost, flushed writes are in order, reservations hold; %d of %d pauses within their budgets\n", len(seen), time.Since(began).Seconds(), met, len(seen))
	return seen, nil
}

// runOne has events happen to one cluster.
func runOne(ctx context.Context, dir string, o options, conf configuration, due []event, round int) (seen []*outcome, err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	at := time.Now()
	conf.neverRefuse = o.open
	c, err := start(ctx, dir, o.bin, conf)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", conf.name, err)
	}
	defer c.stop()
	if err := (fencedHost{}).fence(ctx); err != nil {
		return nil, err
	}
	fmt.Printf("ha: %s: %d nodes serve after %.1f s\n", conf.name, len(c.nodes), time.Since(at).Seconds())
	j := &journal{at: journalAt, slots: 512}
	for i, e := range due {
		s, err := c.try(ctx, e, j, round+i)
		if o.logs && s != nil {
			fmt.Println(strings.Join(c.log.since(s.at, steps), "\n"))
		}
		if err != nil {
			return seen, fmt.Errorf("%s/%s: %w", conf.name, e.name, err)
		}
		seen = append(seen, s)
		fmt.Println(s)
		if i < len(due)-1 {
			if err := c.whole(ctx); err != nil {
				return seen, fmt.Errorf("%s, after %s: %w", conf.name, e.name, err)
			}
		}
	}
	return seen, nil
}

// table is the report of a run.
func table(seen []*outcome) []byte {
	var b bytes.Buffer
	commit, _ := exec.Command("git", "describe", "--always", "--dirty").Output()
	fmt.Fprintf(&b, `# What happens when a node is lost

Written by `+"`make ha`"+` on %s at commit %s: corosync %s, pacemaker %s, on %d processors, with nodes in namespaces of one machine. Load average %s.
Seconds; the cluster's time is from the event to the start of the address, in its log. Pauses are the longest writes of 4 KiB loads at depth 4 over each wire, all at once.

| configuration | event | who decides | cluster | iSER | iSCSI | NVMe/TCP | NVMe/RDMA | budget | lost | |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |
`, time.Now().UTC().Format(time.DateOnly), bytes.TrimSpace(commit), version("corosync"), version("pacemaker"), runtime.NumCPU(), loadAverage())
	for _, s := range seen {
		met := "met"
		if s.longest() > s.budget {
			met = "missed"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %.2f |", s.configuration, s.event, s.who, s.cluster.Seconds())
		for _, w := range wires {
			fmt.Fprintf(&b, " %.2f |", s.pauses[w].Seconds())
		}
		fmt.Fprintf(&b, " %.2f, %s | 0 | %s |\n", s.budget.Seconds(), met, s.note)
	}
	return b.Bytes()
}

// version is that of a package.
func version(name string) string {
	out, _ := exec.Command("dpkg-query", "-W", "-f", "${Version}", name).Output()
	return string(out)
}

func loadAverage() string {
	b, _ := os.ReadFile("/proc/loadavg")
	return strings.Join(strings.Fields(string(b))[:3], ", ")
}
