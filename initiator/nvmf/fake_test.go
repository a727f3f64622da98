package nvmf_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"softiser/blockdev"
	"softiser/initiator/blockio"
	. "softiser/initiator/nvmf"
	"softiser/internal/await"
	"softiser/internal/nvme"
	"softiser/internal/nvmetcp"
)

// fake is a controller that says what a test wants; each connection is a fakeQueue.
type fake struct {
	t     testing.TB
	ln    net.Listener
	wg    sync.WaitGroup
	ident nvme.Controller
	space nvme.Namespace
	ids   nvme.Identifiers
	// limits, if there are any, are what Identify tells of the command set.
	limits nvme.CommandSetLimits
	// logs are the log pages that there are; others are zeroes.
	logs map[nvme.LogID][]byte
	// grant is the most I/O queues that a controller grants, entries the most that each
	// has; 0: what is asked for, and 128.
	grant, entries atomic.Int32
	// completions is how many completion queues that is, if it is another number.
	completions atomic.Int32
	// kato is what Get Features answers for the keep alive timeout, milliseconds.
	kato atomic.Uint32

	mu     sync.Mutex
	queues map[*fakeQueue]bool
	mem    []byte
	seen   map[string]int
	// active is what Identify answers for the namespaces behind one.
	active func(after uint32) []byte
	// discovery makes the log page for each command that reads a part of it.
	discovery func() []byte
	// answer changes what a command is answered with; false: it is not answered.
	answer func(q *fakeQueue, k *nvme.Command, e *nvme.CQE) bool
	// alter changes a success, with what it brings, when all of it is there; it reports whether it has.
	alter func(q *fakeQueue, k *nvme.Command, e *nvme.CQE, out []byte) ([]byte, bool)
}

type fakeQueue struct {
	f  *fake
	c  *nvmetcp.Controller
	id uint16

	mu   sync.Mutex
	cc   uint64
	data map[uint64][][]byte
	held []*nvme.Command
}

func newFake(t testing.TB) *fake {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &fake{t: t, ln: ln, queues: map[*fakeQueue]bool{}, mem: make([]byte, 1<<20), seen: map[string]int{}}
	f.ident = nvme.Controller{
		CntlID: 1, IOCCSZ: 4 + 512, IORCSZ: 1, SQES: 0x66, CQES: 0x44, KAS: 1, OAES: nvme.NoticeNamespace, VWC: nvme.CachePresent, CTRATT: nvme.AttrTBKAS,
		ONCS: nvme.HasCompare | nvme.HasDSM | nvme.HasWriteZeroes, FUSES: nvme.FusesCompareWrite, Subsystem: subNQN, Namespaces: 1,
	}
	f.space = nvme.Namespace{Size: 2048, Capacity: 2048, Formats: []nvme.LBAFormat{{Shift: 9}}}
	f.ids.UUID[3] = 7
	f.wg.Go(func() {
		for {
			nc, err := ln.Accept()
			if err != nil {
				return
			}
			c, err := nvmetcp.NewController(nc, nvmetcp.Config{Linger: 20 * time.Millisecond})
			if err != nil {
				continue
			}
			c.SetEntries(200)
			q := &fakeQueue{f: f, c: c, data: map[uint64][][]byte{}}
			f.mu.Lock()
			f.queues[q] = true
			f.mu.Unlock()
			c.Start(q)
		}
	})
	t.Cleanup(func() {
		ln.Close()
		f.wg.Wait()
		f.drop()
		await.True(t, "no connection is left", func() bool {
			f.mu.Lock()
			defer f.mu.Unlock()
			return len(f.queues) == 0
		})
	})
	return f
}

// drop ends every connection.
func (f *fake) drop() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for q := range f.queues {
		q.c.Terminate(errors.New("dropped"))
	}
}

func (f *fake) set(g func(q *fakeQueue, k *nvme.Command, e *nvme.CQE) bool) {
	f.mu.Lock()
	f.answer = g
	f.mu.Unlock()
}

func (f *fake) count(name string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.seen[name]
}

func (f *fake) config() Config { return config(f.ln.Addr().String()) }

