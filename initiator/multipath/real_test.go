package multipath_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"softiser/blockdev"
	"softiser/blockdev/mem"
	"softiser/initiator"
	"softiser/initiator/blockio"
	"softiser/initiator/multipath"
	"softiser/internal/await"
	"softiser/target"
	"softiser/target/scsi"
	"softiser/target/targettest"
)

// link forwards connections to one portal until it is cut or stalled.
type link struct {
	l     net.Listener
	to    string
	wg    sync.WaitGroup
	mu    sync.Mutex
	conns map[net.Conn]bool
	open  chan struct{} // closed while it forwards
	off   bool          // new connections are hung up on
}

func newLink(t *testing.T, to string) *link {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	k := &link{l: l, to: to, conns: map[net.Conn]bool{}, open: make(chan struct{})}
	close(k.open)
	k.wg.Add(1)
	go k.accept()
	t.Cleanup(func() {
		l.Close()
		k.restore()
		k.cut()
		k.wg.Wait()
	})
	return k
}

func (k *link) addr() string { return k.l.Addr().String() }

func (k *link) accept() {
	defer k.wg.Done()
	for {
		in, err := k.l.Accept()
		if err != nil {
			return
		}
		k.mu.Lock()
		if k.off {
			k.mu.Unlock()
			in.Close()
			continue
		}
		out, err := net.Dial("tcp", k.to)
		if err != nil {
			k.mu.Unlock()
			in.Close()
			continue
		}
		k.conns[in], k.conns[out] = true, true
		k.mu.Unlock()
		k.wg.Add(2)
		go k.copy(in, out)
		go k.copy(out, in)
	}
}

func (k *link) copy(from, to net.Conn) {
	defer k.wg.Done()
	defer from.Close()
	defer to.Close()
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		k.mu.Lock()
		open := k.open
		k.mu.Unlock()
		<-open
		if n > 0 {
			if _, werr := to.Write(buf[:n]); werr != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// cut ends every connection and takes no new ones.
func (k *link) cut() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.off = true
	for c := range k.conns {
		c.Close()
	}
	clear(k.conns)
}

// stall lets nothing through, and tells nobody.
func (k *link) stall() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.open = make(chan struct{})
}

func (k *link) restore() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.off = false
	select {
	case <-k.open:
	default:
		close(k.open)
	}
}

const iqn = "iqn.2026-11.softiser:paths-"

