package nvmf_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"softiser/blockdev"
	"softiser/blockdev/mem"
	"softiser/initiator/blockio"
	. "softiser/initiator/nvmf"
	"softiser/internal/alloctest"
	"softiser/internal/await"
	"softiser/internal/nvme"
	"softiser/target"
	targetnvmf "softiser/target/nvmf"
)

const (
	subNQN  = "nqn.2026-11.softiser:disk0"
	hostNQN = "nqn.2014-08.org.nvmexpress:uuid:00000000-0000-0000-0000-00000000000a"
	size    = 16 << 20
)

// serve runs our target with one namespace, and returns its address and volume.
func serve(t testing.TB, change func(*target.Config, *targetnvmf.SubsystemConfig)) (string, blockdev.Device, *target.Server) {
	t.Helper()
	dev, err := mem.Open(mem.Config{Name: t.Name(), Size: size})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dev.Close() })
	tc := target.Config{Portals: []target.Portal{{Listen: "127.0.0.1:0"}}}
	sc := targetnvmf.SubsystemConfig{NQN: subNQN, Namespaces: []targetnvmf.NamespaceConfig{{NSID: 1, Volume: dev}}}
	if change != nil {
		change(&tc, &sc)
	}
	srv, err := target.New(tc)
	if err != nil {
		t.Fatal(err)
	}
	if err := srv.AddSubsystem(sc); err != nil {
		t.Fatal(err)
	}
	if err := srv.Listen(); err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(context.Background()) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		srv.Shutdown(ctx)
		if err := <-served; err != nil && !errors.Is(err, target.ErrServerClosed) {
			t.Error(err)
		}
	})
	return srv.Addrs()[0], dev, srv
}

func config(addr string) Config {
	return Config{Address: addr, Subsystem: subNQN, HostNQN: hostNQN}
}

func open(t testing.TB, cfg Config) *Namespace {
	t.Helper()
	n, err := Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil && !errors.Is(err, blockdev.ErrClosed) {
			t.Error(err)
		}
	})
	return n
}

func random(n int) []byte {
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{3}).Read(b)
	return b
}

// Everything that a volume can be asked for, against our target.
func TestOperations(t *testing.T) {
	for _, digests := range []bool{false, true} {
		for _, queues := range []int{1, 3} {
			t.Run(fmt.Sprintf("digests=%t queues=%d", digests, queues), func(t *testing.T) {
				addr, dev, _ := serve(t, nil)
				cfg := config(addr)
				cfg.HeaderDigest, cfg.DataDigest, cfg.Queues = digests, digests, queues
				operations(t, cfg, dev)
			})
		}
	}
}

// TestOperationsOnLongBlocks: the same where a block has 4096 bytes, of which no part can be asked for.
func TestOperationsOnLongBlocks(t *testing.T) {
	for _, transport := range []Transport{TransportTCP, TransportRDMA} {
		t.Run(transport.String(), func(t *testing.T) {
			dev, err := mem.Open(mem.Config{Name: t.Name(), Size: size, BlockSize: 4096})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { dev.Close() })
			addr, _, _ := serve(t, func(_ *target.Config, sc *targetnvmf.SubsystemConfig) { sc.Namespaces[0].Volume = dev })
			cfg := config(addr)
			cfg.Transport, cfg.Queues = transport, 1
			operations(t, cfg, dev)
			n := open(t, cfg)
			if bs := n.Info().BlockSize; bs != 4096 {
				t.Errorf("blocks of %d bytes", bs)
			}
			for _, off := range []int64{0, 512} {
				if _, err := n.WriteAt(make([]byte, 512), off); err == nil {
					t.Errorf("512 bytes are written at %d", off)
				}
			}
		})
	}
}

