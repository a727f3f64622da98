package main

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"softiser/interop/internal/poll"
)

// resources are what a target holds.
type resources struct{ goroutines, descriptors, memory int }

// Room for what comes and goes by itself: a keeper, a scrape, a pool that has grown.
const (
	roomGoroutines  = 16
	roomDescriptors = 8
	roomMemory      = 128 << 20
)

func (a resources) within(b resources) bool {
	return a.goroutines <= b.goroutines+roomGoroutines && a.descriptors <= b.descriptors+roomDescriptors && a.memory <= b.memory+roomMemory
}

// settled waits until the sessions of the peers that have gone are gone as well, and what
// the target holds fits into what it held before.
func (t *targetProcess) settled(ctx context.Context, before *resources) (now resources, err error) {
	var sessions int
	err = poll.Until(ctx, patience, "it holds no more than before", func() (bool, error) {
		m, err := t.scrape(ctx)
		if err != nil {
			return false, err
		}
		now = resources{int(m["go_goroutines"]), int(m["process_open_fds"]), int(m["process_resident_memory_bytes"])}
		sessions = int(m["iser_target_sessions"])
		return sessions == 0 && (before == nil || now.within(*before)), nil
	})
	if err != nil {
		err = fmt.Errorf("after the attackers: %w: %d sessions; goroutines, descriptors and bytes %v, before %v", err, sessions, now, before)
	}
	return now, err
}

// scrape reads the target's metrics that have no labels, and sums up those that have.
func (t *targetProcess) scrape(ctx context.Context) (map[string]float64, error) {
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, t.metrics, nil)
	if err != nil {
		return nil, err
	}
	q.Close = true // a connection that stays would be counted
	res, err := http.DefaultClient.Do(q)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	m := map[string]float64{}
	for sc := bufio.NewScanner(res.Body); sc.Scan(); {
		name, value, ok := strings.Cut(sc.Text(), " ")
		if !ok || strings.HasPrefix(name, "#") {
			continue
		}
		name, _, _ = strings.Cut(name, "{")
		if v, err := strconv.ParseFloat(value, 64); err == nil {
			m[name] += v
		}
	}
	return m, nil
}
