package thin

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"softiser/blockdev"
	"softiser/lvm/internal/lvmtest"
)

const chunk = 64 << 10

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// check runs Debian's thin_check over the metadata, if it is installed.
func check(t testing.TB, meta *lvmtest.Disk) {
	t.Helper()
	bin, err := exec.LookPath("thin_check")
	if err != nil {
		bin = "/usr/sbin/thin_check"
		if _, err := os.Stat(bin); err != nil {
			return
		}
	}
	b := make([]byte, meta.Info().Size)
	_, err = meta.ReadAt(b, 0)
	must(t, err)
	f := filepath.Join(t.TempDir(), "meta")
	must(t, os.WriteFile(f, b, 0o600))
	if out, err := exec.Command(bin, f).CombinedOutput(); err != nil {
		keep := "/tmp/thin-bad-meta"
		os.WriteFile(keep, b, 0o600)
		t.Fatalf("thin_check: %v (metadata kept in %s)\n%s", err, keep, out)
	}
}

func newPool(t testing.TB, blocks int, o func(*Config)) (*Pool, *lvmtest.Disk, *lvmtest.Disk) {
	t.Helper()
	meta, data := lvmtest.New(2<<20), lvmtest.New(int64(blocks)*chunk)
	p, err := openPool(meta, data, o)
	must(t, err)
	return p, meta, data
}

func openPool(meta, data *lvmtest.Disk, o func(*Config)) (*Pool, error) {
	c := Config{Meta: meta, Data: data, ChunkSize: chunk, Zero: true, Discard: true, ErrorWhenFull: true}
	if o != nil {
		o(&c)
	}
	return Open(c)
}

func TestFormat(t *testing.T) {
	p, meta, data := newPool(t, 64, nil)
	check(t, meta)
	must(t, p.Create(1, 1))
	check(t, meta)
	if err := p.Create(1, 2); !errors.Is(err, ErrExists) {
		t.Fatal(err)
	}
	if err := p.Delete(9, 2); !errors.Is(err, ErrNoDevice) {
		t.Fatal(err)
	}
	if err := p.Snapshot(2, 9, 2); !errors.Is(err, ErrNoDevice) {
		t.Fatal(err)
	}
	must(t, p.Close())
	p, err := openPool(meta, data, nil)
	must(t, err)
	if p.Transaction() != 1 {
		t.Fatal(p.Transaction())
	}
	must(t, p.Delete(1, 2))
	must(t, p.Close())
	check(t, meta)
	if u := p.Usage(); u.DataUsed != 0 {
		t.Fatalf("%+v", u)
	}
}

// TestConcurrent has everybody write one device while others are snapshotted
// and discarded.
func TestConcurrent(t *testing.T) {
	p, meta, _ := newPool(t, 2000, nil)
	const n = 4
	var wg sync.WaitGroup
	for w := range uint64(n) {
		must(t, p.Create(w+1, w+1))
	}
	for w := range uint64(n) {
		wg.Add(1)
		go func() {
			defer wg.Done()
			d, err := p.Device(w+1, volSize, "t", false)
			if err != nil {
				t.Error(err)
				return
			}
			r := rand.New(rand.NewPCG(w, 1))
			model := make([]byte, volSize)
			buf := make([]byte, 8192)
			for i := range 200 {
				off := r.IntN((volSize-8192)/512) * 512
				for j := range buf {
					buf[j] = byte(r.Uint32())
				}
				switch r.IntN(8) {
				case 0:
					clear(buf)
					err = d.Discard(int64(off), 8192)
				case 1:
					off, err = len(model), d.Flush()
				case 2:
					off, err = len(model), p.Snapshot(100+w*1000+uint64(i), w+1, 1)
				default:
					_, err = d.WriteAt(buf, int64(off))
				}
				if err != nil {
					t.Error(err)
					return
				}
				copy(model[off:], buf) // nothing where nothing was written
			}
			got := make([]byte, volSize)
			if _, err := d.ReadAt(got, 0); err != nil || !bytes.Equal(got, model) {
				t.Errorf("device %d differs: %v", w+1, err)
			}
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		}()
	}
	wg.Wait()
	must(t, p.Close())
	check(t, meta)
}

// TestOldLease: a block that is freed under an open lease is not given to
// anybody else before the lease ends.
func TestOldLease(t *testing.T) {
	p, _, _ := newPool(t, 2, nil)
	must(t, p.Create(1, 1))
	d, err := p.Device(1, 100*chunk, "t", false)
	must(t, err)
	b := bytes.Repeat([]byte{1}, chunk)
	for i := range 2 {
		_, err = d.WriteAt(b, int64(i)*chunk)
		must(t, err)
	}
	var l blockdev.Lease
	must(t, d.LeaseRead(&l, 0, chunk, blockdev.Wait))
	must(t, d.Discard(0, chunk))
	must(t, p.Commit())
	if _, err := d.WriteAt(b, 5*chunk); !errors.Is(err, blockdev.ErrNoSpace) {
		t.Fatal("a block was reused under a lease:", err)
	}
	l.Release()
	_, err = d.WriteAt(b, 5*chunk)
	must(t, err)
}

// TestOnChange: whoever follows the pool sees every level that lasts, and calls
// do not overlap.
func TestOnChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _, data := newPool(t, 8, nil)
		must(t, p.Create(1, 1))
		d, err := p.Device(1, 100*chunk, "t", false)
		must(t, err)
		var in, calls atomic.Int32
		var used, total atomic.Uint64
		cancel := p.OnChange(func() {
			if in.Add(1) != 1 {
				t.Error("two calls at once")
			}
			u := p.Usage()
			used.Store(u.DataUsed)
			total.Store(u.DataBlocks)
			calls.Add(1)
			in.Add(-1)
		})
		is := func(what string, u, n uint64) {
			t.Helper()
			synctest.Wait()
			if used.Load() != u || total.Load() != n || calls.Swap(0) == 0 {
				t.Errorf("%s: %d of %d were seen, not %d of %d", what, used.Load(), total.Load(), u, n)
			}
		}
		var wg sync.WaitGroup
		for i := range int64(5) {
			wg.Go(func() {
				if _, err := d.WriteAt(make([]byte, 512), i*chunk); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		is("five writes", 5, 8)
		must(t, d.Discard(0, 2*chunk))
		is("a discard", 3, 8)
		data.Grow(10 * chunk)
		must(t, p.Grow())
		is("growth", 3, 10)
		must(t, d.Close())
		must(t, p.Delete(1, 2))
		is("deletion", 0, 10)
		cancel()
		must(t, p.Create(2, 3))
		d, err = p.Device(2, chunk, "t", false)
		must(t, err)
		_, err = d.WriteAt(make([]byte, 512), 0)
		must(t, err)
		synctest.Wait()
		if calls.Load() != 0 {
			t.Error("called after cancel")
		}
		must(t, d.Close())
		must(t, p.Close())
	})
}