// operations asks the namespace that cfg names, which is dev, for everything.
func operations(t *testing.T, cfg Config, dev blockdev.Device) {
	t.Helper()
	n := open(t, cfg)
	if i := n.Info(); i.Size != size || i.BlockSize != 512 && i.BlockSize != 4096 || i.ReadOnly || !i.Discard {
		t.Fatalf("%+v", i)
	}
	data := random(4 << 20)
	back := make([]byte, len(data))
	for _, c := range []struct{ off, n int }{{0, 4096}, {4096, 8192}, {16384, 64 << 10}, {1 << 20, 1 << 20}, {2 << 20, 4 << 20}} {
		if _, err := n.WriteAt(data[:c.n], int64(c.off)); err != nil {
			t.Fatal(err)
		}
		dev.ReadAt(back[:c.n], int64(c.off))
		if !bytes.Equal(back[:c.n], data[:c.n]) {
			t.Fatalf("%d bytes at %d: other data on the volume", c.n, c.off)
		}
		clear(back)
		if _, err := n.ReadAt(back[:c.n], int64(c.off)); err != nil || !bytes.Equal(back[:c.n], data[:c.n]) {
			t.Fatalf("%d bytes at %d: %v, or other data", c.n, c.off, err)
		}
	}
	var l blockdev.Lease
	if err := n.LeaseRead(&l, 2<<20, 1<<20, blockdev.Wait); err != nil || !bytes.Equal(bytes.Join(l.Segs, nil), data[:1<<20]) {
		t.Errorf("a lease: %v, or other data", err)
	}
	l.Release()
	for _, r := range []blockio.Request{
		{Op: blockio.OpWrite, Off: 8192, Buf: data[:4096], FUA: true}, {Op: blockio.OpFlush}, {Op: blockio.OpVerify, Off: 0, Len: size},
		{Op: blockio.OpWriteZeroes, Off: 0, Len: 4096}, {Op: blockio.OpWriteZeroes, Off: 1 << 20, Len: 1 << 20, MayUnmap: true, FUA: true},
		{Op: blockio.OpDiscard, Off: 2 << 20, Len: 1 << 20, FUA: true},
	} {
		if err := n.Do(t.Context(), &r); err != nil {
			t.Errorf("operation %d: %v", r.Op, err)
		}
	}
	n.ReadAt(back, 0)
	if !bytes.Equal(back[:4096], make([]byte, 4096)) || !bytes.Equal(back[1<<20:3<<20], make([]byte, 2<<20)) || bytes.Equal(back[3<<20:], make([]byte, 1<<20)) {
		t.Error("zeroes are not where they should be")
	}
	caw := blockio.Request{Op: blockio.OpCompareAndWrite, Off: 0, Buf: append(make([]byte, 4096), data[:4096]...)}
	if err := n.Do(t.Context(), &caw); err != nil {
		t.Error(err)
	}
	var se *StatusError
	if err := n.Do(t.Context(), &caw); !errors.As(err, &se) || se.Status != 0x285 {
		t.Errorf("compare and write of what is not there: %v", err)
	}
	n.ReadAt(back[:4096], 0)
	if !bytes.Equal(back[:4096], data[:4096]) {
		t.Error("compare and write has not written")
	}
	for _, r := range []blockio.Request{
		{Op: blockio.OpRead, Off: size, Buf: data[:4096]}, {Op: blockio.OpRead, Off: 1, Buf: data[:4096]}, {Op: blockio.OpRead, Off: size - 4096, Buf: data[:8192]},
		{Op: blockio.OpWrite, Off: -4096, Buf: data[:4096]}, {Op: 99}, {Op: blockio.OpCDB, CDB: make([]byte, 6)}, {Op: blockio.OpCompareAndWrite, Buf: data[:1<<20]},
		{Op: blockio.OpSQE, SQE: make([]byte, 63)}, {Op: blockio.OpSQE, SQE: raw(nvme.OpFabrics, 0)}, {Op: blockio.OpSQE, SQE: raw(nvme.OpWrite, nvme.FuseFirst)},
		{Op: blockio.OpSQE, SQE: raw(nvme.OpFlush, 0), Buf: data[:512]}, {Op: blockio.OpSQE, SQE: raw(nvme.OpRead, 0), Segs: [][]byte{data[:512]}},
		{Op: blockio.OpSQE, SQE: raw(nvme.OpReservationReport, 0), Buf: make([]byte, n.Limits().MaxTransfer+512)},
	} {
		if err := n.Do(t.Context(), &r); err == nil {
			t.Errorf("operation %d at %d of %d bytes was done", r.Op, r.Off, len(r.Buf))
		}
	}
	if len(n.Names()) == 0 || n.ID() != 1 || n.QueueDepth() != 127*cfg.Queues {
		t.Errorf("%v %d %d", n.Names(), n.ID(), n.QueueDepth())
	}
	if s := n.Stats(); s.Outstanding != 0 || s.Waiting != 0 || s.ReadBytes == 0 || s.WriteBytes == 0 {
		t.Errorf("%+v", s)
	}
}