// Command implements nvme.QueueUpper.
func (q *fakeQueue) Command(k *nvme.Command) {
	s := &k.SQE
	var e nvme.CQE
	e.SetCID(s.CID())
	name := s.Opcode().IOName()
	if q.id == 0 {
		name = s.Opcode().AdminName()
	}
	if s.Opcode() == nvme.OpFabrics {
		name = s.FabricsType().String()
		if s.FabricsType() == nvme.FabricsConnect {
			q.f.mu.Lock() // for who looks for the queue; the others are on this goroutine
			q.id = s.Connect().QID()
			q.f.mu.Unlock()
		}
	}
	q.f.mu.Lock()
	q.f.seen[name]++
	answer := q.f.answer
	q.f.mu.Unlock()
	if answer != nil && !answer(q, k, &e) {
		q.mu.Lock()
		q.held = append(q.held, k)
		q.mu.Unlock()
		return
	}
	if e.Status() != nvme.Success {
		q.c.Respond(k, &e)
		return
	}
	q.serve(k, &e)
}

func (q *fakeQueue) serve(k *nvme.Command, e *nvme.CQE) {
	s := &k.SQE
	f := q.f
	var out []byte
	switch {
	case s.Opcode() == nvme.OpFabrics:
		switch s.FabricsType() {
		case nvme.FabricsConnect:
			e.SetResult(e.Result() | uint64(f.ident.CntlID))
		case nvme.FabricsPropertyGet:
			switch s.Property().Offset() {
			case nvme.PropCAP:
				bits := nvme.CapCQR | nvme.CapNVM
				if f.limits != (nvme.CommandSetLimits{}) {
					bits |= nvme.CapIOCS
				}
				e.SetResult(e.Result() | uint64(nvme.NewCap(cmp.Or(int(f.entries.Load()), 128), 2, bits)))
			case nvme.PropVS:
				e.SetResult(uint64(nvme.Version14))
			case nvme.PropCSTS:
				if nvme.Config(q.cc).Shutdown() != 0 {
					e.SetResult(uint64(nvme.StatusShutdownComplete | nvme.StatusReady))
				} else {
					e.SetResult(q.cc & 1)
				}
			}
		case nvme.FabricsPropertySet:
			q.cc = s.Property().Value()
		}
	case q.id == 0:
		switch s.Opcode() {
		case nvme.AdminIdentify:
			switch s.Identify().CNS() {
			case nvme.CNSController:
				f.mu.Lock()
				out = f.ident.AppendTo(nil)
				f.mu.Unlock()
			case nvme.CNSNamespace:
				f.mu.Lock()
				out = f.space.AppendTo(nil)
				f.mu.Unlock()
			case nvme.CNSActiveNamespaces:
				f.mu.Lock()
				if f.active != nil {
					out = f.active(s.Identify().NSID())
				}
				f.mu.Unlock()
			case nvme.CNSCommandSetController:
				out = f.limits.AppendTo(nil)
			case nvme.CNSDescriptors:
				f.mu.Lock()
				out = f.ids.AppendTo(nil)
				f.mu.Unlock()
			}
		case nvme.AdminSetFeatures:
			if s.Features().ID() == nvme.FeatureQueues {
				n := s.Features().Value()
				if g := int(f.grant.Load()); g > 0 {
					n = nvme.QueueCounts(g, cmp.Or(int(f.completions.Load()), g))
				}
				e.SetResult(uint64(n))
			}
		case nvme.AdminGetFeatures:
			e.SetResult(uint64(f.kato.Load()))
		case nvme.AdminGetLogPage:
			l := s.GetLogPage()
			f.mu.Lock()
			if f.ident.MDTS > 0 && l.Length() > 4096<<f.ident.MDTS {
				f.mu.Unlock()
				e.SetStatus(nvme.InvalidField | nvme.DoNotRetry)
				break
			}
			out = make([]byte, l.Length())
			page := f.logs[l.ID()]
			if f.discovery != nil {
				page = f.discovery()
			}
			f.mu.Unlock()
			if l.Offset() < uint64(len(page)) {
				copy(out, page[l.Offset():])
			}
		case nvme.AdminAsyncEvent:
			if f.alter != nil {
				if _, hit := f.alter(q, k, e, nil); hit {
					q.c.Respond(k, e)
					return
				}
			}
			q.mu.Lock()
			q.held = append(q.held, k)
			q.mu.Unlock()
			return
		}
	case s.Opcode() == nvme.OpRead:
		at := int(s.ReadWrite().SLBA()) * 512
		out = f.mem[at:][:s.SGL().Length()]
	case len(k.Data) > 0 && s.Opcode() == nvme.OpWrite:
		copy(f.mem[s.ReadWrite().SLBA()*512:], k.Data)
	case s.Opcode() == nvme.OpWrite:
		at := int(s.ReadWrite().SLBA()) * 512
		if err := q.c.GetData(k, 0, [][]byte{f.mem[at:][:s.SGL().Length()]}); err != nil {
			q.c.Respond(k, e)
		}
		return
	}
	if f.alter != nil {
		out, _ = f.alter(q, k, e, out)
	}
	if len(out) > 0 {
		q.c.PutData(k, 0, [][]byte{out}, true)
	}
	q.c.Respond(k, e)
}

