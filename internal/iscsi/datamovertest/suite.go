package datamovertest

import (
	"bytes"
	"fmt"
	"math/rand"
	"sync"
	"testing"
	"time"

	"softiser/internal/alloctest"
	"softiser/internal/iscsi"
	"softiser/internal/race"
)

// Run runs the suite with default options.
func Run(t *testing.T, pair Pair) { RunWith(t, pair, DefaultOptions()) }

// RunWith runs the suite with other settings of the two ends.
func RunWith(t *testing.T, pair Pair, o Options) {
	for _, c := range []struct {
		name string
		f    func(*testing.T, Pair, Options)
	}{
		{"Control", testControl},
		{"Data", testData},
		{"Unsolicited", testUnsolicited},
		{"ManyAtOnce", testManyAtOnce},
		{"AbortGetData", testAbortGetData},
		{"AbortPutData", testAbortPutData},
		{"ReleaseTask", testReleaseTask},
		{"BadArguments", testBadArguments},
		{"EmptyTransfer", testEmptyTransfer},
		{"TerminateGraceful", testTerminateGraceful},
		{"TerminateAbrupt", testTerminateAbrupt},
		{"TerminateEarly", testTerminateEarly},
		{"NothingAllocated", testNothingAllocated},
	} {
		t.Run(c.name, func(t *testing.T) { c.f(t, pair, o) })
	}
}

func recv[T any](t testing.TB, what string, ch <-chan T) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(deadline):
		t.Fatalf("%s did not come", what)
		panic("unreachable")
	}
}

// Control PDUs arrive whole and in order, both ways.
func testControl(t *testing.T, pair Pair, o Options) {
	s := Open(t, pair, o)
	defer s.Close()
	for n := range 200 {
		data := bytes.Repeat([]byte{byte(n)}, n%64)
		if n%2 == 1 {
			data = nil
		}
		var p iscsi.PDU
		b := p.BHS.NewNopOut()
		b.SetITT(uint32(1000 + n))
		b.SetCmdSN(1)
		if len(data) <= s.Initiator.dm.Limits().MaxControlData {
			p.Data = data
		}
		if err := s.Initiator.dm.SendControl(&p); err != nil {
			t.Fatal(err)
		}
		clear(data) // SendControl has copied
		if n%10 == 9 {
			s.Initiator.dm.Push()
			for m := n - 9; m <= n; m++ {
				r := recv(t, "NOP-In", s.Initiator.Events)
				if r.BHS.Opcode() != iscsi.OpNopIn || r.BHS.ITT() != uint32(1000+m) {
					t.Fatalf("got % x, expected the answer to %d", r.BHS, m)
				}
				for _, x := range r.Data {
					if x != byte(m) {
						t.Fatalf("NOP-In %d carries % x", m, r.Data)
					}
				}
				r.Release()
			}
		}
	}
	st := s.Initiator.dm.Stats()
	if st.PDUsOut < 200 || st.PDUsIn < 200 {
		t.Errorf("counted %+v", st)
	}
}

var sizes = []int{1, 2, 3, 511, 512, 4095, 4096, 8192, 8193, 65536, 262144 + 3, 1<<20 + 1}

// Reads and writes of all sizes and cuts.
func testData(t *testing.T, pair Pair, o Options) {
	s := Open(t, pair, o)
	defer s.Close()
	for _, n := range sizes {
		for mode := byte(0); mode < 3; mode++ {
			for _, parts := range []byte{1, 3} {
				name := fmt.Sprintf("%d bytes, cut %d, %d transfers", n, mode, parts)
				off := uint32(n % 1000)
				buf := make([]byte, n+2)
				buf[0], buf[n+1] = 0xa5, 0xa5
				if err := s.Initiator.Do(opRead, off, cut(nil, buf[1:n+1], (mode+1)%3), mode, parts); err != nil {
					t.Fatalf("read, %s: %v", name, err)
				}
				if !s.Target.holds(int(off), buf[1:n+1]) {
					t.Fatalf("read, %s: wrong data", name)
				}
				if buf[0] != 0xa5 || buf[n+1] != 0xa5 {
					t.Fatalf("read, %s: bytes around the buffer have changed", name)
				}
				data := make([]byte, n)
				rand.New(rand.NewSource(int64(n))).Read(data)
				data[0] = mode<<4 | parts
				if err := s.Initiator.Do(opWrite, off, cut(nil, data, (mode+2)%3), mode, parts); err != nil {
					t.Fatalf("write, %s: %v", name, err)
				}
				if !s.Target.holds(int(off), data) {
					t.Fatalf("write, %s: wrong data", name)
				}
			}
		}
	}
}

// Every combination of InitialR2T and ImmediateData.
func testUnsolicited(t *testing.T, pair Pair, o Options) {
	for _, initialR2T := range []bool{true, false} {
		for _, immediate := range []bool{true, false} {
			t.Run(fmt.Sprintf("InitialR2T=%v,ImmediateData=%v", initialR2T, immediate), func(t *testing.T) {
				o := o
				o.Target.InitialR2T, o.Target.ImmediateData = initialR2T, immediate
				o.Target.FirstBurstLength = 20000
				o.Target.MaxRecvDataSegmentLength = 8192
				s := Open(t, pair, o)
				defer s.Close()
				for _, n := range []int{1, 512, 8192, 8193, 19999, 20000, 20001, 300000} {
					data := make([]byte, n)
					rand.New(rand.NewSource(int64(n))).Read(data)
					if err := s.Initiator.Do(opWrite, 100, cut(nil, data, 1), 0, 1); err != nil {
						t.Fatalf("%d bytes: %v", n, err)
					}
					if !s.Target.holds(100, data) {
						t.Fatalf("%d bytes: wrong data", n)
					}
				}
			})
		}
	}
}

