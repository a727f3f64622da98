package initiator_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"softiser/initiator"
	"softiser/internal/await"
)

// toRest brings a LUN to rest.
func toRest(t *testing.T, l *initiator.LUN) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := l.Rest(ctx); err != nil {
		t.Fatal(err)
	}
}

// A session goes from one user to the next ten times, as from process to process: the target
// sees one session, and what was written is there. Its pings are answered by whoever has it.
func TestSessionCarried(t *testing.T) {
	for name, change := range map[string]func(*initiator.Config){
		"TCP": func(c *initiator.Config) { c.Transport = initiator.TransportTCP }, "iSER": func(*initiator.Config) {},
		"digests":      func(c *initiator.Config) { c.Transport, c.HeaderDigest = initiator.TransportTCP, []string{"CRC32C"} },
		"stream login": func(c *initiator.Config) { c.StreamLogin = true },
		"no CRC":       func(c *initiator.Config) { c.CRC = initiator.CRCOff },
		"two sessions": func(c *initiator.Config) { c.Sessions = 2 },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			carriesSession(t, change)
		})
	}
}

// carriesSession is TestSessionCarried over one wire.
func carriesSession(t *testing.T, change func(*initiator.Config)) {
	s := serve(t, 1<<20, nil)
	cfg := s.config(initiator.TransportISER)
	change(&cfg)
	cfg.ISID, cfg.FailNow, cfg.NopInterval = [6]byte{0x80, 1, 2, 3}, true, 50*time.Millisecond
	var events []string
	var mu sync.Mutex
	cfg.OnEvent = func(e initiator.Event) {
		mu.Lock()
		defer mu.Unlock()
		if e.Kind == initiator.EventUnitAttention || e.Kind.Trouble() {
			events = append(events, e.String())
		}
	}
	l := openLUN(t, cfg)
	first := l.Sessions()[0].Info()
	mu.Lock()
	events = nil
	mu.Unlock()
	var before []*initiator.LUN
	for i := range 10 {
		p := bytes.Repeat([]byte{byte(i + 1)}, 64<<10)
		if _, err := l.WriteAt(p, int64(i)<<16); err != nil {
			t.Fatal(err)
		}
		toRest(t, l)
		all, err := l.Carry()
		if err != nil {
			t.Fatal(err)
		}
		next := cfg
		for _, k := range all {
			text, err := json.Marshal(k)
			if err != nil {
				t.Fatal(err)
			}
			got := &initiator.CarriedSession{FD: k.FD}
			if err := errors.Join(json.Unmarshal(text, got), got.Check(1)); err != nil {
				t.Fatal(err)
			}
			next.Carried = append(next.Carried, got)
		}
		before = append(before, l)
		if l, err = initiator.Open(t.Context(), next); err != nil {
			t.Fatal(err)
		}
		for _, got := range next.Carried {
			if got.FD >= 0 {
				t.Errorf("nobody has taken descriptor %d", got.FD)
			}
		}
		for k := range i + 1 {
			b := make([]byte, 64<<10)
			if _, err := l.ReadAt(b, int64(k)<<16); err != nil || !bytes.Equal(b, bytes.Repeat([]byte{byte(k + 1)}, 64<<10)) {
				t.Fatalf("session %d reads what session %d wrote: %v", i+1, k, err)
			}
		}
	}
	if i := l.Sessions()[0].Info(); i.TSIH != first.TSIH || i.ISID != first.ISID || i.Portal != first.Portal {
		t.Errorf("%+v, it was %+v", i, first)
	}
	pings := l.Stats().Pings
	await.True(t, "the target is pinged", func() bool { return l.Stats().Pings > pings })
	mu.Lock()
	if len(events) > 0 {
		t.Errorf("what happened to the session:\n%s", strings.Join(events, "\n"))
	}
	mu.Unlock()
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	// Those before would have ended with their processes; here they find the session gone.
	for _, l := range before {
		l.Resume()
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A session that is at rest sends nothing, whatever it is given, until it goes on.
func TestSessionRests(t *testing.T) {
	for _, tr := range []initiator.Transport{initiator.TransportTCP, initiator.TransportISER} {
		t.Run(tr.String(), func(t *testing.T) { sessionRests(t, tr) })
	}
}

func sessionRests(t *testing.T, tr initiator.Transport) {
	s := serve(t, 1<<20, nil)
	cfg := s.config(tr)
	cfg.NopInterval = 20 * time.Millisecond
	l := openLUN(t, cfg)
	for range 20 {
		toRest(t, l)
		if err := l.Rest(t.Context()); err == nil {
			t.Fatal("it rests twice")
		}
		var ended atomic.Bool
		q := &initiator.Request{Op: initiator.OpRead, Buf: make([]byte, 512), Done: func(*initiator.Request) { ended.Store(true) }}
		out := l.Stats().PDUsOut
		l.Submit(q)
		if l.Stats().PDUsOut != out || ended.Load() {
			t.Fatal("a session at rest sends")
		}
		l.Resume()
		await.True(t, "the request ends", ended.Load)
		if q.Err != nil {
			t.Fatal(q.Err)
		}
	}
	if st := l.Stats(); st.Losses != 0 {
		t.Errorf("%+v", st)
	}
}

// What cannot be carried says so and goes on.
func TestSessionsThatDoNotRest(t *testing.T) {
	s := serve(t, 1<<20, nil)
	roce := serveOver(t, initiator.TransportRoCE, 1<<20, nil)
	for name, cfg := range map[string]initiator.Config{"RoCE": roce.config(initiator.TransportRoCE)} {
		l := openLUN(t, cfg)
		if err := l.Rest(t.Context()); err == nil {
			t.Errorf("%s: it rests", name)
		}
		if _, err := l.Carry(); err == nil {
			t.Errorf("%s: it is carried", name)
		}
		if _, err := l.ReadAt(make([]byte, 512), 0); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	// Another name is another session, and another wire.
	cfg := s.config(initiator.TransportTCP)
	cfg.ISID = [6]byte{0x80, 7}
	l := openLUN(t, cfg)
	for _, change := range []func(*initiator.Config){
		func(c *initiator.Config) { c.ISID = [6]byte{0x80, 9} },
		func(c *initiator.Config) { c.Transport = initiator.TransportISER },
		func(c *initiator.Config) { c.Sessions = 2 },
	} {
		toRest(t, l)
		k, err := l.Carry()
		if err != nil {
			t.Fatal(err)
		}
		l.Resume()
		next := cfg
		change(&next)
		next.Carried = k
		if _, err := initiator.Open(t.Context(), next); err == nil || k[0].FD >= 0 {
			t.Errorf("%v, descriptor %d", err, k[0].FD)
		}
		if _, err := l.ReadAt(make([]byte, 512), 0); err != nil {
			t.Error(err)
		}
	}
}

// Whatever comes as a session is refused, or is one that can be gone on with.
func FuzzCarriedSession(f *testing.F) {
	f.Add([]byte(`{"state":{"target":"iqn.2026-11.softiser:a","initiator":"iqn.2026-11.softiser:b","cmdsn":7,"exp_cmdsn":7,"max_cmdsn":20,"params":{"MaxRecvDataSegmentLength":8192,"MaxXmitDataSegmentLength":8192,"MaxBurstLength":8192,"FirstBurstLength":8192,"MaxOutstandingR2T":1}}}`))
	f.Add([]byte(`{"file":0,"state":{"target":"x","stream":{"unread":"AAAA","tags":[1,2,4294967295]}}}`))
	f.Fuzz(func(t *testing.T, in []byte) {
		var k initiator.CarriedSession
		if json.Unmarshal(in, &k) != nil || k.Check(1) != nil {
			return
		}
		if k.File != 0 {
			t.Errorf("%+v", k)
		}
	})
}
