package lazy

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"softiser/blockdev"
	"softiser/blockdev/blockdevtest"
	"softiser/blockdev/mem"
	"softiser/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func store(t *testing.T, size int64, pool *blockdev.Pool) *mem.Device {
	t.Helper()
	m, err := mem.Open(mem.Config{Size: size, Pool: pool})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func detached(t *testing.T, size int64) *Device {
	t.Helper()
	d, err := New(blockdev.Info{Size: size, BlockSize: 512, PhysBlockSize: 4096, ID: "one"})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestSuite(t *testing.T) {
	blockdevtest.Run(t, blockdevtest.Backend{Direct: true, Open: func(t *testing.T, size int64, pool *blockdev.Pool) blockdev.Device {
		d := detached(t, size)
		if err := d.Attach(store(t, size, pool)); err != nil {
			t.Fatal(err)
		}
		return d
	}})
}

// Without a store every operation says so, and what needs none is told.
func TestDetached(t *testing.T) {
	d := detached(t, 1<<20)
	defer d.Close()
	var l blockdev.Lease
	p := make([]byte, 512)
	for name, op := range map[string]func() error{
		"LeaseRead":   func() error { return d.LeaseRead(&l, 0, 512, blockdev.Wait) },
		"LeaseWrite":  func() error { return d.LeaseWrite(&l, 0, 512, blockdev.Wait) },
		"ReadAt":      func() error { _, err := d.ReadAt(p, 0); return err },
		"WriteAt":     func() error { _, err := d.WriteAt(p, 0); return err },
		"Flush":       d.Flush,
		"FlushRange":  func() error { return d.FlushRange(0, 512) },
		"Discard":     func() error { return d.Discard(0, 512) },
		"WriteZeroes": func() error { return d.WriteZeroes(0, 512, true) },
		"Extents":     func() error { _, err := d.Extents(0, 512); return err },
		"Resize":      func() error { return d.Resize(2 << 20) },
	} {
		if err := op(); !errors.Is(err, blockdev.ErrInactive) {
			t.Errorf("%s = %v, want ErrInactive", name, err)
		}
	}
	if i := d.Info(); i.Size != 1<<20 || i.BlockSize != 512 {
		t.Errorf("Info = %+v", i)
	}
}

// A store is handed back when the last lease has been released, what is committed by then
// is in it, and nothing enters meanwhile.
func TestDetachWaitsForLeases(t *testing.T) {
	d, m := detached(t, 1<<20), store(t, 1<<20, nil)
	defer m.Close()
	if err := d.Attach(m); err != nil {
		t.Fatal(err)
	}
	var l blockdev.Lease
	if err := d.LeaseWrite(&l, 4096, 4096, blockdev.Wait); err != nil {
		t.Fatal(err)
	}
	now, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := d.Detach(now); !errors.Is(err, context.Canceled) {
		t.Fatalf("Detach under a lease = %v", err)
	}
	if err := d.Flush(); !errors.Is(err, blockdev.ErrInactive) {
		t.Errorf("Flush behind Detach = %v, want ErrInactive", err)
	}
	if err := d.Attach(m); err == nil {
		t.Error("a store was attached while the last one is in use")
	}
	copy(l.Segs[0], bytes.Repeat([]byte{7}, 4096))
	if err := l.Commit(false); err != nil {
		t.Error(err)
	}
	l.Release()
	got, err := d.Detach(now)
	if err != nil || got != blockdev.Device(m) {
		t.Fatalf("Detach = %v, %v", got, err)
	}
	b := make([]byte, 512)
	if _, err := m.ReadAt(b, 4096); err != nil || b[0] != 7 {
		t.Errorf("what was committed is not there: %d, %v", b[0], err)
	}
}

// What a store has more than was told counts as a resize; what has less, or other blocks,
// is refused, and the device is as it was.
func TestAttachOther(t *testing.T) {
	d := detached(t, 1<<20)
	var told []int64
	defer d.OnResize(func(i blockdev.Info) { told = append(told, i.Size) })()
	small := store(t, 1<<19, nil)
	defer small.Close()
	if err := d.Attach(small); err == nil {
		t.Fatal("a smaller store was attached")
	}
	blocks, err := mem.Open(mem.Config{Size: 1 << 20, BlockSize: 4096})
	if err != nil {
		t.Fatal(err)
	}
	defer blocks.Close()
	if err := d.Attach(blocks); err == nil {
		t.Fatal("a store of other blocks was attached")
	}
	if d.Attached() || len(told) > 0 || d.Info().Size != 1<<20 {
		t.Fatalf("attached %v, told %v, size %d after refusals", d.Attached(), told, d.Info().Size)
	}
	if err := d.Attach(store(t, 2<<20, nil)); err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if len(told) != 1 || told[0] != 2<<20 {
		t.Errorf("told %v, want one resize", told)
	}
	if i := d.Info(); i.ID != "one" || i.Size != 2<<20 {
		t.Errorf("Info = %+v", i)
	}
}

// teller is a store whose notifications come when the test wants it.
type teller struct {
	*mem.Device
	size    int64
	notify  func(blockdev.Info)
	closing func()
}

func (s *teller) Info() blockdev.Info {
	i := s.Device.Info()
	i.Size = s.size
	return i
}

func (s *teller) OnResize(f func(blockdev.Info)) func() {
	s.notify = f
	return func() {}
}

func (s *teller) Close() error {
	if s.closing != nil {
		s.closing()
	}
	return s.Device.Close()
}

func attached(t *testing.T, d *Device, size int64) *teller {
	t.Helper()
	s := &teller{Device: store(t, size, nil), size: size}
	if err := d.Attach(s); err != nil {
		t.Fatal(err)
	}
	return s
}

// What a store tells late, when it has gone and another one is there, is not taken for the size.
func TestToldLate(t *testing.T) {
	d := detached(t, 1<<20)
	first := attached(t, d, 2<<20)
	if _, err := d.Detach(t.Context()); err != nil {
		t.Fatal(err)
	}
	attached(t, d, 4<<20)
	defer d.Close()
	defer first.Device.Close()
	told := int64(0)
	defer d.OnResize(func(i blockdev.Info) { told = i.Size })()
	first.size = 3 << 20
	first.notify(first.Info())
	if size := d.Info().Size; size != 4<<20 || told != 0 {
		t.Errorf("%d bytes, told %d", size, told)
	}
}

// A store may tell of a size while it is being closed: one with a lock of its own for both.
func TestToldWhileClosing(t *testing.T) {
	d := detached(t, 1<<20)
	s := attached(t, d, 2<<20)
	defer d.OnResize(func(blockdev.Info) {})()
	s.closing = func() {
		var wg sync.WaitGroup
		wg.Go(func() { s.notify(s.Info()) })
		wg.Wait()
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

// Of two sizes that are told at once the newer one is told last.
func TestToldLast(t *testing.T) {
	d := detached(t, 1<<20)
	s := attached(t, d, 1<<20)
	defer d.Close()
	entered, release := make(chan struct{}), make(chan struct{})
	var last atomic.Int64
	defer d.OnResize(func(i blockdev.Info) {
		if i.Size == 2<<20 {
			close(entered)
			<-release
		}
		last.Store(i.Size)
	})()
	var wg sync.WaitGroup
	var size atomic.Int64
	tell := func(n int64) {
		i := s.Info()
		i.Size = n
		wg.Go(func() { s.notify(i); size.Store(n) })
	}
	s.size = 2 << 20
	tell(2 << 20)
	<-entered
	s.size = 3 << 20
	tell(3 << 20)
	for i := 0; i < 20 && size.Load() == 0; i++ {
		time.Sleep(time.Millisecond) // who does not wait for the first one has told by then; who does would wait for ever
	}
	close(release)
	wg.Wait()
	if n := last.Load(); n != 3<<20 || d.Info().Size != n {
		t.Errorf("told %d last, it has %d", n, d.Info().Size)
	}
}
