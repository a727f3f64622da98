package snapshots

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// store is one in memory.
type store struct {
	mu    sync.Mutex
	have  []Snapshot
	takes []time.Time
	err   map[string]error // of list, take, remove and change
	gate  chan struct{}    // Take waits for it, if it is not nil
}

func (s *store) List(p Plan) ([]Snapshot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ours := slices.DeleteFunc(slices.Clone(s.have), func(x Snapshot) bool { _, ok := p.Taken(x.Name); return !ok })
	return ours, s.err["list"]
}

func (s *store) Take(ctx context.Context, p Plan, name string) error {
	if s.gate != nil && p.Volume == "slow" {
		<-s.gate
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.takes = append(s.takes, time.Now())
	if err := s.err["take"]; err != nil {
		return err
	}
	t, ok := p.Taken(name)
	if !ok {
		return fmt.Errorf("%s is no name of the plan", name)
	}
	s.have = append(s.have, Snapshot{Name: name, Taken: t})
	return nil
}

func (s *store) Remove(ctx context.Context, p Plan, name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.err["remove"]; err != nil {
		return err
	}
	s.have = slices.DeleteFunc(s.have, func(x Snapshot) bool { return x.Name == name })
	return nil
}

// change is what a scheduler asks before it changes anything.
func (s *store) change(string) (func(), error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return func() {}, s.err["change"]
}

func (s *store) fail(what string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err[what] = err
}

func (s *store) put(all ...Snapshot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.have = append(s.have, all...)
}

// times are those of the snapshots that there are, as hours and minutes.
func (s *store) times() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []string
	for _, x := range s.have {
		all = append(all, x.Taken.Format("15:04"))
	}
	return strings.Join(all, " ")
}

// bed is a scheduler that runs in a bubble, whose clock begins at midnight.
type bed struct {
	*Scheduler
	t     *testing.T
	store *store
	log   *observer.ObservedLogs
	stop  func()
}

func newBed(t *testing.T, plans ...Plan) *bed {
	core, log := observer.New(zap.InfoLevel)
	b := &bed{t: t, store: &store{err: map[string]error{}}, log: log}
	b.start(zap.New(core), plans...)
	return b
}

func (b *bed) start(log *zap.Logger, plans ...Plan) {
	b.Scheduler = New(b.store, log)
	b.Set(plans)
	ctx, cancel := context.WithCancel(context.Background())
	over := make(chan struct{})
	go func() {
		defer close(over)
		b.Run(ctx, b.store.change)
	}()
	b.stop = func() { cancel(); <-over }
}

// want compares the snapshots that there are, when d has passed.
func (b *bed) want(d time.Duration, times string) {
	b.t.Helper()
	time.Sleep(d) // virtual
	synctest.Wait()
	if got := b.store.times(); got != times {
		b.t.Errorf("at %s: %q, want %q", time.Now().UTC().Format("15:04:05"), got, times)
	}
}

func (b *bed) lines(message string) int { return b.log.FilterMessage(message).Len() }

const (
	failing = "scheduled snapshot failed; the next time is tried again"
	staying = "an old snapshot stays beyond those that are kept"
)

func hourly(keep int) Plan {
	return Plan{Volume: "v", Group: "vg", LV: "lv", Every: time.Hour, Keep: keep, Prefix: "lv"}
}

func TestTimesAndRetention(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, hourly(3))
		b.want(0, "00:00") // none has ever been taken
		b.want(59*time.Minute, "00:00")
		b.want(time.Minute, "00:00 01:00")
		b.want(time.Hour, "00:00 01:00 02:00")
		b.want(3*time.Hour, "03:00 04:00 05:00")
		st := b.Status("v")
		if st.Taken != 6 || st.Failed != 0 || st.Kept != 3 || st.Last != "lv-20000101T050000Z" || !st.Next.Equal(time.Now().Add(time.Hour)) {
			t.Errorf("%+v", st)
		}
		if b.Status("other") != nil {
			t.Error("there is a plan for a volume that has none")
		}
		b.stop()
		if n := b.lines("snapshot taken"); n != 6 {
			t.Errorf("%d lines", n)
		}
	})
}