// serve runs a target process in this one: two portals, and as many targets as there are
// port groups, which share one volume.
func serve(t *testing.T, targets ...target.Target) *target.Server {
	t.Helper()
	vol, err := mem.Open(mem.Config{Name: t.Name(), Size: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	srv, err := target.New(target.Config{Portals: []target.Portal{{Listen: "127.0.0.1:0", CRC: target.CRCOffered}, {Listen: "127.0.0.1:0", CRC: target.CRCOffered}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, tgt := range targets {
		tgt.LUNs = []target.LUN{{Name: "disk", LUConfig: scsi.LUConfig{Volume: blockdev.Device(vol)}}}
		if err := srv.AddTarget(tgt); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { vol.Close() })
	targettest.Serve(t, srv)
	return srv
}

func config(tr initiator.Transport, addr, name string) initiator.Config {
	return initiator.Config{
		Transport: tr, Address: addr, TargetName: name, InitiatorName: "iqn.2026-11.softiser:me",
		NopInterval: 200 * time.Millisecond, NopTimeout: time.Second, LoginTimeout: 5 * time.Second, LogoutTimeout: 100 * time.Millisecond,
	}
}

// load writes and reads back what was acknowledged, in every block by one writer, until the
// returned function is called.
func load(t *testing.T, v *multipath.Volume) (ops *atomic.Int64, stop func()) {
	ops = new(atomic.Int64)
	var quit atomic.Bool
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			buf, got := make([]byte, 4096), make([]byte, 4096)
			for n := uint64(1); !quit.Load(); n++ {
				for at := 0; at < len(buf); at += 16 {
					binary.LittleEndian.PutUint64(buf[at:], n)
					binary.LittleEndian.PutUint64(buf[at+8:], uint64(i))
				}
				w := &blockio.Request{Op: blockio.OpWrite, Off: int64(i) * 4096, Buf: buf}
				if n%8 == 0 {
					w.FUA = true
				}
				if err := v.Do(context.Background(), w); err != nil {
					t.Errorf("write: %v", err)
					return
				}
				if n%16 == 0 {
					if err := v.Flush(); err != nil {
						t.Errorf("flush: %v", err)
						return
					}
				}
				if err := v.Do(context.Background(), &blockio.Request{Op: blockio.OpRead, Off: int64(i) * 4096, Buf: got}); err != nil {
					t.Errorf("read: %v", err)
					return
				}
				if !bytes.Equal(buf, got) {
					t.Errorf("writer %d: version %d was acknowledged, %d is there", i, n, binary.LittleEndian.Uint64(got))
					return
				}
				ops.Add(1)
			}
		}()
	}
	return ops, func() {
		quit.Store(true)
		wg.Wait()
	}
}

func progress(t *testing.T, ops *atomic.Int64) {
	t.Helper()
	n := ops.Load()
	await.True(t, "the load goes on", func() bool { return ops.Load() > n+50 || t.Failed() })
}

func state(v *multipath.Volume) string {
	var s []string
	for _, p := range v.Paths() {
		one := p.State
		if p.Active {
			one += "*"
		}
		s = append(s, one)
	}
	return strings.Join(s, " ")
}

func awaitState(t *testing.T, v *multipath.Volume, want string) {
	t.Helper()
	await.True(t, "the paths are "+want, func() bool { return state(v) == want })
}

func openPaths(t *testing.T, cfg multipath.Config, paths ...initiator.Config) *multipath.Volume {
	t.Helper()
	for _, c := range paths {
		cfg.Paths = append(cfg.Paths, multipath.LUN(c))
	}
	cfg.CheckInterval = 500 * time.Millisecond
	v, err := multipath.Open(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := v.Close(); err != nil && !errors.Is(err, blockdev.ErrClosed) {
			t.Logf("close: %v", err) // of a path that was cut
		}
	})
	return v
}

func both(t *testing.T, f func(t *testing.T, tr initiator.Transport)) {
	for _, tr := range []initiator.Transport{initiator.TransportISER, initiator.TransportTCP} {
		t.Run(tr.String(), func(t *testing.T) { t.Parallel(); f(t, tr) })
	}
}

// Two portals of one target: a path that is cut or stalled is left, its session is reinstated
// through the other portal, and it is used again when it is back.
func TestTwoPortals(t *testing.T) {
	both(t, func(t *testing.T, tr initiator.Transport) {
		srv := serve(t, target.Target{Name: iqn + "one"})
		a, b := newLink(t, srv.Addrs()[0]), newLink(t, srv.Addrs()[1])
		v := openPaths(t, multipath.Config{}, config(tr, a.addr(), iqn+"one"), config(tr, b.addr(), iqn+"one"))
		awaitState(t, v, "optimized* optimized*")
		ops, stop := load(t, v)
		defer stop()
		progress(t, ops)
		for _, fail := range []func(){a.cut, b.stall} {
			fail()
			await.True(t, "the path is left", func() bool { return strings.Contains(state(v), "down") })
			await.True(t, "nothing waits any more", func() bool { s := v.Paths(); return s[0].Unknown+s[1].Unknown == 0 })
			progress(t, ops)
			a.restore()
			b.restore()
			awaitState(t, v, "optimized* optimized*")
			progress(t, ops)
		}
	})
}

// Two targets that share one volume, with access states that change under load.
func TestTwoTargets(t *testing.T) {
	both(t, func(t *testing.T, tr initiator.Transport) {
		one, two := iqn+"one", iqn+"two"
		standby := []scsi.PortGroup{{ID: 1, Ports: []uint16{1}, State: scsi.Standby}}
		srv := serve(t, target.Target{Name: one}, target.Target{Name: two, PortGroups: standby})
		a, b := newLink(t, srv.Addrs()[0]), newLink(t, srv.Addrs()[1])
		v := openPaths(t, multipath.Config{}, config(tr, a.addr(), one), config(tr, b.addr(), two))
		awaitState(t, v, "optimized* inaccessible")
		ops, stop := load(t, v)
		defer stop()
		progress(t, ops)
		set := func(name string, s scsi.AccessState) {
			t.Helper()
			if err := srv.SetAccessState(name, 0, 1, s); err != nil {
				t.Fatal(err)
			}
		}
		set(two, scsi.ActiveNonOptimized)
		awaitState(t, v, "optimized* non-optimized")
		set(one, scsi.Standby)
		awaitState(t, v, "inaccessible non-optimized*")
		progress(t, ops)
		set(one, scsi.ActiveOptimized)
		awaitState(t, v, "optimized* non-optimized")
		progress(t, ops)
		// The sessions are not of one target: what is unknown waits until the path is back.
		a.cut()
		await.True(t, "the path is left", func() bool { return state(v) == "down non-optimized*" })
		a.restore()
		awaitState(t, v, "optimized* non-optimized")
		progress(t, ops)
	})
}

// A path to another volume is refused, and nothing is written there.
func TestAnotherVolume(t *testing.T) {
	srv := serve(t, target.Target{Name: iqn + "one"})
	other := serve(t, target.Target{Name: iqn + "one"})
	v := openPaths(t, multipath.Config{}, config(initiator.TransportTCP, srv.Addrs()[0], iqn+"one"), config(initiator.TransportTCP, other.Addrs()[0], iqn+"one"))
	s := v.Paths()
	if s[1].State != "down" || !strings.Contains(s[1].Reason, "not the same volume") {
		t.Errorf("%+v", s)
	}
}

func TestPortals(t *testing.T) {
	srv := serve(t, target.Target{Name: iqn + "one"})
	paths, err := multipath.Portals(context.Background(), config(initiator.TransportTCP, srv.Addrs()[1], iqn+"one"), nil, 1)
	if err != nil || len(paths) != 2 || !strings.Contains(paths[0].Name, srv.Addrs()[1]) || !strings.Contains(paths[1].Name, srv.Addrs()[0]) {
		t.Errorf("%v, %v", fmt.Sprint(paths), err)
	}
}

// The portal that is asked is one path, whatever its address is called.
func TestPortalsOfAName(t *testing.T) {
	srv := serve(t, target.Target{Name: iqn + "one"})
	_, port, _ := strings.Cut(srv.Addrs()[1], ":")
	for _, host := range []string{"localhost", "[::ffff:127.0.0.1]"} {
		paths, err := multipath.Portals(context.Background(), config(initiator.TransportTCP, host+":"+port, iqn+"one"), nil, 1)
		if err != nil || len(paths) != 2 || !strings.Contains(paths[0].Name, host) || !strings.Contains(paths[1].Name, srv.Addrs()[0]) {
			t.Errorf("%s: %v, %v", host, fmt.Sprint(paths), err)
		}
	}
}