// release answers what has been held with a status and a result.
func (q *fakeQueue) release(op nvme.Opcode, s nvme.Status, result uint64) (n int) {
	q.mu.Lock()
	held := q.held
	q.held = nil
	for _, k := range held {
		if k.SQE.Opcode() != op {
			q.held = append(q.held, k)
			continue
		}
		n++
		var e nvme.CQE
		e.SetCID(k.SQE.CID())
		e.SetStatus(s)
		e.SetResult(result)
		q.c.Respond(k, &e)
	}
	q.mu.Unlock()
	q.c.Push()
	return n
}

// release does so on every queue with an identifier.
func (f *fake) release(id uint16, op nvme.Opcode, s nvme.Status, result uint64) (n int) {
	f.mu.Lock()
	var qs []*fakeQueue
	for q := range f.queues {
		if q.id == id {
			qs = append(qs, q)
		}
	}
	f.mu.Unlock()
	for _, q := range qs {
		n += q.release(op, s, result)
	}
	return n
}

// DataArrived implements nvme.QueueUpper.
func (q *fakeQueue) DataArrived(k *nvme.Command, err error) {
	var e nvme.CQE
	e.SetCID(k.SQE.CID())
	q.c.Respond(k, &e)
}

// Sent implements nvme.QueueUpper.
func (q *fakeQueue) Sent(*nvme.Command) {}

// Ended implements nvme.QueueUpper.
func (q *fakeQueue) Ended(error) {
	q.mu.Lock()
	held := q.held
	q.held = nil
	q.mu.Unlock()
	for _, k := range held {
		q.c.Respond(k, &nvme.CQE{})
	}
	q.c.Push()
	q.f.mu.Lock()
	delete(q.f.queues, q)
	q.f.mu.Unlock()
}

// Reads and writes without an answer are sent again over a new association; a compare and
// write is not.
func TestReplay(t *testing.T) {
	f := newFake(t)
	cfg := f.config()
	n := open(t, cfg)
	f.set(func(q *fakeQueue, k *nvme.Command, e *nvme.CQE) bool { return q.id == 0 })
	type result struct {
		op  blockio.Op
		err error
	}
	done := make(chan result, 4)
	start := func(op blockio.Op, n int) *blockio.Request {
		return &blockio.Request{Op: op, Buf: make([]byte, n), Done: func(r *blockio.Request) { done <- result{r.Op, r.Err} }}
	}
	n.SubmitBatch([]*blockio.Request{start(blockio.OpRead, 4096), start(blockio.OpWrite, 4096), start(blockio.OpCompareAndWrite, 1024), start(blockio.OpFlush, 0)})
	await.True(t, "every command is at the controller", func() bool { return f.count("Write")+f.count("Read")+f.count("Compare")+f.count("Flush") == 5 })
	f.set(nil)
	f.drop()
	for range 4 {
		r := <-done
		if r.op == blockio.OpCompareAndWrite && !errors.Is(r.err, blockio.ErrOutcomeUnknown) || r.op != blockio.OpCompareAndWrite && r.err != nil {
			t.Errorf("operation %d: %v", r.op, r.err)
		}
	}
	if f.count("Compare") != 1 || f.count("Read") != 2 || f.count("Write") != 3 || f.count("Flush") != 2 {
		t.Errorf("%v", f.seen)
	}
	if s := n.Stats(); s.Replayed != 3 || s.OutcomeUnknown != 1 {
		t.Errorf("%+v", s)
	}
}

// A namespace that is another one after a reconnect is not written to.
func TestChangedMeanwhile(t *testing.T) {
	for name, change := range map[string]func(*fake){
		"another UUID":  func(f *fake) { f.ids.UUID[3]++ },
		"other blocks":  func(f *fake) { f.space.Formats[0].Shift = 12 },
		"no identifier": func(f *fake) { f.ids = nvme.Identifiers{} },
	} {
		f := newFake(t)
		n := open(t, f.config())
		f.mu.Lock()
		change(f)
		f.mu.Unlock()
		f.drop()
		_, err := n.WriteAt(make([]byte, 4096), 0)
		await.True(t, "the association fails", func() bool { s, _ := n.Association().State(); return s == StateFailed })
		if _, err2 := n.WriteAt(make([]byte, 4096), 0); !errors.Is(err2, ErrChanged) {
			t.Errorf("%s: %v, %v", name, err, err2)
		}
	}
}

