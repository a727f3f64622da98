package attach

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"softiser/initiator/blockio"
	"softiser/initiator/ublk"
)

// abandonedNBD has a killed process's record in opt.Dir, of /dev/nbd77, whose driver has that mark as long as it is
// connected.
func abandonedNBD(t *testing.T, opt *Options, mark string) (ended *[]string) {
	was := drivers
	t.Cleanup(func() { drivers = was })
	ended = new([]string)
	drivers.nbdMark = func(path string) string {
		if path == "/dev/nbd77" && len(*ended) == 0 {
			return mark
		}
		return ""
	}
	drivers.endNBD = func(path string) error { *ended = append(*ended, path); return nil }
	if err := os.MkdirAll(opt.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	path := recordPath(opt.Dir, opt.URL)
	r := `{"url":"` + opt.URL + `","device":"/dev/nbd77","device_mark":"softiser-1","pid":1,"state":"connected","socket":"` + strings.TrimSuffix(path, ".json") + `.sock"}`
	if err := os.WriteFile(path, []byte(r), 0o600); err != nil {
		t.Fatal(err)
	}
	return ended
}

// The device of a killed process is listed and can be detached; one that is not that process's any more is left alone.
func TestAbandonedNBD(t *testing.T) {
	opt := options(t, &fakeLUN{})
	ended := abandonedNBD(t, &opt, "softiser-1")
	live, err := List(opt.Dir)
	if err != nil || len(live) != 1 || live[0].State != StateAbandoned || live[0].Device != "/dev/nbd77" {
		t.Fatalf("listed %+v, %v", live, err)
	}
	if r, err := Detach(t.Context(), opt.Dir, "/dev/nbd77", false); err != nil || r == nil || len(*ended) != 1 {
		t.Errorf("detached %+v, %v; disconnected %q", r, err, *ended)
	}
	if left, _ := filepath.Glob(filepath.Join(opt.Dir, "*")); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}

	other := options(t, &fakeLUN{})
	ended = abandonedNBD(t, &other, "of somebody else")
	if live, err := List(other.Dir); err != nil || len(live) != 0 {
		t.Errorf("listed %+v, %v", live, err)
	}
	if r, err := Detach(t.Context(), other.Dir, "/dev/nbd77", true); err != nil || r != nil || len(*ended) != 0 {
		t.Errorf("detached %+v, %v; disconnected %q", r, err, *ended)
	}
}

// The I/O of an ublk device whose process was killed fails when it is detached: it is refused where somebody has the
// device open, and told.
func TestDetachKilledUblk(t *testing.T) {
	was := drivers
	t.Cleanup(func() { drivers = was })
	dir, url := t.TempDir(), "iser://h/x/0"
	drivers.findUblk = func(mark uint64) (string, ublk.State, error) {
		if mark != markOf(dir, url) {
			return "", ublk.Ended, nil
		}
		return "/dev/ublkb77", ublk.Waiting, nil
	}
	ended := 0
	drivers.endUblk = func(string, time.Duration) error { ended++; return nil }
	drivers.openedBy = func(string) string { return "process 7 (dd)" }
	for _, force := range []bool{false, true} {
		if err := os.WriteFile(recordPath(dir, url), []byte(`{"url":"`+url+`","device":"/dev/ublkb77","pid":1}`), 0o600); err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		c := &command{force: force, timeout: time.Second, opt: Options{Dir: dir}}
		err := c.runDetach(t.Context(), &out, "/dev/ublkb77")
		if force {
			if err != nil || ended != 1 || !strings.Contains(out.String(), "may be lost") {
				t.Errorf("forced: %v, ended %d times, told %q", err, ended, out.String())
			}
		} else if err == nil || !strings.Contains(err.Error(), "dd") || !strings.Contains(err.Error(), "--force") || ended != 0 {
			t.Errorf("open: %v, ended %d times", err, ended)
		}
	}
}

// An attach that is interrupted while it takes over an ublk device ends, and leaves the device to the next one.
func TestRecoveryInterrupted(t *testing.T) {
	was := drivers
	t.Cleanup(func() { drivers = was })
	l := &fakeLUN{data: make([]byte, 1<<20)}
	opt := options(t, l)
	opt.Device = "ublk"
	drivers.findUblk = func(uint64) (string, ublk.State, error) { return "/dev/ublkb77", ublk.Waiting, nil }
	drivers.endUblk = func(string, time.Duration) error { t.Error("the device was ended"); return nil }
	ctx, cancel := context.WithCancel(t.Context())
	drivers.recovery = func(ctx context.Context, _ string, _ ublk.LUN, _ *blockio.Flusher, _ bool) (*ublk.Device, error) {
		cancel()
		return nil, ctx.Err()
	}
	if err := os.MkdirAll(opt.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(recordPath(opt.Dir, opt.URL), []byte(`{"url":"`+opt.URL+`","device":"/dev/ublkb77","pid":1}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Attach(ctx, opt); !errors.Is(err, context.Canceled) {
		t.Errorf("attach: %v", err)
	}
	if _, closed := l.counts(); closed != 1 {
		t.Errorf("the volume was closed %d times", closed)
	}
	if live, err := List(opt.Dir); err != nil || len(live) != 1 || live[0].State != StateKilled {
		t.Errorf("listed %+v, %v", live, err)
	}
}

// Whoever attaches the volume again gets it, and what was left is disconnected, or listed beside it.
func TestAttachedAfterAbandonedNBD(t *testing.T) {
	opt := options(t, &fakeLUN{data: make([]byte, 1<<20)})
	var notices []string
	opt.OnNotice = func(text string) { notices = append(notices, text) }
	ended := abandonedNBD(t, &opt, "softiser-1")
	a, _, err := Attach(t.Context(), opt)
	if err != nil {
		t.Fatal(err)
	}
	if len(*ended) != 1 || len(notices) != 1 || !strings.Contains(notices[0], "/dev/nbd77") {
		t.Errorf("disconnected %q, told %q", *ended, notices)
	}
	if err := a.undo(); err != nil {
		t.Fatal(err)
	}

	ended = abandonedNBD(t, &opt, "softiser-1")
	end := drivers.endNBD
	drivers.endNBD = func(string) error { return errors.New("no") }
	if a, _, err = Attach(t.Context(), opt); err != nil {
		t.Fatal(err)
	}
	drivers.endNBD = end
	live, err := List(opt.Dir)
	if err != nil || len(live) != 2 {
		t.Fatalf("listed %+v, %v", live, err)
	}
	if r, err := Find(opt.Dir, opt.URL); err != nil || r == nil || r.dead() {
		t.Errorf("the URL names %+v, %v", r, err)
	}
	if r, err := Detach(t.Context(), opt.Dir, "/dev/nbd77", false); err != nil || r == nil || len(*ended) != 1 {
		t.Errorf("detached %+v, %v; disconnected %q", r, err, *ended)
	}
	if live, err := List(opt.Dir); err != nil || len(live) != 1 || live[0].dead() {
		t.Errorf("listed %+v, %v", live, err)
	}
	if _, err := os.Stat(a.Record.Socket); err != nil {
		t.Error(err)
	}
	if err := a.undo(); err != nil {
		t.Error(err)
	}
}