// raw is a command as others make it, for whichever namespace.
func raw(op nvme.Opcode, f nvme.Fuse) []byte {
	var s nvme.SQE
	s.Init(op, 77)
	s.SetFuse(f)
	return s[:]
}

// load writes and reads blocks until stop, and checks that each is what was written last.
func load(t testing.TB, n *Namespace, depth int, stop <-chan struct{}) *sync.WaitGroup {
	return loadFrom(t, n, depth, 0, stop)
}

// loadFrom is load from an offset on.
func loadFrom(t testing.TB, n *Namespace, depth int, from int64, stop <-chan struct{}) *sync.WaitGroup {
	var wg sync.WaitGroup
	for i := range depth {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(i), 1))
			buf, want := make([]byte, 8192), make([]byte, 8192)
			base := from + int64(i)*64<<10
			if _, err := n.WriteAt(want, base); err != nil {
				t.Error(err)
				return
			}
			for {
				select {
				case <-stop:
					return
				default:
				}
				if r.IntN(2) == 0 {
					for k := range want {
						want[k] = byte(r.Uint32())
					}
					if _, err := n.WriteAt(want, base); err != nil {
						t.Errorf("write: %v", err)
						return
					}
				} else if _, err := n.ReadAt(buf, base); err != nil || !bytes.Equal(buf, want) {
					t.Errorf("read: %v, or other data", err)
					return
				}
			}
		})
	}
	return &wg
}

// relay forwards connections to addr, until it cuts them.
type relay struct {
	ln   net.Listener
	mu   sync.Mutex
	all  map[net.Conn]bool
	wg   sync.WaitGroup
	deny atomic.Bool
}

func newRelay(t testing.TB, addr string) *relay {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{ln: ln, all: map[net.Conn]bool{}}
	r.wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			s, err := net.Dial("tcp", addr)
			if err != nil || r.deny.Load() {
				c.Close()
				if s != nil {
					s.Close()
				}
				continue
			}
			r.mu.Lock()
			r.all[c], r.all[s] = true, true
			r.mu.Unlock()
			for _, p := range [][2]net.Conn{{c, s}, {s, c}} {
				r.wg.Go(func() {
					io.Copy(p[0], p[1])
					p[0].Close()
					p[1].Close()
				})
			}
		}
	})
	t.Cleanup(func() { ln.Close(); r.cut(); r.wg.Wait() })
	return r
}

func (r *relay) cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for c := range r.all {
		c.Close()
	}
	clear(r.all)
}

// The connections are lost again and again under I/O: nothing fails, and no data is wrong.
func TestReconnect(t *testing.T) {
	addr, _, _ := serve(t, nil)
	reconnects(t, config(addr))
}

