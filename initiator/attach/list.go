package attach

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"

	"softiser/initiator/ublk"
)

// States of an attachment whose process was killed.
const (
	StateKilled    = "killed"    // the device waits for the next process
	StateAbandoned = "abandoned" // the device is there, and no process will serve it again
)

// List returns the live attachments, and those whose process was killed and whose device is
// there (StateKilled, StateAbandoned); records of other dead processes are removed.
func List(dir string) ([]*Record, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("run directory: %w", err)
	}
	var live []*Record
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), "attach-") || !strings.HasSuffix(e.Name(), ".json") {
			continue
		}
		r, err := readRecord(filepath.Join(dir, e.Name()))
		if errors.Is(err, fs.ErrPermission) {
			return nil, fmt.Errorf("run directory: %w", err) // what it tells may be what was asked for
		}
		if err != nil {
			continue // being written
		}
		if !r.alive() {
			if r.waits() || r.abandoned() {
				live = append(live, r)
				continue
			}
			r.clean()
			continue
		}
		if r.PID != 0 {
			live = append(live, r)
		}
	}
	sort.Slice(live, func(i, k int) bool { return live[i].Started.Before(live[k].Started) })
	return live, nil
}

// Find returns the attachment of List that key names: URL, socket, device, URI or
// process id; nil when there is none. Of several those come last whose process was killed.
func Find(dir, key string) (*Record, error) {
	live, err := List(dir)
	if err != nil || key == "" { // which is the device of whoever has none
		return nil, err
	}
	order := func(r *Record) int {
		if r.dead() {
			return 1
		}
		return 0
	}
	slices.SortStableFunc(live, func(a, b *Record) int { return order(a) - order(b) })
	for _, r := range live {
		if key == r.URL || absolute(key) == r.Socket || key == r.Device || key == r.URI || key == r.TCP || key == strconv.Itoa(r.PID) {
			return r, nil
		}
	}
	return nil, nil
}

// waits reports whether the record's device waits for another process, the record's being
// gone, and says so in the record.
func (r *Record) waits() bool {
	if !strings.HasPrefix(r.Device, string(deviceUblk)) {
		return false
	}
	left, state, err := drivers.findUblk(markOf(filepath.Dir(r.path), r.URL))
	if err != nil || left != r.Device || state == ublk.Ended {
		return false
	}
	r.State, r.Reason = StateKilled, "its process was killed; the same attach takes the device again, --detach ends it"
	return true
}

// dropRecord removes a record, unless it is of a killed process whose device still waits: who
// has failed to attach the volume leaves it to the next one.
func dropRecord(path string) error {
	if r, err := readRecord(path); err == nil && r.waits() {
		return nil
	}
	return os.Remove(path)
}
