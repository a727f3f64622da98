package queuetest

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"softiser/internal/alloctest"
	"softiser/internal/await"
	"softiser/internal/nvme"
	"softiser/internal/race"
	"softiser/internal/segs"
)

// Run runs the suite.
func Run(t *testing.T, pair Pair) {
	for _, c := range []struct {
		name string
		f    func(*testing.T, Pair)
	}{
		{"Data", testData},
		{"ManyAtOnce", testManyAtOnce},
		{"FromCompleted", testFromCompleted},
		{"AnyOrder", testAnyOrder},
		{"Room", testRoom},
		{"SlotInUse", testSlotInUse},
		{"Cancel", testCancel},
		{"CancelAmid", testCancelAmid},
		{"Faults", testFaults},
		{"UnreadableData", testUnreadableData},
		{"EndInOrder", testEndInOrder},
		{"EndAtOnce", testEndAtOnce},
		{"EndEarly", testEndEarly},
		{"NothingAllocated", testNothingAllocated},
	} {
		t.Run(c.name, func(t *testing.T) { c.f(t, pair) })
	}
}

// open starts a pair: a queue and the disk that it talks to.
func open(t testing.TB, pair Pair, inCapsule int, mem []byte) (*Queue, *Disk) {
	t.Helper()
	q, d := connect(t, pair, inCapsule, mem)
	q.H.Start(q)
	return q, d
}

// connect is open but for the start of the host.
func connect(t testing.TB, pair Pair, inCapsule int, mem []byte) (q *Queue, d *Disk) {
	t.Helper()
	h := pair(t, inCapsule, func(c Controller) {
		d = NewDisk(t, c, mem)
		c.SetEntries(Entries)
		c.Start(d)
	})
	return NewQueue(t, h, Entries), d
}

// Reads and writes of all lengths, in pieces, in the capsule and not; the response by
// itself, or folded into the data, or behind data that has left before it was known.
func testData(t *testing.T, pair Pair) {
	mem := make([]byte, 3<<20)
	for _, inCapsule := range []int{0, 1024, 4096} {
		for _, o := range []DiskOptions{{}, {NoSQHead: true}, {NoSQHead: true, Early: true}} {
			q, d := open(t, pair, inCapsule, mem)
			d.Set(o)
			if d.C.MaxInCapsule() < inCapsule {
				t.Fatalf("capsules have room for %d bytes", d.C.MaxInCapsule())
			}
			for i, n := range []int{1, 2, 3, 512, 1024, 4096, 4097, 8192, 16<<10 + 1, 100_001, 1<<20 + 1} {
				checkData(t, q, d, inCapsule, i, n)
			}
			if s, err := q.Do(q.Set(0, nvme.OpFlush, 0)); !s.OK() || err != nil {
				t.Errorf("flush: %v, %v", s, err)
			}
			if s, err := q.Do(q.Set(0, nvme.OpRead, 4<<20, make([]byte, 512))); s != nvme.LBAOutOfRange || err != nil {
				t.Errorf("a read that fails: %v, %v", s, err)
			}
			if q.H.MaxTransfer() < 8<<20 || !strings.HasPrefix(q.H.Describe(), "NVMe/") || !strings.HasPrefix(d.C.Describe(), "NVMe/") {
				t.Errorf("%d, %s, %s", q.H.MaxTransfer(), q.H.Describe(), d.C.Describe())
			}
			n, _ := d.Commands()
			if s := q.H.Stats(); s.PDUsOut < uint64(n) || s.PDUsIn == 0 || s.SendCalls == 0 || s.ReceiveCalls == 0 {
				t.Errorf("%+v", s)
			}
			await.True(t, "nothing waits for the host to read, and something has been read", func() bool {
				waiting, sent := d.C.Backlog()
				return !waiting && sent > 0
			})
			q.Close(d)
		}
	}
}