// reconnects loses the connections to cfg.Address again and again.
func reconnects(t *testing.T, cfg Config) {
	t.Helper()
	r := newRelay(t, cfg.Address)
	cfg.Address, cfg.Queues = r.ln.Addr().String(), 2
	var recovered atomic.Int32
	cfg.OnEvent = func(e Event) {
		if e.Kind == EventRecovered {
			recovered.Add(1)
		}
	}
	n := open(t, cfg)
	stop := make(chan struct{})
	wg := load(t, n, 8, stop)
	for i := range int32(4) {
		before := n.Stats().Completed
		await.True(t, "the load goes on", func() bool { return n.Stats().Completed > before+50 })
		r.cut()
		await.True(t, "the association recovers", func() bool { return recovered.Load() > i })
	}
	close(stop)
	wg.Wait()
	if s := n.Stats(); s.Losses != 4 || s.Logins != 5 {
		t.Errorf("%+v", s)
	}
}

// What waits for a controller that does not come back fails in the end; as a path it
// fails at once, and works again when the controller is back.
func TestControllerLoss(t *testing.T) {
	addr, _, _ := serve(t, nil)
	for _, path := range []bool{false, true} {
		r := newRelay(t, addr)
		cfg := config(r.ln.Addr().String())
		cfg.CtrlLossTimeout, cfg.ReconnectDelay, cfg.Path = 300*time.Millisecond, 50*time.Millisecond, path
		n := open(t, cfg)
		r.deny.Store(true)
		r.cut()
		await.True(t, "the loss is seen", func() bool { s, _ := n.Association().State(); return s != StateLive })
		_, err := n.ReadAt(make([]byte, 4096), 0)
		if !errors.Is(err, blockio.ErrSessionLost) {
			t.Errorf("path=%t: %v", path, err)
		}
		s, err := n.Association().State()
		if want := map[bool]State{false: StateFailed, true: StateDown}[path]; s != want || err == nil {
			t.Errorf("path=%t: %v, %v", path, s, err)
		}
		r.deny.Store(false)
		if path {
			if err := n.Association().WaitLive(t.Context()); err != nil {
				t.Error(err)
			}
			if _, err := n.ReadAt(make([]byte, 4096), 0); err != nil {
				t.Error(err)
			}
		}
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	}
}

// Close ends what is outstanding, also while there is no controller.
func TestClose(t *testing.T) {
	addr, _, _ := serve(t, nil)
	r := newRelay(t, addr)
	n := open(t, config(r.ln.Addr().String()))
	r.deny.Store(true)
	r.cut()
	await.True(t, "it reconnects", func() bool { s, _ := n.Association().State(); return s == StateReconnecting })
	done := make(chan error, 1)
	req := &blockio.Request{Op: blockio.OpRead, Buf: make([]byte, 4096), Done: func(r *blockio.Request) { done <- r.Err }}
	n.Submit(req)
	if err := n.Close(); err != nil {
		t.Error(err)
	}
	if err := <-done; !errors.Is(err, blockio.ErrClosed) {
		t.Error(err)
	}
	if _, err := n.ReadAt(make([]byte, 4096), 0); !errors.Is(err, blockdev.ErrClosed) {
		t.Error(err)
	}
	if err := n.Close(); !errors.Is(err, blockdev.ErrClosed) {
		t.Error(err)
	}
}

// A controller that is gone for good refuses; the error says why.
func TestConnectRefused(t *testing.T) {
	addr, _, _ := serve(t, nil)
	cfg := config(addr)
	cfg.Subsystem = "nqn.2026-11.softiser:other"
	var ce *ConnectError
	if _, err := Open(t.Context(), cfg); !errors.As(err, &ce) || ce.Status != 0x182 || !strings.HasPrefix(ce.What, "subsystem NQN: there is no such subsystem; discovery") {
		t.Error(err)
	}
	cfg = config(addr)
	cfg.NSID = 7
	if _, err := Open(t.Context(), cfg); !errors.Is(err, blockio.ErrNoLUN) || !strings.HasSuffix(err.Error(), "namespace 7: the subsystem has no such namespace; it has namespace 1") {
		t.Error(err)
	}
	for _, bad := range []func(*Config){
		func(c *Config) { c.Address = "" }, func(c *Config) { c.Subsystem = "iqn" }, func(c *Config) { c.HostNQN = "x" },
		func(c *Config) { c.Queues = 1000 }, func(c *Config) { c.QueueDepth = 5000 },
	} {
		c := config(addr)
		bad(&c)
		if _, err := Open(t.Context(), c); err == nil {
			t.Errorf("%+v", c)
		}
	}
}

