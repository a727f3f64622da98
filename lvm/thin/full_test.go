package thin

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"softiser/blockdev"
	"softiser/blockdev/null"
	"softiser/lvm/internal/lvmtest"
)

// TestFull: a full pool says so, loses nothing, and goes on when it grows.
func TestFull(t *testing.T) {
	var told []string
	p, meta, data := newPool(t, 4, func(c *Config) { c.Notice = func(s string) { told = append(told, s) } })
	must(t, p.Create(1, 1))
	d, err := p.Device(1, 100*chunk, "t", false)
	must(t, err)
	b := bytes.Repeat([]byte{7}, chunk)
	for i := range 4 {
		_, err := d.WriteAt(b, int64(i)*chunk)
		must(t, err)
	}
	if _, err := d.WriteAt(b, 4*chunk); !errors.Is(err, blockdev.ErrNoSpace) {
		t.Fatal(err)
	}
	if len(told) != 2 || !strings.Contains(told[0], "data is now 100.00% full") || !strings.Contains(told[1], "out of data") || p.Usage().Refused != 1 {
		t.Fatal(told, p.Usage())
	}
	if _, err := d.WriteAt(b, 0); err != nil {
		t.Fatal("overwriting what is mapped failed:", err)
	}
	must(t, d.Discard(0, chunk))
	_, err = d.WriteAt(b, 4*chunk) // the discarded block comes back
	must(t, err)
	data.Grow(8 * chunk)
	must(t, p.Grow())
	_, err = d.WriteAt(b, 5*chunk)
	must(t, err)
	must(t, d.Close())
	must(t, p.Close())
	check(t, meta)
}

// TestQueue: with error_when_full off, a write waits for the pool to grow.
func TestQueue(t *testing.T) {
	p, _, data := newPool(t, 1, func(c *Config) { c.ErrorWhenFull = false; c.FullWait = time.Minute })
	must(t, p.Create(1, 1))
	d, err := p.Device(1, 100*chunk, "t", false)
	must(t, err)
	b := make([]byte, 512)
	_, err = d.WriteAt(b, 0)
	must(t, err)
	done := make(chan error)
	go func() {
		_, err := d.WriteAt(b, chunk)
		done <- err
	}()
	data.Grow(2 * chunk)
	must(t, p.Grow())
	// The write may have come only after the growth; either way it succeeds.
	must(t, <-done)
	p.cfg.FullWait = time.Millisecond
	if _, err := d.WriteAt(b, 2*chunk); !errors.Is(err, blockdev.ErrNoSpace) {
		t.Fatal(err)
	}
}

// TestNoSpaceTimeout: a full pool holds its writers for a minute once, refuses
// at once from then on, and takes writes again when a block comes free.
func TestNoSpaceTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var low atomic.Int32
		p, _, _ := newPool(t, 2, func(c *Config) { c.ErrorWhenFull, c.FullWait = false, 0 })
		p.OnLowSpace(func() { low.Add(1) })
		must(t, p.Create(1, 1))
		d, err := p.Device(1, 100*chunk, "t", false)
		must(t, err)
		b := make([]byte, 512)
		began := time.Now()
		write := func(block int64) error { _, err := d.WriteAt(b, block*chunk); return err }
		must(t, write(0))
		must(t, write(1))
		synctest.Wait()
		if low.Load() != 1 { // 100 %
			t.Errorf("%d alarms", low.Load())
		}
		var wg sync.WaitGroup
		for i := range int64(4) {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * 10 * time.Second)
				if err := write(2 + i); !errors.Is(err, blockdev.ErrNoSpace) {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if d := time.Since(began); d != time.Minute {
			t.Errorf("the last writer was held until %v", d)
		}
		if err := write(9); !errors.Is(err, blockdev.ErrNoSpace) || time.Since(began) != time.Minute {
			t.Errorf("after the time-out: %v, %v", err, time.Since(began))
		}
		must(t, write(0)) // mapped
		must(t, d.Discard(0, chunk))
		must(t, write(2))
		go func() {
			time.Sleep(10*time.Second + time.Millisecond)
			if err := d.Discard(chunk, chunk); err != nil {
				t.Error(err)
			}
		}()
		must(t, write(3))
		if d := time.Since(began); d != time.Minute+10*time.Second+time.Millisecond {
			t.Errorf("a writer noticed the discard at %v", d)
		}
		if n := p.Usage().Refused; n != 5 {
			t.Errorf("%d writes were refused", n)
		}
		must(t, d.Close())
		must(t, p.Close())
		if low.Load() < 3 {
			t.Errorf("%d alarms", low.Load())
		}
	})
}