// A process that comes back takes one snapshot if it has missed any time, and none otherwise.
func TestRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, hourly(10))
		b.want(time.Hour+10*time.Minute, "00:00 01:00")
		b.stop()
		b.start(zap.NewNop(), hourly(10))
		b.want(time.Minute, "00:00 01:00")
		if st := b.Status("v"); st.Last != "lv-20000101T010000Z" || st.Kept != 2 {
			t.Errorf("%+v", st)
		}
		b.stop()
		time.Sleep(5 * time.Hour) // virtual
		b.start(zap.NewNop(), hourly(10))
		b.want(0, "00:00 01:00 06:11")
		b.want(49*time.Minute, "00:00 01:00 06:11 07:00")
		b.stop()
	})
}

func TestFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, hourly(2))
		b.want(time.Hour, "00:00 01:00")
		b.store.fail("take", errors.New("the pool is full"))
		b.want(2*time.Hour, "00:00 01:00")
		if st := b.Status("v"); st.Failed != 2 || !strings.Contains(st.Error, "the pool is full") || b.lines(failing) != 2 {
			t.Errorf("%+v, %d lines", st, b.lines(failing))
		}
		b.store.fail("take", nil)
		b.store.fail("remove", errors.New("the disk is away"))
		b.want(time.Hour, "00:00 01:00 04:00")
		if st := b.Status("v"); st.Failed != 3 || !strings.Contains(st.Error, "removing snapshot lv-20000101T000000Z: the disk is away") || st.Kept != 3 {
			t.Errorf("%+v", st)
		}
		b.store.fail("remove", nil)
		b.want(time.Hour, "04:00 05:00")
		b.store.fail("list", errors.New("damaged"))
		b.want(time.Hour, "04:00 05:00")
		if st := b.Status("v"); st.Failed != 4 || !strings.Contains(st.Error, "damaged") {
			t.Errorf("%+v", st)
		}
		b.store.fail("list", nil)
		b.want(time.Hour, "05:00 07:00")
		if st := b.Status("v"); st.Failed != 4 || st.Error != "" {
			t.Errorf("%+v", st)
		}
		b.stop()
	})
}

// What is in use stays, and the log says so once.
func TestHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, hourly(1))
		b.store.put(Snapshot{Name: "lv-19991231T220000Z", Taken: time.Now().Add(-2 * time.Hour), Held: "it is open"})
		b.store.put(Snapshot{Name: "lv-19991231T230000Z", Taken: time.Now().Add(-1 * time.Hour)})
		b.want(3*time.Hour, "22:00 03:00")
		if st := b.Status("v"); b.lines(staying) != 1 || st.Failed != 0 {
			t.Errorf("%d lines, %+v", b.lines(staying), st)
		}
		b.store.fail("remove", fmt.Errorf("opened just now: %w", ErrHeld))
		b.want(2*time.Hour, "22:00 03:00 04:00 05:00")
		if st := b.Status("v"); b.lines(staying) != 3 || st.Failed != 0 {
			t.Errorf("%d lines, %+v", b.lines(staying), st)
		}
		b.stop()
	})
}

// A volume that is not here, and changes that are not welcome, put off what is due; one
// snapshot is taken when that is over.
func TestPutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, hourly(5))
		b.want(0, "00:00")
		b.store.fail("list", fmt.Errorf("vg/lv: %w", ErrAway))
		b.want(3*time.Hour, "00:00")
		if st := b.Status("v"); st.Failed != 0 || !strings.Contains(st.Waiting, "vg/lv") {
			t.Errorf("%+v", st)
		}
		b.store.fail("list", nil)
		b.want(time.Minute, "00:00 03:01")
		b.store.fail("change", errors.New("handed over"))
		b.want(59*time.Minute+10*time.Second, "00:00 03:01")
		if st := b.Status("v"); st.Waiting != "handed over" {
			t.Errorf("%+v", st)
		}
		b.store.fail("change", nil)
		b.want(again, "00:00 03:01 04:00")
		if st := b.Status("v"); st.Waiting != "" || st.Failed != 0 {
			t.Errorf("%+v", st)
		}
		b.stop()
	})
}