// A path whose namespace is another volume is down, found so after a reconnect or by a look, and serves
// again when the namespace is what it was.
func TestPathKeepsTheVolume(t *testing.T) {
	for name, find := range map[string]func(*fake, *Namespace){
		"after a reconnect": func(f *fake, _ *Namespace) { f.drop() },
		"by a look":         func(_ *fake, n *Namespace) { Look(n.Association()) },
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t)
			cfg := f.config()
			cfg.Path, cfg.ReconnectDelay = true, 20*time.Millisecond
			retries := make(chan error, 100)
			cfg.OnEvent = func(e Event) {
				if e.Kind == EventRetry {
					select {
					case retries <- e.Err:
					default:
					}
				}
			}
			n := open(t, cfg)
			f.mu.Lock()
			f.ids.UUID[3]++
			f.mu.Unlock()
			find(f, n)
			for err := range retries {
				if errors.Is(err, ErrChanged) {
					break
				}
			}
			if up, err := n.Connected(); up {
				t.Errorf("it is up: %v", err)
			}
			if _, err := n.WriteAt(make([]byte, 4096), 0); !errors.Is(err, blockio.ErrSessionLost) {
				t.Errorf("a write meanwhile: %v", err)
			}
			f.mu.Lock()
			f.ids.UUID[3]--
			f.mu.Unlock()
			if err := n.Association().WaitLive(t.Context()); err != nil {
				t.Fatal(err)
			}
			if _, err := n.WriteAt(make([]byte, 4096), 0); err != nil {
				t.Error(err)
			}
			if f.count("Write") != 1 {
				t.Errorf("%d writes have been sent", f.count("Write"))
			}
		})
	}
}

// A controller that shuts down says the names of its namespaces to nobody: that does not make them others.
func TestNamesOfAControllerThatShutsDown(t *testing.T) {
	f := newFake(t)
	cfg := f.config()
	told := make(chan error, 10)
	cfg.OnEvent = func(e Event) {
		if e.Kind == EventAsync || e.Kind == EventFailed {
			told <- e.Err
		}
	}
	n := open(t, cfg)
	f.set(func(_ *fakeQueue, k *nvme.Command, e *nvme.CQE) bool {
		if k.SQE.Opcode() == nvme.AdminIdentify && k.SQE.Identify().CNS() == nvme.CNSDescriptors {
			e.SetStatus(nvme.CommandSequenceError | nvme.DoNotRetry)
		}
		return true
	})
	Look(n.Association())
	if err := <-told; err == nil || errors.Is(err, ErrChanged) {
		t.Errorf("a look: %v", err)
	}
	f.set(nil)
	if _, err := n.WriteAt(make([]byte, 4096), 0); err != nil {
		t.Error(err)
	}
}

// The controller's cache has lost what was in it: the next flush fails, the one after it
// does not.
func TestCacheLost(t *testing.T) {
	f := newFake(t)
	f.space.CacheEpoch[0] = 1
	n := open(t, f.config())
	if _, err := n.WriteAt(make([]byte, 4096), 0); err != nil {
		t.Fatal(err)
	}
	f.mu.Lock()
	f.space.CacheEpoch[0] = 2
	f.mu.Unlock()
	f.drop()
	await.True(t, "the association is lost", func() bool { return n.Stats().Losses == 1 })
	if err := n.Flush(); !errors.Is(err, blockio.ErrCacheLost) {
		t.Error(err)
	}
	if err := n.Flush(); err != nil {
		t.Error(err)
	}
}

// What a controller says of its medium is what any other device would.
func TestDeviceErrors(t *testing.T) {
	f := newFake(t)
	n := open(t, f.config())
	for status, want := range map[nvme.Status]error{
		nvme.LBAOutOfRange: blockdev.ErrOutOfRange, nvme.CapacityExceeded: blockdev.ErrNoSpace, nvme.NamespaceWriteProtect: blockdev.ErrReadOnly,
		nvme.WriteFault: blockdev.ErrMedium,
	} {
		f.set(func(_ *fakeQueue, k *nvme.Command, e *nvme.CQE) bool {
			if k.SQE.Opcode() == nvme.OpWrite {
				e.SetStatus(status | nvme.DoNotRetry)
			}
			return true
		})
		if _, err := n.WriteAt(make([]byte, 4096), 0); !errors.Is(err, want) {
			t.Errorf("%v: %v, want %v", status, err, want)
		}
	}
}