// Many commands from several goroutines, with data checked against a model.
func testManyAtOnce(t *testing.T, pair Pair, o Options) {
	o.Target.MaxOutstandingR2T, o.Initiator.MaxOutstandingR2T = 4, 4
	s := Open(t, pair, o)
	defer s.Close()
	var wg sync.WaitGroup
	const workers = 8
	region := diskSize / workers
	for w := range workers {
		wg.Go(func() {
			r := rand.New(rand.NewSource(int64(w)))
			model := make([]byte, region)
			base := uint32(w * region)
			s.Target.mu.Lock()
			copy(model, s.Target.Disk[base:])
			s.Target.mu.Unlock()
			buf := make([]byte, region)
			for range 60 {
				off := r.Intn(region - 1)
				n := 1 + r.Intn(min(region-off, 200000))
				if r.Intn(2) == 0 {
					n = 1 + r.Intn(min(region-off, 5000))
				}
				b := buf[:n]
				if r.Intn(2) == 0 {
					r.Read(b)
					copy(model[off:], b)
					if err := s.Initiator.Do(opWrite, base+uint32(off), cut(nil, b, byte(r.Intn(3))), byte(r.Intn(3)), byte(1+r.Intn(3))); err != nil {
						t.Errorf("write: %v", err)
						return
					}
					continue
				}
				clear(b)
				if err := s.Initiator.Do(opRead, base+uint32(off), cut(nil, b, byte(r.Intn(3))), byte(r.Intn(3)), byte(1+r.Intn(3))); err != nil {
					t.Errorf("read: %v", err)
					return
				}
				if !bytes.Equal(b, model[off:off+n]) {
					t.Errorf("worker %d: wrong data at %d, %d bytes", w, off, n)
					return
				}
			}
		})
	}
	wg.Wait()
}

// What cannot be sent is refused by the call, and harms nothing.
func testBadArguments(t *testing.T, pair Pair, o Options) {
	s := Open(t, pair, o)
	defer s.Close()
	_, cmd := s.hold(t, false, [][]byte{make([]byte, 4096)})
	for _, x := range []*iscsi.Transfer{
		{ITT: cmd.BHS.ITT(), Ref: &cmd.Ref, Len: 100, Segs: [][]byte{make([]byte, 99)}},
		{ITT: cmd.BHS.ITT(), Ref: &cmd.Ref, Len: 100, Offset: 1<<32 - 50, Segs: [][]byte{make([]byte, 100)}},
	} {
		if err := s.Target.dm.PutData(x); err == nil {
			t.Errorf("PutData took %d bytes at %d over %d", x.Len, x.Offset, len(x.Segs[0]))
		}
		if err := s.Target.dm.GetData(x); err == nil {
			t.Errorf("GetData took %d bytes at %d over %d", x.Len, x.Offset, len(x.Segs[0]))
		}
	}
	s.answer(t, cmd)
	buf := make([]byte, 64)
	if err := s.Initiator.Do(opRead, 0, [][]byte{buf}, 0, 1); err != nil {
		t.Fatal(err)
	}
}

// A transfer of nothing completes.
func testEmptyTransfer(t *testing.T, pair Pair, o Options) {
	s := Open(t, pair, o)
	defer s.Close()
	c, cmd := s.hold(t, false, [][]byte{make([]byte, 4096)})
	for _, f := range []func(*iscsi.Transfer) error{s.Target.dm.PutData, s.Target.dm.GetData} {
		x := &iscsi.Transfer{ITT: cmd.BHS.ITT(), Ref: &cmd.Ref}
		s.Target.outstanding.Add(1)
		if err := f(x); err != nil {
			t.Fatal(err)
		}
		s.Target.dm.Push()
		if y := recv(t, "completion", s.Target.Done); y != x || y.Err != nil {
			t.Fatalf("completed with %v", y.Err)
		}
	}
	s.answer(t, cmd)
	if err := c.Wait(); err != nil {
		t.Fatal(err)
	}
}

// The steady state allocates nothing, on either end.
func testNothingAllocated(t *testing.T, pair Pair, o Options) {
	if race.Enabled {
		t.Skip("the race detector allocates")
	}
	s := Open(t, pair, o)
	defer s.Close()
	s.Initiator.checkStack.Store(false)
	s.Target.checkStack.Store(false)
	small, large := [][]byte{make([]byte, 4096)}, [][]byte{make([]byte, 300000)}
	for _, c := range []struct {
		name string
		op   byte
		segs [][]byte
	}{
		{"read 4 KiB", opRead, small}, {"write 4 KiB", opWrite, small},
		{"read 300 kB", opRead, large}, {"write 300 kB", opWrite, large},
	} {
		run := func() {
			cmd := s.Initiator.Submit(c.op, 0, c.segs, 0, 1)
			s.Initiator.dm.Push()
			<-cmd.done
			s.Initiator.free <- cmd
		}
		for range 100 {
			run()
		}
		if n := alloctest.PerRun(200, run); n >= 1 {
			t.Errorf("%s: %v allocations per command", c.name, n)
		}
	}
}