// checkData writes n bytes at at and reads them back.
func checkData(t *testing.T, q *Queue, d *Disk, inCapsule, at, n int) {
	t.Helper()
	data := Pattern(n, byte(n+inCapsule))
	_, before := d.Commands()
	if s, err := q.Do(q.Set(at, nvme.OpWrite, at, data[:n/3], nil, data[n/3:])); !s.OK() || err != nil {
		t.Fatalf("write of %d bytes: %v, %v", n, s, err)
	}
	d.Fence()
	if !bytes.Equal(d.Mem[at:at+n], data) {
		t.Fatalf("a write of %d bytes has arrived damaged", n)
	}
	if _, inside := d.Commands(); (inside > before) != (n <= inCapsule) {
		t.Errorf("%d bytes to a controller that takes %d in the capsule: %v", n, inCapsule, inside > before)
	}
	room := bytes.Repeat([]byte{0xA5}, n+2)
	got := room[1 : n+1]
	c := q.Set(at, nvme.OpRead, at, got[:n/2], nil, got[n/2:])
	if s, err := q.Do(c); !s.OK() || err != nil || int(c.Received) != n || !bytes.Equal(got, data) {
		t.Fatalf("read of %d bytes: %v, %v, %d have come", n, s, err, c.Received)
	}
	if room[0] != 0xA5 || room[n+1] != 0xA5 {
		t.Errorf("a read of %d bytes wrote to memory beside its own", n)
	}
}

// Full queues, filled again as commands are answered, from whatever goroutine.
func testManyAtOnce(t *testing.T, pair Pair) {
	mem := Pattern(1<<20, 1)
	q, d := open(t, pair, 4096, mem)
	const size = 8192
	bufs := make([][]byte, Entries)
	next := func(i, round int) {
		c := q.Set(i, []nvme.Opcode{nvme.OpRead, nvme.OpWrite, nvme.OpFlush, nvme.OpWrite}[(i+round)%4], i*size, bufs[i][:size>>(round%3)])
		if c.SQE.Opcode() == nvme.OpFlush {
			c.Data = nil
		}
		q.H.Submit(c)
		q.H.Push()
	}
	for i := range bufs {
		bufs[i] = bytes.Clone(mem[i*size:][:size])
		next(i, i)
	}
	rounds := 1500
	if testing.Short() {
		rounds = 300
	}
	for r := range rounds {
		c := q.Wait()
		n := segs.Total(c.Data)
		if !c.CQE.Status().OK() || c.Err != nil || !bytes.Equal(bufs[c.Slot][:n], mem[c.Slot*size:][:n]) {
			t.Fatalf("round %d, slot %d: %v, %v", r, c.Slot, c.CQE.Status(), c.Err)
		}
		if r < rounds-Entries {
			next(c.Slot, r)
		}
	}
	q.Close(d)
}

// What is submitted from Completed leaves without a Push.
func testFromCompleted(t *testing.T, pair Pair) {
	mem := Pattern(1<<16, 2)
	q, d := connect(t, pair, 4096, mem)
	var mu sync.Mutex
	left := 40 * Entries
	q.Again = func(*nvme.HostCommand) bool {
		mu.Lock()
		defer mu.Unlock()
		left--
		return left >= Entries
	}
	q.H.Start(q)
	buf := make([]byte, Entries*1024)
	for i := range Entries {
		q.H.Submit(q.Set(i, nvme.OpRead, i*1024, buf[i*1024:][:1024]))
	}
	q.H.Push()
	for range Entries {
		if c := q.Wait(); !c.CQE.Status().OK() || c.Err != nil {
			t.Fatal(c.CQE.Status(), c.Err)
		}
	}
	if !bytes.Equal(buf, mem[:len(buf)]) {
		t.Error("other data")
	}
	if n, _ := d.Commands(); n != 40*Entries {
		t.Errorf("%d commands came up", n)
	}
	q.Close(d)
}