// A volume that grows is told of.
func TestResize(t *testing.T) {
	addr, dev, _ := serve(t, nil)
	n := open(t, config(addr))
	told := make(chan blockdev.Info, 1)
	defer n.OnResize(func(i blockdev.Info) { told <- i })()
	if err := dev.(blockdev.Resizer).Resize(2 * size); err != nil {
		t.Fatal(err)
	}
	select {
	case i := <-told:
		if i.Size != 2*size || n.Info().Size != 2*size {
			t.Error(i.Size)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("nobody was told")
	}
	if _, err := n.WriteAt(make([]byte, 4096), 2*size-4096); err != nil {
		t.Error(err)
	}
}

func TestDiscover(t *testing.T) {
	for _, tr := range []Transport{TransportTCP, TransportRDMA} {
		t.Run(tr.String(), func(t *testing.T) { discovers(t, tr) })
	}
}

func discovers(t *testing.T, tr Transport) {
	addr, _, srv := serve(t, nil)
	for i := range 40 { // more than one piece
		if err := srv.AddSubsystem(targetnvmf.SubsystemConfig{NQN: fmt.Sprintf("nqn.2026-11.softiser:more%d", i)}); err != nil {
			t.Fatal(err)
		}
	}
	log, err := Discover(t.Context(), Config{Transport: tr, Address: addr, HostNQN: hostNQN})
	if err != nil {
		t.Fatal(err)
	}
	names, mine := map[string]bool{}, false
	for _, e := range log.Records {
		names[e.Subsystem] = true
		mine = mine || e.Transport == tr.String()
		if e.Transport != "tcp" && e.Transport != "rdma" || e.Family != "ipv4" {
			t.Errorf("%+v", e)
		}
	}
	if !names[subNQN] || !names["nqn.2026-11.softiser:more39"] || len(names) < 41 || !mine {
		t.Errorf("%d names, over %v: %t", len(names), tr, mine)
	}
}

// A command that its caller gives up is aborted, and its memory free when Do returns.
func TestCancelled(t *testing.T) {
	addr, _, _ := serve(t, nil)
	n := open(t, config(addr))
	ctx, cancel := context.WithCancelCause(t.Context())
	enough := errors.New("enough")
	cancel(enough)
	for range 50 {
		err := n.Do(ctx, &blockio.Request{Op: blockio.OpRead, Buf: make([]byte, 1<<20)})
		if err != nil && !errors.Is(err, enough) {
			t.Fatal(err)
		}
	}
	if _, err := n.ReadAt(make([]byte, 4096), 0); err != nil {
		t.Error(err)
	}
}

// Nothing is allocated for a read or a write, here or in the target.
func TestAllocations(t *testing.T) {
	addr, _, _ := serve(t, nil)
	allocatesNothing(t, config(addr))
}

func allocatesNothing(t *testing.T, cfg Config) {
	t.Helper()
	n := open(t, cfg)
	for _, op := range []blockio.Op{blockio.OpRead, blockio.OpWrite} {
		for _, k := range []int{4096, 64 << 10} {
			done := make(chan struct{}, 1)
			r := &blockio.Request{Op: op, Buf: make([]byte, k), Done: func(*blockio.Request) { done <- struct{}{} }}
			run := func() { n.Submit(r); <-done }
			for range 200 {
				run()
			}
			if a := alloctest.PerRun(200, run); a >= 1 {
				t.Errorf("operation %d of %d bytes: %.1f allocations", op, k, a)
			}
		}
	}
}
