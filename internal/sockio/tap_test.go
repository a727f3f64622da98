package sockio

import (
	"io"
	"net/netip"
	"testing"
	"time"

	"softiser/internal/alloctest"
	"softiser/internal/faultmap"
)

// tap begins to copy what c does.
func tap(t *testing.T, f TapFilter, memory int) *Tap {
	t.Helper()
	p, err := StartTap(f, memory)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Stop)
	return p
}

// exactly is a filter for c alone.
func exactly(c *Conn) TapFilter {
	local, remote := c.endsOf()
	return TapFilter{Local: local, Remotes: []netip.AddrPort{remote}, Most: 1}
}

// rest stops a tap and returns what it has copied.
func rest(t *testing.T, p *Tap) (all []TapRecord) {
	t.Helper()
	p.Stop()
	for {
		r, err := p.Next(func() { t.Error("it waits") })
		if err == io.EOF {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		r.Data = append([]byte(nil), r.Data...)
		all = append(all, r)
	}
}

// readAll reads n bytes.
func readAll(t *testing.T, c *Conn, n int) {
	t.Helper()
	p := make([]byte, n)
	err := c.ReadLoop(func(uintptr) bool {
		for n > 0 {
			m, err := c.Read(p[:n])
			if err == ErrAgain {
				return false
			}
			if n -= m; err != nil || m == 0 {
				t.Error(m, err)
				return true
			}
		}
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
}

// What is copied is what every kind of call has moved, in order, and of this connection alone.
func TestTap(t *testing.T) {
	peer, c := pair(t)
	other, another := pair(t)
	p := tap(t, exactly(c), 1<<16)
	if _, err := StartTap(TapFilter{}, 1); err != ErrTapped {
		t.Errorf("a second one: %v", err)
	}
	put(t, other, 'x')
	readAll(t, another, 1)
	if n, err := c.Writev(vecs([]byte("que"), []byte("stion")), true); n != 8 || err != nil {
		t.Fatal(n, err)
	}
	readAll(t, peer, 8)
	put(t, peer, 'a')
	readAll(t, c, 1)
	put(t, peer, 'b')
	if err := c.ReadLoop(func(uintptr) bool {
		n, err := c.Readv(vecs(make([]byte, 2), make([]byte, 2)), false)
		if err != ErrAgain && (n != 1 || err != nil) {
			t.Error(n, err)
		}
		return err != ErrAgain
	}); err != nil {
		t.Fatal(err)
	}
	if c.EnableZerocopy() {
		if n, err := c.WritevZerocopy(vecs([]byte("ref"))); n != 3 || err != nil {
			t.Fatal(n, err)
		}
	} else if n, err := c.Writev(vecs([]byte("ref")), false); n != 3 || err != nil {
		t.Fatal(n, err)
	}
	if err := c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	want := []TapRecord{
		{Kind: TapSent, Data: []byte("question")}, {Kind: TapReceived, Data: []byte("a")}, {Kind: TapReceived, Off: 1, Data: []byte("b")},
		{Kind: TapSent, Off: 8, Data: []byte("ref")}, {Kind: TapSentEnd, Off: 11},
	}
	got := rest(t, p)
	if len(got) != len(want) {
		t.Fatalf("%d records: %+v", len(got), got)
	}
	f := exactly(c)
	for i, w := range want {
		g := got[i]
		if g.Kind != w.Kind || g.Off != w.Off || string(g.Data) != string(w.Data) || g.Conn != 0 || g.Local != f.Local || g.Remote != f.Remotes[0] || time.Since(g.Time) > time.Minute {
			t.Errorf("record %d: %+v, want %+v", i, g, w)
		}
	}
}

// What finds no room is counted, and seen in the offsets; what was there stays.
func TestTapDrops(t *testing.T) {
	peer, c := pair(t)
	p := tap(t, exactly(c), 2*tapHead+6)
	for _, s := range []string{"abcd", "efgh", "i", "jk"} {
		if n, err := c.Writev(vecs([]byte(s)), true); n != len(s) || err != nil {
			t.Fatal(n, err)
		}
		if s == "efgh" { // did not fit; the memory goes round for what follows
			if r, err := p.Next(nil); err != nil || string(r.Data) != "abcd" {
				t.Fatalf("%+v, %v", r, err)
			}
		}
	}
	readAll(t, peer, 11)
	got := rest(t, p)
	if len(got) != 2 || got[0].Off != 8 || string(got[0].Data) != "i" || got[1].Off != 9 || string(got[1].Data) != "jk" || p.Dropped() != 4 {
		t.Errorf("%+v, %d dropped", got, p.Dropped())
	}
}

// A tap of what is new leaves alone what is open, takes as many as it may, knows a connection that
// goes on as another Conn, and is over when they have ended.
func TestTapNew(t *testing.T) {
	open, _ := pair(t)
	p := tap(t, TapFilter{New: true, Most: 1}, 1<<16)
	put(t, open, 'x')
	peer, _ := pair(t) // peer is the first that begins
	put(t, peer, 'a')
	again, err := New(peer.Net(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	if !again.Tapped() || open.Tapped() {
		t.Errorf("tapped: %v, %v", again.Tapped(), open.Tapped())
	}
	again.Told([]byte("question"), []byte("answer"), false)
	put(t, again, 'b')
	peer.Close()
	var kinds []TapKind
	text := ""
	for {
		r, err := p.Next(func() { t.Fatal("it waits for another one") })
		if err == io.EOF {
			break
		}
		kinds = append(kinds, r.Kind)
		text += string(r.Data) + " "
	}
	if want := " a question answer b  "; text != want {
		t.Errorf("got %q of %v, want %q", text, kinds, want)
	}
	if kinds[0] != TapBegin || kinds[2] != TapReceived || kinds[3] != TapSent || kinds[len(kinds)-1] != TapSentEnd {
		t.Errorf("%v", kinds)
	}
}

// Who reads is woken by what comes, and by the end.
func TestTapWaits(t *testing.T) {
	peer, c := pair(t)
	p := tap(t, exactly(c), 1<<16)
	waits := make(chan struct{})
	got := make(chan error)
	go func() {
		for {
			_, err := p.Next(func() { waits <- struct{}{} })
			if got <- err; err != nil {
				return
			}
		}
	}()
	<-waits
	put(t, c, 'a')
	readAll(t, peer, 1)
	for err := error(nil); err == nil; {
		select {
		case <-waits:
			p.Stop()
		case err = <-got:
		}
		if err != nil && err != io.EOF {
			t.Error(err)
		}
	}
}

// Memory that cannot be read any more costs the copy of these bytes, not the process.
func TestTapFaults(t *testing.T) {
	_, c := pair(t)
	p := tap(t, exactly(c), 1<<16)
	mem := faultmap.New(t, 8192, 4096)
	if !c.Tapped() {
		t.Fatal("it is not tapped")
	}
	p.mu.Lock()
	p.enter(0, TapSent, vecs(mem[:10], mem[4096:]), 4106)
	p.enter(0, TapSent, vecs([]byte("next")), 4)
	p.mu.Unlock()
	if got := rest(t, p); len(got) != 1 || got[0].Off != 4106 || string(got[0].Data) != "next" || p.Dropped() != 4106 {
		t.Errorf("%+v, %d dropped", got, p.Dropped())
	}
}

func TestTapFilter(t *testing.T) {
	local, remote := netip.MustParseAddrPort("192.0.2.1:3260"), netip.MustParseAddrPort("192.0.2.7:40000")
	for _, c := range []struct {
		local   string
		remotes []string
		want    bool
	}{
		{"", nil, true},
		{"0.0.0.0:3260", nil, true},
		{"[::]:3260", nil, true},
		{"0.0.0.0:3261", nil, false},
		{"192.0.2.1:3260", nil, true},
		{"192.0.2.2:3260", nil, false},
		{"", []string{"192.0.2.7:40000"}, true},
		{"", []string{"[::ffff:192.0.2.7]:40000"}, true},
		{"", []string{"192.0.2.7:0"}, true},
		{"", []string{"192.0.2.7:40001"}, false},
		{"", []string{"192.0.2.8:0", "192.0.2.7:0"}, true},
		{"192.0.2.2:3260", []string{"192.0.2.7:0"}, false},
	} {
		var f TapFilter
		if c.local != "" {
			f.Local = netip.MustParseAddrPort(c.local)
		}
		for _, r := range c.remotes {
			f.Remotes = append(f.Remotes, netip.MustParseAddrPort(r))
		}
		if got := f.takes(local, remote); got != c.want {
			t.Errorf("%q, %q: %v", c.local, c.remotes, got)
		}
	}
}

// Neither who is tapped nor who is not allocates anything.
func TestTapAllocations(t *testing.T) {
	peer, c := pair(t)
	other, another := pair(t)
	b := make([]byte, 1)
	v, into := vecs([]byte("a")), vecs(b)
	move := func(from, to *Conn) {
		for range 3 {
			if n, err := from.Writev(v, true); n != 1 || err != nil {
				t.Fatal(n, err)
			}
		}
		for n := 0; n < 3; {
			m, err := to.Read(b)
			if err == ErrAgain {
				m, err = to.Readv(into, true)
			}
			if err != nil && err != ErrAgain {
				t.Fatal(err)
			}
			n += m
		}
	}
	tap(t, exactly(c), 1<<20)
	for name, f := range map[string]func(){"tapped": func() { move(c, peer); move(peer, c) }, "another": func() { move(other, another) }} {
		if n := alloctest.PerRun(100, f); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}