// Statuses that ask for another try get one, others do not.
func TestRetries(t *testing.T) {
	f := newFake(t)
	n := open(t, f.config())
	left := 0
	status := nvme.Success
	f.set(func(q *fakeQueue, k *nvme.Command, e *nvme.CQE) bool {
		if q.id != 0 && left > 0 {
			left--
			e.SetStatus(status)
		}
		return true
	})
	for _, tt := range []struct {
		status nvme.Status
		again  bool
		is     error
	}{
		{nvme.CommandInterrupted, true, nil}, {nvme.NamespaceNotReady, true, nil}, {nvme.TransientTransport, true, nil},
		{nvme.CommandInterrupted | nvme.DoNotRetry, false, nil}, {nvme.ReservationConflict, false, blockio.ErrReservation}, {nvme.LBAOutOfRange | nvme.DoNotRetry, false, nil},
	} {
		f.mu.Lock()
		left, status = 2, tt.status
		f.mu.Unlock()
		_, err := n.WriteAt(make([]byte, 4096), 0)
		if (err == nil) != tt.again || tt.is != nil && !errors.Is(err, tt.is) {
			t.Errorf("%v: %v", tt.status, err)
		}
		f.mu.Lock()
		left = 0
		f.mu.Unlock()
	}
}

// A Read that succeeds with less data than it has asked for has failed.
func TestShortRead(t *testing.T) {
	f := newFake(t)
	n := open(t, f.config())
	f.set(func(q *fakeQueue, k *nvme.Command, _ *nvme.CQE) bool {
		if q.id != 0 && k.SQE.Opcode() == nvme.OpRead {
			k.SQE.SGL().SetBlock(nvme.SGLTransport, 0, 512)
		}
		return true
	})
	if _, err := n.ReadAt(make([]byte, 4096), 0); !errors.Is(err, ErrShort) {
		t.Error(err)
	}
}

// The second half of a fused operation is not sent again alone.
func TestHalfIsNotRetried(t *testing.T) {
	f := newFake(t)
	n := open(t, f.config())
	f.set(func(q *fakeQueue, k *nvme.Command, e *nvme.CQE) bool {
		if k.SQE.Fuse() == nvme.FuseSecond && f.count("Write") == 1 {
			e.SetStatus(nvme.CommandInterrupted)
		}
		return true
	})
	err := n.Do(t.Context(), &blockio.Request{Op: blockio.OpCompareAndWrite, Buf: make([]byte, 1024)})
	if se, ok := errors.AsType[*StatusError](err); !ok || se.Status != uint16(nvme.CommandInterrupted) || f.count("Write") != 1 {
		t.Errorf("%v, %d Writes", err, f.count("Write"))
	}
}

// A controller that cannot name a namespace now has not got another one in its place.
func TestNamesLater(t *testing.T) {
	f := newFake(t)
	n := open(t, f.config())
	var told atomic.Bool
	f.set(func(q *fakeQueue, k *nvme.Command, e *nvme.CQE) bool {
		if q.id == 0 && k.SQE.Opcode() == nvme.AdminIdentify && k.SQE.Identify().CNS() == nvme.CNSDescriptors && !told.Swap(true) {
			e.SetStatus(nvme.CommandInterrupted)
		}
		return true
	})
	f.drop()
	if _, err := n.WriteAt(make([]byte, 4096), 0); err != nil {
		t.Error(err)
	}
}

// A controller that has Write Zeroes, but not for this namespace, is given zeroes.
func TestZeroesRefused(t *testing.T) {
	f := newFake(t)
	n := open(t, f.config())
	if _, err := n.WriteAt(random(128<<10), 0); err != nil {
		t.Fatal(err)
	}
	f.set(func(q *fakeQueue, k *nvme.Command, e *nvme.CQE) bool {
		if q.id != 0 && k.SQE.Opcode() == nvme.OpWriteZeroes {
			e.SetStatus(nvme.CommandSizeExceeded | nvme.DoNotRetry) // as Linux' target
		}
		return true
	})
	for range 2 {
		if err := n.WriteZeroes(4096, 100<<10, true); err != nil {
			t.Fatal(err)
		}
	}
	got := make([]byte, 100<<10)
	if _, err := n.ReadAt(got, 4096); err != nil || !bytes.Equal(got, make([]byte, len(got))) {
		t.Errorf("%v, or other data", err)
	}
	if a := f.count("Write Zeroes"); a != 1 {
		t.Errorf("Write Zeroes was tried %d times", a)
	}
}