// Commands are answered in any order, by another goroutine than the one that brought them.
func testAnyOrder(t *testing.T, pair Pair) {
	mem := Pattern(1<<20, 3)
	q, d := open(t, pair, 1024, mem)
	held := make(chan *nvme.Command, Entries)
	d.Hold(func(k *nvme.Command) bool { held <- k; return true })
	rnd := rand.New(rand.NewPCG(1, 2))
	bufs := make([][]byte, Entries)
	for round := range 20 {
		for i := range bufs {
			n := []int{512, 4096, 20_000}[rnd.IntN(3)]
			at := i * 32768
			op := []nvme.Opcode{nvme.OpRead, nvme.OpWrite}[rnd.IntN(2)]
			bufs[i] = make([]byte, n)
			if op == nvme.OpWrite {
				copy(bufs[i], mem[at:])
			}
			q.H.Submit(q.Set(i, op, at, bufs[i]))
		}
		q.H.Push()
		var all []*nvme.Command
		for range bufs {
			all = append(all, recv(t, "a command", held))
		}
		rnd.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		for i, k := range all {
			d.Execute(k)
			if i%5 == 0 {
				d.C.Push()
			}
		}
		d.C.Push()
		for range bufs {
			c := q.Wait()
			if b := bufs[c.Slot]; !c.CQE.Status().OK() || c.Err != nil || !bytes.Equal(b, mem[c.Slot*32768:][:len(b)]) {
				t.Fatalf("round %d, slot %d: %v, %v", round, c.Slot, c.CQE.Status(), c.Err)
			}
		}
	}
	q.Close(d)
}

// Memory that cannot be written fails its command, at either end, and nothing else.
func testFaults(t *testing.T, pair Pair) {
	for _, n := range []int{16 << 10, 256 << 10} {
		q, d := open(t, pair, 4096, faulty(t))
		if s, err := q.Do(q.Set(0, nvme.OpWrite, 4096, make([]byte, n))); s != nvme.DataTransferError || err != nil {
			t.Errorf("write of %d bytes to memory that faults: %v, %v", n, s, err)
		}
		if _, err := q.Do(q.Set(0, nvme.OpRead, 0, faulty(t)[4096:][:4096], faulty(t)[8192:][:4096])); err != nvme.ErrMemoryFault {
			t.Errorf("read to memory that faults: %v", err)
		}
		data, got := Pattern(8192, 4), make([]byte, 8192)
		if s, err := q.Do(q.Set(1, nvme.OpWrite, 0, data)); !s.OK() || err != nil {
			t.Error(s, err)
		}
		if s, err := q.Do(q.Set(1, nvme.OpRead, 0, got)); !s.OK() || err != nil || !bytes.Equal(got, data) {
			t.Error(s, err)
		}
		q.Close(d)
	}
}

// Data that cannot be read is not sent: the connection ends instead.
func testUnreadableData(t *testing.T, pair Pair) {
	q, d := open(t, pair, 4096, faulty(t))
	q.H.Submit(q.Set(0, nvme.OpRead, 0, make([]byte, 100_000)))
	q.H.Push()
	if err := d.Over(); err == nil {
		t.Error("data that is not there was sent")
	}
	if q.End(); q.Done() != 0 {
		t.Error("the command was completed")
	}
}

// Nothing is allocated for a command, at either end.
func testNothingAllocated(t *testing.T, pair Pair) {
	if testing.Short() || race.Enabled {
		t.Skip("allocations are counted without the race detector, and take their time")
	}
	q, d := open(t, pair, 4096, make([]byte, 1<<20))
	q.quick.Store(true)
	d.quick.Store(true)
	d.mu.Lock()
	for i := range 4 * Entries { // the disk's own map
		d.arrived[i] = nil
	}
	clear(d.arrived)
	d.mu.Unlock()
	buf := [][]byte{make([]byte, 4096), make([]byte, 65536)}
	for _, c := range []struct {
		op   nvme.Opcode
		data [][]byte
	}{{nvme.OpRead, buf[:1]}, {nvme.OpRead, buf}, {nvme.OpWrite, buf[:1]}, {nvme.OpWrite, buf[1:]}, {nvme.OpFlush, nil}} {
		k := q.Set(0, c.op, 0)
		bad := false
		once := func() {
			k.SQE.Init(c.op, 1)
			k.Data = c.data
			q.H.Submit(k)
			q.H.Push()
			<-q.completed
			bad = bad || !k.CQE.Status().OK() || k.Err != nil
		}
		for range 200 { // pools fill
			once()
		}
		if n := alloctest.PerRun(200, once); n >= 1 || bad {
			t.Errorf("%s: %.1f allocations, failed: %v", fmt.Sprintf("%s of %d", c.op.IOName(), len(c.data)), n, bad)
		}
	}
	q.Close(d)
}
