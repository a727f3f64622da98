package faulty

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"softiser/blockdev"
	"softiser/blockdev/blockdevtest"
	"softiser/blockdev/mem"
	"softiser/internal/await"
)

func open(t *testing.T, size int64, pool *blockdev.Pool, rules ...Rule) *Device {
	t.Helper()
	m, err := mem.Open(mem.Config{Name: t.Name(), Size: size, Pool: pool})
	if err != nil {
		t.Fatal(err)
	}
	if pool == nil {
		pool = blockdev.DefaultPool()
	}
	d := NewPool(m, pool, 1, rules...)
	t.Cleanup(func() { d.Close() })
	return d
}

// TestConformance: without rules nothing is wrong, and slow is still correct.
func TestConformance(t *testing.T) {
	for name, rules := range map[string][]Rule{"no rules": nil, "slow": {{Op: All, Chance: 0.05, Delay: time.Microsecond}}} {
		t.Run(name, func(t *testing.T) {
			blockdevtest.Run(t, blockdevtest.Backend{
				Open: func(t *testing.T, size int64, pool *blockdev.Pool) blockdev.Device {
					return open(t, size, pool, rules...)
				},
			})
		})
	}
}

func TestRules(t *testing.T) {
	boom := errors.New("boom")
	d := open(t, 1<<20, nil, Rule{Op: Read, Off: 4096, Len: 4096, Err: boom, After: 1, Times: 2})
	p := make([]byte, 4096)
	read := func(off int64) error { _, err := d.ReadAt(p, off); return err }
	for i, want := range []error{nil, boom, boom, nil} {
		if err := read(4096); err != want {
			t.Errorf("read %d = %v, want %v", i, err, want)
		}
		if err := read(8192); err != nil {
			t.Errorf("read beside it = %v", err)
		}
	}
	if d.Hits() != 2 {
		t.Errorf("Hits = %d, want 2", d.Hits())
	}
	var l blockdev.Lease
	for _, c := range []struct {
		op   Op
		call func() error
	}{
		{Read, func() error { return d.LeaseRead(&l, 0, 512, blockdev.Wait) }},
		{Lease, func() error { return d.LeaseWrite(&l, 0, 512, blockdev.Wait) }},
		{Write, func() error { _, err := d.WriteAt(p, 0); return err }},
		{Write, func() error {
			if err := d.LeaseWrite(&l, 0, 512, blockdev.Wait); err != nil {
				return err
			}
			return l.Commit(false)
		}},
		{Flush, func() error {
			if err := d.LeaseWrite(&l, 0, 512, blockdev.Wait); err != nil {
				return err
			}
			return l.Commit(true)
		}},
		{Flush, d.Flush},
		{Flush, func() error { return d.FlushRange(0, 512) }},
		{Discard, func() error { return d.Discard(0, 512) }},
		{Discard, func() error { return d.WriteZeroes(0, 512, false) }},
	} {
		d.SetRules(Rule{Op: c.op, Err: boom})
		if err := c.call(); err != boom {
			t.Errorf("op %#x = %v, want the rule's error", c.op, err)
		}
		l.Release()
		d.SetRules(Rule{Op: All &^ c.op &^ Lease &^ Write, Err: boom})
		if err := c.call(); err != nil {
			t.Errorf("op %#x = %v, although the rule is for others", c.op, err)
		}
		l.Release()
	}
}