// TestSharedNodeAndLittleRoom: the first write to a block whose mapping a snapshot shares copies a node, and counts
// all over the pool change. Where the metadata has no room for them the write fails, and the pool goes on.
func TestSharedNodeAndLittleRoom(t *testing.T) {
	const blocks, apart = 30000, 119
	data, err := null.Open(null.Config{Size: 2 * blocks * chunk})
	must(t, err)
	p, err := Open(Config{Meta: lvmtest.New(1024 * blockSize).Quiet(), Data: data, ChunkSize: chunk, ErrorWhenFull: true})
	must(t, err)
	must(t, p.Create(1, 1))
	d, err := p.Device(1, blocks*chunk, "t", false)
	must(t, err)
	locked := func(f func()) {
		p.mu.Lock()
		defer p.mu.Unlock()
		f()
		must(t, p.commitLocked())
	}
	locked(func() { // as many snapshots leave it
		for b := range uint64(blocks) {
			p.data.counts.change(b, 3)
		}
		for vb := range uint64(250) {
			must(t, d.setLocked(vb, vb*apart))
		}
	})
	must(t, p.Snapshot(2, 1, 2))
	locked(func() {
		for p.meta.counts.available() > 115 {
			p.meta.counts.alloc()
		}
		p.changed = true
	})
	for _, f := range []func() error{
		func() error { _, err := d.WriteAt(make([]byte, 512), 0); return err },
		func() error { return d.Discard(chunk, chunk) },
	} {
		if err := f(); !errors.Is(err, blockdev.ErrNoSpace) || errors.Is(err, blockdev.ErrPoisoned) {
			t.Errorf("without room: %v", err)
		}
		must(t, d.Flush())
	}
	must(t, d.Close())
	must(t, p.Close())
}

// TestMetadataFull fills a tiny metadata device.
func TestMetadataFull(t *testing.T) {
	if testing.Short() {
		t.Skip("50000 writes, one after the other")
	}
	meta, data := lvmtest.New(128*blockSize), lvmtest.New(60000*chunk).Quiet()
	p, err := openPool(meta, data, nil)
	must(t, err)
	must(t, p.Create(1, 1))
	d, err := p.Device(1, 60000*chunk, "t", false)
	must(t, err)
	b := make([]byte, 512)
	r := rand.New(rand.NewPCG(1, 1))
	var full error
	written := map[int64]bool{}
	for i := 0; i < 60000 && full == nil; i++ {
		at := int64(r.IntN(60000)) * chunk
		b[0] = byte(at / chunk)
		if _, full = d.WriteAt(b, at); full == nil {
			written[at] = true
		}
	}
	if !errors.Is(full, blockdev.ErrNoSpace) || !strings.Contains(full.Error(), "metadata") {
		t.Fatal(full)
	}
	must(t, d.Flush())
	check(t, meta)
	for at := range written {
		_, err := d.ReadAt(b, at)
		must(t, err)
		if b[0] != byte(at/chunk) {
			t.Fatal("content lost")
		}
	}
	for at := range written { // room can be made
		must(t, d.Discard(at, chunk))
	}
	must(t, d.Close())
	must(t, p.Close())
	check(t, meta)
	meta.Grow(2 << 20)
	p, err = openPool(meta, data, nil)
	must(t, err)
	check(t, meta)
	must(t, p.Close())
}