// Ranges of Dataset Management are no longer than the controller takes them.
func TestDiscardLimits(t *testing.T) {
	for _, tt := range []struct {
		name   string
		limits nvme.CommandSetLimits
		want   int64
	}{
		{"none", nvme.CommandSetLimits{}, 1 << 20},
		{"of a range", nvme.CommandSetLimits{DSMRangeBlocks: 100}, 100 * 512},
		{"of a command", nvme.CommandSetLimits{DSMBlocks: 50}, 50 * 512},
		{"both", nvme.CommandSetLimits{DSMRangeBlocks: 100, DSMBlocks: 1 << 62}, 100 * 512},
	} {
		f := newFake(t)
		f.limits = tt.limits
		n := open(t, f.config())
		var longest atomic.Int64
		f.set(func(q *fakeQueue, k *nvme.Command, _ *nvme.CQE) bool {
			if q.id != 0 && k.SQE.Opcode() == nvme.OpDatasetManagement {
				longest.Store(max(longest.Load(), int64(nvme.DSMRange(k.Data, 0).Blocks)*512))
			}
			return true
		})
		if err := n.Discard(0, 1<<20); err != nil {
			t.Fatal(err)
		}
		if longest.Load() != tt.want {
			t.Errorf("limit %s: a range of %d bytes, want %d", tt.name, longest.Load(), tt.want)
		}
	}
}

// A command without an answer costs the association, and ends with ErrTimeout.
func TestCommandTimeout(t *testing.T) {
	f := newFake(t)
	cfg := f.config()
	cfg.CommandTimeout = 300 * time.Millisecond
	n := open(t, cfg)
	f.set(func(q *fakeQueue, k *nvme.Command, e *nvme.CQE) bool { return q.id == 0 })
	_, err := n.ReadAt(make([]byte, 4096), 0)
	if !errors.Is(err, blockio.ErrTimeoutUnknown) {
		t.Error(err)
	}
	f.set(nil)
	// On a loaded machine an answer may take as long as that.
	await.True(t, "a command is answered again", func() bool { _, err := n.ReadAt(make([]byte, 4096), 0); return err == nil })
}

// Who cancels a change is told when the association is lost before it has been aborted: it may yet be carried out.
func TestCancelledAndLost(t *testing.T) {
	for _, op := range []blockio.Op{blockio.OpRead, blockio.OpWrite} {
		f := newFake(t)
		n := open(t, f.config())
		came := make(chan struct{}, 8)
		f.set(func(q *fakeQueue, k *nvme.Command, e *nvme.CQE) bool {
			if q.id == 0 && k.SQE.Opcode() == nvme.AdminAbort {
				go f.drop()
				return false
			}
			if q.id != 0 {
				came <- struct{}{}
			}
			return q.id == 0
		})
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			<-came
			cancel()
		}()
		err := n.Do(ctx, &blockio.Request{Op: op, Buf: make([]byte, 4096)})
		if !errors.Is(err, context.Canceled) || errors.Is(err, blockio.ErrOutcomeUnknown) != (op == blockio.OpWrite) {
			t.Errorf("%v: %v", op, err)
		}
		f.set(nil)
	}
}

// A controller that does not answer Keep Alive is lost.
func TestKeepAlive(t *testing.T) {
	f := newFake(t)
	cfg := f.config()
	cfg.KeepAlive = 400 * time.Millisecond
	n := open(t, cfg)
	await.True(t, "it pings", func() bool { return n.Stats().Pings >= 2 })
	f.set(func(q *fakeQueue, k *nvme.Command, e *nvme.CQE) bool { return k.SQE.Opcode() != nvme.AdminKeepAlive })
	await.True(t, "an unanswered ping ends the association", func() bool { return n.Stats().Losses >= 1 })
	f.set(nil)
	await.True(t, "the association lives again", func() bool { s, _ := n.Association().State(); return s == StateLive })
}

// A flood of events is taken at our pace.
func TestEventFlood(t *testing.T) {
	f := newFake(t)
	n := open(t, f.config())
	for range 3 {
		await.True(t, "a request for events is answered", func() bool {
			return f.release(0, nvme.AdminAsyncEvent, nvme.Success, uint64(nvme.EventNamespaceChanged)) > 0
		})
	}
	if a := f.count("Asynchronous Event Request"); a > 4 {
		t.Errorf("%d requests for events", a)
	}
	f.mu.Lock()
	f.space.Size = 1024
	f.mu.Unlock()
	await.True(t, "a request for events is answered", func() bool {
		return f.release(0, nvme.AdminAsyncEvent, nvme.Success, uint64(nvme.EventNamespaceChanged)) > 0
	})
	await.True(t, "the new size is known", func() bool { return n.Info().Size == 1024*512 })
}