func TestTornAndLost(t *testing.T) {
	d := open(t, 1<<20, nil, Rule{Op: Write, Torn: true, Times: 2}, Rule{Op: Write, Lost: true, Times: 2})
	p := bytes.Repeat([]byte{5}, 65536)
	var l blockdev.Lease
	write := func(lease bool) error {
		if !lease {
			_, err := d.WriteAt(p, 0)
			return err
		}
		if err := d.LeaseWrite(&l, 0, len(p), blockdev.Wait); err != nil {
			return err
		}
		defer l.Release()
		copy(l.Segs[0], p)
		return l.Commit(false)
	}
	count := func() (n int) {
		got := make([]byte, len(p))
		if _, err := d.ReadAt(got, 0); err != nil {
			t.Fatal(err)
		}
		for i := 0; i < len(got); i += 512 {
			switch b := got[i : i+512]; {
			case bytes.Equal(b, p[:512]):
				n++
			case !bytes.Equal(b, make([]byte, 512)):
				t.Error("a block is torn inside")
			}
		}
		return n
	}
	for _, lease := range []bool{false, true} {
		if err := d.WriteZeroes(0, 65536, true); err != nil {
			t.Fatal(err)
		}
		if err := write(lease); !errors.Is(err, blockdev.ErrMedium) {
			t.Errorf("torn write = %v, want ErrMedium", err)
		}
		if n := count(); n == 0 || n == 128 {
			t.Errorf("%d of 128 blocks of a torn write arrived", n)
		}
	}
	if err := d.WriteZeroes(0, 65536, true); err != nil {
		t.Fatal(err)
	}
	for _, lease := range []bool{false, true} {
		if err := write(lease); err != nil {
			t.Errorf("lost write = %v, want success", err)
		}
		if n := count(); n != 0 {
			t.Errorf("%d blocks of a lost write arrived", n)
		}
	}
	if err := write(true); err != nil || count() != 128 {
		t.Errorf("the rules still act: %v", err)
	}
}

func TestDelay(t *testing.T) {
	d := open(t, 1<<20, nil, Rule{Op: Read, Delay: time.Second}, Rule{Op: Read, Off: 4096, Len: 512, Delay: time.Minute})
	var slept time.Duration
	d.sleep = func(n time.Duration) { slept += n }
	var l blockdev.Lease
	if err := d.LeaseRead(&l, 0, 512, blockdev.NoWait); !errors.Is(err, blockdev.ErrWouldBlock) {
		t.Errorf("NoWait on a slow device = %v, want ErrWouldBlock", err)
	}
	if err := d.LeaseRead(&l, 4096, 512, blockdev.Wait); err != nil {
		t.Fatal(err)
	}
	l.Release()
	if slept != time.Minute+time.Second {
		t.Errorf("slept %v, want both delays", slept)
	}
}

// TestHold: what a rule holds waits for its end, fails or goes on then, and never blocks
// those who do not wait.
func TestHold(t *testing.T) {
	boom := errors.New("boom")
	gate := make(chan struct{})
	d := open(t, 1<<20, nil, Rule{Op: Read, Hold: gate}, Rule{Op: Write, Hold: gate, Err: boom})
	var l blockdev.Lease
	if err := d.LeaseRead(&l, 0, 512, blockdev.NoWait); !errors.Is(err, blockdev.ErrWouldBlock) {
		t.Errorf("NoWait on a device that stalls = %v, want ErrWouldBlock", err)
	}
	read, written := make(chan error, 1), make(chan error, 1)
	go func() { _, err := d.ReadAt(make([]byte, 512), 0); read <- err }()
	go func() { _, err := d.WriteAt(make([]byte, 512), 0); written <- err }()
	await.True(t, "both are held", func() bool { return d.Held() == 2 })
	close(gate)
	if r, w := <-read, <-written; r != nil || w != boom || d.Held() != 0 {
		t.Errorf("read %v, written %v; %d are held", r, w, d.Held())
	}
	if err := d.LeaseRead(&l, 0, 512, blockdev.NoWait); err != nil {
		t.Errorf("NoWait after the stall = %v", err)
	}
	l.Release()
}

// TestSeed: the same seed gives the same faults.
func TestSeed(t *testing.T) {
	run := func(seed uint64) (s string) {
		m, err := mem.Open(mem.Config{Size: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		d := New(m, seed, Rule{Op: Read, Chance: 0.5, Err: blockdev.ErrMedium})
		defer d.Close()
		for range 64 {
			if _, err := d.ReadAt(make([]byte, 512), 0); err != nil {
				s += "x"
			} else {
				s += "."
			}
		}
		return s
	}
	if a, b := run(1), run(1); a != b {
		t.Errorf("two runs differ:\n%s\n%s", a, b)
	}
	if run(1) == run(2) {
		t.Error("the seed does nothing")
	}
}