func TestReload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := hourly(4)
		p.Every, p.At = 24*time.Hour, 2*time.Hour+30*time.Minute
		b := newBed(t, p)
		b.want(2*time.Hour, "00:00")
		b.want(30*time.Minute, "00:00 02:30")
		b.Set([]Plan{p}) // the same
		b.want(time.Hour, "00:00 02:30")
		b.Set([]Plan{hourly(2)}) // 03:00 has passed
		b.want(0, "02:30 03:30")
		b.want(30*time.Minute, "03:30 04:00")
		b.Set(nil)
		b.want(5*time.Hour, "03:30 04:00")
		b.Set([]Plan{hourly(2)})
		b.want(0, "04:00 09:00")
		b.stop()
	})
}

// Snapshots of a clock that was ahead do not stand for those to come, and go first.
func TestClockWasAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, hourly(2))
		b.store.put(Snapshot{Name: "lv-20300101T000000Z", Taken: time.Now().AddDate(30, 0, 0).Add(7 * time.Hour)}, Snapshot{Name: "lv-19991231T230000Z", Taken: time.Now().Add(-time.Hour)})
		b.want(0, "23:00 00:00")
		b.want(time.Hour, "00:00 01:00")
		b.stop()
	})
}

// Storage that does not answer for one volume does not hold up another's snapshots.
func TestSlowStorage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := hourly(9)
		slow.Volume, slow.Prefix = "slow", "slow"
		b := newBed(t)
		b.store.gate = make(chan struct{})
		b.Set([]Plan{slow, hourly(9)})
		b.want(2*time.Hour+time.Minute, "00:00 01:00 02:00")
		close(b.store.gate)
		b.want(0, "00:00 01:00 02:00 00:00 02:01") // the one that was due, and one for those missed meanwhile
		b.stop()
	})
}

func TestDue(t *testing.T) {
	at := func(s string) time.Time {
		x, err := time.Parse("Mon 2006-01-02 15:04:05", s)
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
	for _, c := range []struct {
		every, at time.Duration
		now, want string
	}{
		{time.Minute, 0, "Thu 2026-11-26 05:45:46", "Thu 2026-11-26 05:45:00"},
		{time.Hour, 15 * time.Minute, "Thu 2026-11-26 05:14:59", "Thu 2026-11-26 04:15:00"},
		{time.Hour, 23*time.Hour + 15*time.Minute, "Thu 2026-11-26 05:15:00", "Thu 2026-11-26 05:15:00"},
		{24 * time.Hour, 0, "Thu 2026-11-26 23:59:59", "Thu 2026-11-26 00:00:00"},
		{7 * 24 * time.Hour, 3 * time.Hour, "Mon 2026-11-23 02:59:59", "Mon 2026-11-16 03:00:00"},
		{7 * 24 * time.Hour, 3 * time.Hour, "Thu 2026-11-26 05:00:00", "Mon 2026-11-23 03:00:00"},
		{24 * time.Hour, time.Hour, "Wed 1969-12-31 00:30:00", "Tue 1969-12-30 01:00:00"},
	} {
		p := Plan{Every: c.every, At: c.at}
		if got := p.due(at(c.now)); !got.Equal(at(c.want)) {
			t.Errorf("every %s at %s, %s: %s, want %s", c.every, c.at, c.now, got, c.want)
		}
	}
}

func TestNames(t *testing.T) {
	p := Plan{Prefix: "lv"}
	now := time.Date(2026, 11, 26, 5, 45, 46, 0, time.FixedZone("east", 3600))
	if n := p.Name(now); n != "lv-20261126T044546Z" {
		t.Error(n)
	}
	if x, ok := p.Taken("lv-20261126T044546Z"); !ok || !x.Equal(now) {
		t.Error(x, ok)
	}
	for _, n := range []string{"lv", "lv-", "lv-mine", "lv2-20261126T044546Z", "lv-20261126T044546Z-mine", "lv-20261326T044546Z", "x-lv-20261126T044546Z"} {
		if _, ok := p.Taken(n); ok {
			t.Errorf("%s is taken for a scheduled one", n)
		}
	}
}