// A controller that has turned out to be that of a discovery service has no queues for namespaces, whatever
// it says of them.
func TestDiscoveryHasNoNamespaces(t *testing.T) {
	f := newFake(t)
	f.ident.Type = nvme.TypeDiscovery
	if n, err := Open(t.Context(), f.config()); !errors.Is(err, blockio.ErrNoLUN) {
		t.Errorf("%v, %v", n, err)
	}
}

// What a controller says that cannot be is refused when the association is made.
func TestImpossibleControllers(t *testing.T) {
	for name, change := range map[string]func(*fake){
		"no capsule":        func(f *fake) { f.ident.IOCCSZ = 1 },
		"data offset":       func(f *fake) { f.ident.ICDOff = 4 },
		"blocks of 2^40":    func(f *fake) { f.space.Formats[0].Shift = 40 },
		"metadata":          func(f *fake) { f.space.Formats[0].Metadata = 8 },
		"2^63 blocks":       func(f *fake) { f.space.Size = 1 << 63 },
		"inactive":          func(f *fake) { f.space.Size = 0 },
		"another CNTLID":    func(f *fake) { f.answer = cntlid(2, nvme.OpFabrics) },
		"asks for proof":    func(f *fake) { f.answer = cntlid(uint64(nvme.AuthRequired), nvme.OpFabrics) },
		"no queues":         func(f *fake) { f.answer = refuse(0, nvme.AdminSetFeatures) },
		"no Identify":       func(f *fake) { f.answer = refuse(0, nvme.AdminIdentify) },
		"I/O queue refused": func(f *fake) { f.answer = refuse(1, nvme.OpFabrics) },
		"queues of 1 entry": func(f *fake) { f.entries.Store(1) }, // have room for no command
		"pages of 8 KiB": func(f *fake) {
			f.answer = func(_ *fakeQueue, k *nvme.Command, e *nvme.CQE) bool {
				if k.SQE.Opcode() == nvme.OpFabrics && k.SQE.FabricsType() == nvme.FabricsPropertyGet && k.SQE.Property().Offset() == nvme.PropCAP {
					e.SetResult(1 << 48) // MPSMIN 1
				}
				return true
			}
		},
		"an I/O queue of another": func(f *fake) {
			other := cntlid(2, nvme.OpFabrics)
			f.answer = func(q *fakeQueue, k *nvme.Command, e *nvme.CQE) bool { return q.id == 0 || other(q, k, e) }
		},
	} {
		f := newFake(t)
		change(f)
		if n, err := Open(t.Context(), f.config()); err == nil {
			t.Errorf("%s: opened", name)
			n.Close()
		} else if !strings.Contains(err.Error(), "nvm") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func cntlid(v uint64, op nvme.Opcode) func(*fakeQueue, *nvme.Command, *nvme.CQE) bool {
	return func(q *fakeQueue, k *nvme.Command, e *nvme.CQE) bool {
		if k.SQE.Opcode() == op && k.SQE.FabricsType() == nvme.FabricsConnect {
			e.SetResult(v)
		}
		return true
	}
}

func refuse(id uint16, op nvme.Opcode) func(*fakeQueue, *nvme.Command, *nvme.CQE) bool {
	return func(q *fakeQueue, k *nvme.Command, e *nvme.CQE) bool {
		if q.id == id && k.SQE.Opcode() == op {
			e.SetStatus(nvme.InvalidField | nvme.DoNotRetry)
		}
		return true
	}
}

// A list of namespaces that begins anew, or has no end, is not read for ever.
func TestEndlessNamespaces(t *testing.T) {
	for name, tt := range map[string]struct {
		first func(after uint32) uint32
		most  int // pieces
	}{
		"again":   {func(uint32) uint32 { return 1 }, 2},
		"endless": {func(after uint32) uint32 { return after + 1 }, 1<<16/nvme.MaxActive + 1},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t)
			n := open(t, f.config())
			asked := 0
			f.mu.Lock()
			f.active = func(after uint32) []byte {
				if asked++; asked > 100 { // so that the test ends whatever happens
					return make([]byte, nvme.IdentifyLen)
				}
				var ids []uint32
				for id := tt.first(after); len(ids) < nvme.MaxActive; id++ {
					ids = append(ids, id)
				}
				return nvme.AppendNSIDs(nil, ids, 0)
			}
			f.mu.Unlock()
			if ids, err := n.Association().Namespaces(t.Context()); err == nil {
				t.Errorf("%d namespaces", len(ids))
			}
			f.mu.Lock()
			defer f.mu.Unlock()
			if asked > tt.most {
				t.Errorf("asked %d times", asked)
			}
		})
	}
}

