package multipath_test

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"softiser/initiator"
	"softiser/initiator/blockio"
	"softiser/initiator/multipath"
	"softiser/internal/await"
	"softiser/target"
)

// The paths of a volume go to another one five times, as from process to process: they keep
// their sessions, and what was written is there. Before each time they come to rest and go on.
func TestPathsCarried(t *testing.T) {
	both(t, func(t *testing.T, tr initiator.Transport) {
		srv := serve(t, target.Target{Name: iqn + "one"})
		var cfgs []initiator.Config
		for i, addr := range srv.Addrs() {
			c := config(tr, addr, iqn+"one")
			c.ISID, c.NopInterval = [6]byte{0x80, 1, 2, 3, 0, byte(i)}, -1
			cfgs = append(cfgs, c)
		}
		v := openPaths(t, multipath.Config{}, cfgs...)
		awaitState(t, v, "optimized* optimized*")
		tsih := func() (all []uint16) {
			for _, s := range v.Sessions() {
				all = append(all, s.Info().TSIH)
			}
			return all
		}
		first := tsih()
		// Those before would have ended with their processes; here they find the sessions gone.
		var before []*multipath.Volume
		defer func() {
			for _, v := range before {
				v.Resume()
				v.Close() // of paths that are lost
			}
		}()
		for i := range 5 {
			rest(t, v)
			v.Resume()
			p := bytes.Repeat([]byte{byte(i + 1)}, 4096)
			if err := v.Do(t.Context(), &blockio.Request{Op: blockio.OpWrite, Off: int64(i) << 12, Buf: p}); err != nil {
				t.Fatal(err)
			}
			rest(t, v)
			all, err := v.Carry()
			if err != nil {
				t.Fatal(err)
			}
			gone := make(chan struct{}) // never: no path has to log in
			next := multipath.Config{After: gone, CheckInterval: time.Minute}
			for k, c := range all {
				var files []int
				c.Send(func(fd int) int { files = append(files, fd); return len(files) - 1 })
				text, err := json.Marshal(c)
				if err != nil {
					t.Fatal(err)
				}
				got := new(multipath.Carried)
				if err := json.Unmarshal(text, got); err != nil {
					t.Fatal(err)
				}
				if err := got.Check(len(files)); err != nil {
					t.Fatal(err)
				}
				if err := got.Receive(func(at int) (int, error) { return files[at], nil }); err != nil {
					t.Fatal(err)
				}
				if !got.GoesOn() {
					t.Fatalf("path %d does not go on: %s", k, text)
				}
				d := multipath.Found(cfgs[k], got)
				d.Carried = got
				next.Paths = append(next.Paths, d)
			}
			before = append(before, v)
			if v, err = multipath.Open(t.Context(), next); err != nil {
				t.Fatal(err)
			}
			awaitState(t, v, "optimized* optimized*")
			got := make([]byte, 4096)
			for range 2 { // over each path
				if err := v.Do(t.Context(), &blockio.Request{Op: blockio.OpRead, Off: int64(i) << 12, Buf: got}); err != nil || !bytes.Equal(got, p) {
					t.Fatalf("%v, %x", err, got[:8])
				}
			}
			if now := tsih(); now[0] != first[0] || now[1] != first[1] {
				t.Fatalf("the sessions are %v; they were %v", now, first)
			}
		}
		if err := v.Close(); err != nil {
			t.Error(err)
		}
	})
}

// A session that has come from another process is fenced by a login over another path, when it is lost here.
func TestCarriedPathIsFenced(t *testing.T) {
	both(t, func(t *testing.T, tr initiator.Transport) {
		srv := serve(t, target.Target{Name: iqn + "one"})
		a := newLink(t, srv.Addrs()[0])
		cfg := config(tr, a.addr(), iqn+"one")
		cfg.Path, cfg.ISID = true, [6]byte{0x80, 1, 2, 3}
		open := func(c initiator.Config) *initiator.LUN {
			t.Helper()
			l, err := initiator.Open(t.Context(), c)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { l.Close() })
			return l
		}
		before := open(cfg)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := before.Rest(ctx); err != nil {
			t.Fatal(err)
		}
		defer before.Resume()
		all, err := before.Carry()
		if err != nil {
			t.Fatal(err)
		}
		next := cfg
		next.Carried = all
		l, other := open(next), open(config(tr, srv.Addrs()[1], iqn+"one"))
		a.cut()
		await.True(t, "the session is lost", func() bool { up, _ := l.Connected(); return !up })
		if err := l.Fence(ctx, []blockio.Path{other}); err != nil {
			t.Error(err)
		}
	})
}

// rest brings both paths of a volume to rest.
func rest(t *testing.T, v *multipath.Volume) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := v.Rest(ctx); err != nil {
		t.Fatal(err)
	}
}

// Whatever is said of a path that a process cannot have had is refused.
func TestCheckCarried(t *testing.T) {
	for text, want := range map[string]string{
		`{"portal":{"address":"nowhere"}}`:                    "missing port",
		`{"sessions":[null]}`:                                 "is missing",
		`{"sessions":[{"file":3}]}`:                           "no descriptor",
		`{"sessions":[{"file":0,"state":{}}]}`:                "name",
		`{"association":{"files":[]}}`:                        "nvmf",
		`{"sessions":[{}],"association":{"files":[]}}`:        "beside an association",
		`{"sessions":[` + strings.Repeat(`{},`, 256) + `{}]}`: "257 sessions",
	} {
		var k multipath.Carried
		if err := json.Unmarshal([]byte(text), &k); err != nil {
			t.Fatal(err)
		}
		if err := k.Check(1); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60s: %v, want %q", text, err, want)
		}
	}
}