// What a controller takes at once, and in one command, is no more than it says; a limit that no transfer reaches is none.
func TestLimitsOfControllers(t *testing.T) {
	for _, tt := range []struct {
		mdts     uint8
		commands uint16
		depth    int
		longest  int64
	}{{0, 0, 64, 1 << 20}, {255, 0, 64, 1 << 20}, {1, 4, 4, 8 << 10}} {
		f := newFake(t)
		f.ident.MDTS, f.ident.MaxCmd = tt.mdts, tt.commands
		cfg := f.config()
		cfg.Queues, cfg.QueueDepth, cfg.MaxTransfer = 1, 64, 1<<20
		n := open(t, cfg)
		if d, l := n.QueueDepth(), n.Limits().MaxTransfer; d != tt.depth || l != tt.longest {
			t.Errorf("MDTS %d, MAXCMD %d: %d commands of %d bytes, want %d of %d", tt.mdts, tt.commands, d, l, tt.depth, tt.longest)
		}
	}
}

// leads makes an entry of the discovery log that leads to the fake under a name.
func (f *fake) leads(typ nvme.SubsystemType, nqn string) nvme.DiscoveryEntry {
	host, port, err := net.SplitHostPort(f.ln.Addr().String())
	if err != nil {
		f.t.Fatal(err)
	}
	return nvme.DiscoveryEntry{Transport: nvme.TransportTCP, Family: nvme.FamilyIPv4, Type: typ, Address: host, Service: port, Subsystem: nqn}
}

// Entries of two generations of the discovery log are not put together.
func TestDiscoveryLogChanges(t *testing.T) {
	f := newFake(t)
	asked := 0
	f.discovery = func() []byte {
		if asked++; asked <= 2 { // the header, and the entry
			return nvme.AppendDiscovery(nil, 1, []nvme.DiscoveryEntry{f.leads(nvme.SubsystemNVM, "nqn.old")})
		}
		return nvme.AppendDiscovery(nil, 2, []nvme.DiscoveryEntry{f.leads(nvme.SubsystemNVM, "nqn.new")})
	}
	log, err := Discover(t.Context(), Config{Address: f.ln.Addr().String(), HostNQN: hostNQN})
	if err != nil || log.Generation != 2 || len(log.Records) != 1 || log.Records[0].Subsystem != "nqn.new" {
		t.Errorf("%+v, %v", log, err)
	}
}

// A discovery service that ends the connection when its host says that it leaves has told what it knows.
func TestDiscoveryWithoutFarewell(t *testing.T) {
	f := newFake(t)
	f.ident.Type = nvme.TypeDiscovery
	f.set(func(q *fakeQueue, k *nvme.Command, _ *nvme.CQE) bool {
		s := &k.SQE
		if s.Opcode() == nvme.OpFabrics && s.FabricsType() == nvme.FabricsPropertySet && nvme.Config(s.Property().Value()).Shutdown() != 0 {
			q.c.Terminate(errors.New("it hangs up"))
			return false
		}
		return true
	})
	log, err := Discover(t.Context(), Config{Address: f.ln.Addr().String(), HostNQN: hostNQN})
	if err != nil || log == nil {
		t.Error(log, err)
	}
}

// Referrals are followed once each, and not without end.
func TestReferrals(t *testing.T) {
	f := newFake(t)
	refer := func(names ...string) {
		var l []nvme.DiscoveryEntry
		for _, n := range names {
			l = append(l, f.leads(nvme.SubsystemReferral, n))
		}
		f.mu.Lock()
		f.discovery = func() []byte { return nvme.AppendDiscovery(nil, 1, l) }
		f.mu.Unlock()
	}
	cfg := Config{Address: f.ln.Addr().String(), HostNQN: hostNQN}
	refer(nvme.DiscoveryNQN, "nqn.a") // to itself as well
	if l, err := Follow(t.Context(), cfg); err != nil || len(l) != 2 {
		t.Errorf("%d services, %v", len(l), err)
	}
	var many []string
	for i := range 40 {
		many = append(many, fmt.Sprintf("nqn.a%d", i))
	}
	refer(many...)
	if l, err := Follow(t.Context(), cfg); err == nil || len(l) != 32 {
		t.Errorf("%d services, %v", len(l), err)
	}
}

// A controller that never answers does not hold Open up longer than asked.
func TestSilentController(t *testing.T) {
	f := newFake(t)
	f.set(func(*fakeQueue, *nvme.Command, *nvme.CQE) bool { return false })
	cfg := f.config()
	cfg.ConnectTimeout = 100 * time.Millisecond
	if _, err := Open(t.Context(), cfg); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
}
