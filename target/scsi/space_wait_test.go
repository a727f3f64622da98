package scsi

import (
	"bytes"
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"softiser/internal/spc"

	"softiser/blockdev"
	"softiser/blockdev/faulty"
)

// fullVolume is a volume on which what changes blocks waits for space while it is full: as
// long as fullWait, until space, or until whoever waits gives up. Writes of
// nothing but BBh need no space.
type fullVolume struct {
	*faulty.Device // lends pool memory
	mu             sync.Mutex
	space          chan struct{} // closed: there is space
}

const fullWait = time.Minute

func newFull(t *testing.T, size int64) *fullVolume {
	space := make(chan struct{})
	close(space)
	return &fullVolume{Device: faulty.New(newSized(t, "thin", size), 1), space: space}
}

func (v *fullVolume) fill() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.space = make(chan struct{})
}

func (v *fullVolume) extend() { close(v.space) }

func (v *fullVolume) wait(p []byte, stop blockdev.Stop) error {
	if bytes.HasPrefix(p, bytes.Repeat([]byte{0xBB}, 16)) {
		return nil
	}
	v.mu.Lock()
	space := v.space
	v.mu.Unlock()
	var stopped <-chan struct{}
	select {
	case <-space:
		return nil
	default:
		if stop != nil {
			stopped = stop.Done()
		}
	}
	select {
	case <-space:
		return nil
	case <-stopped:
		return blockdev.ErrStopped
	case <-time.After(fullWait):
		return blockdev.ErrNoSpace
	}
}

func (v *fullVolume) WriteAt(p []byte, off int64) (int, error) { return v.WriteAtUntil(p, off, nil) }

func (v *fullVolume) WriteAtUntil(p []byte, off int64, stop blockdev.Stop) (int, error) {
	if err := v.wait(p, stop); err != nil {
		return 0, err
	}
	return v.Device.WriteAt(p, off)
}

func (v *fullVolume) WriteZeroes(off, n int64, mayUnmap bool) error {
	return v.WriteZeroesUntil(off, n, mayUnmap, nil)
}

func (v *fullVolume) WriteZeroesUntil(off, n int64, mayUnmap bool, stop blockdev.Stop) error {
	if err := v.wait(nil, stop); err != nil {
		return err
	}
	return v.Device.WriteZeroes(off, n, mayUnmap)
}

func (v *fullVolume) Discard(off, n int64) error { return v.DiscardUntil(off, n, nil) }

func (v *fullVolume) DiscardUntil(off, n int64, stop blockdev.Stop) error {
	if err := v.wait(nil, stop); err != nil {
		return err
	}
	return v.Device.Discard(off, n)
}

func (v *fullVolume) LeaseWrite(l *blockdev.Lease, off int64, n int, m blockdev.Mode) error {
	err := v.Device.LeaseWrite(l, off, n, m)
	if err == nil {
		l.Owner = v
	}
	return err
}

func (v *fullVolume) CommitLease(l *blockdev.Lease, fua bool) error {
	return v.CommitLeaseUntil(l, fua, nil)
}

func (v *fullVolume) CommitLeaseUntil(l *blockdev.Lease, fua bool, stop blockdev.Stop) error {
	if err := v.wait(l.Segs[0], stop); err != nil {
		return err
	}
	return v.Device.CommitLease(l, fua)
}

// changes are commands that change the first eight blocks of LUN 0.
var changes = []struct {
	name string
	cdb  []byte
	out  []byte
	opts []func(*call)
}{
	{"WRITE", spc.AppendWrite(nil, 0, 8, false), fill(4096, 1), nil},
	{"WRITE, data with it", spc.AppendWrite(nil, 0, 8, false), fill(4096, 1), []func(*call){immediate(4096)}},
	{"WRITE AND VERIFY", spc.AppendWriteVerify(nil, 0, 8, 1), fill(4096, 1), nil},
	{"COMPARE AND WRITE", spc.AppendCompareAndWrite(nil, 0, 8, false), compareList(fill(4096, 1)), nil},
	{"ORWRITE", spc.AppendOrWrite16(nil, 0, 8, false), fill(4096, 1), nil},
	{"WRITE ATOMIC", spc.AppendWriteAtomic16(nil, 0, 8, false), fill(4096, 1), nil},
	{"WRITE SAME", spc.AppendWriteSame16(nil, 0, 8, 0), fill(512, 1), nil},
	{"WRITE SAME of zeroes", spc.AppendWriteSame16(nil, 0, 8, spc.FlagNDOB), nil, nil},
	{"UNMAP", spc.AppendUnmap(nil, 24), spc.AppendUnmapList(nil, []spc.Range{{Blocks: 8}}), nil},
	{"EXTENDED COPY", nil, nil, nil},
	{"WRITE USING TOKEN", nil, nil, nil},
	{"WRITE USING TOKEN, zeroes", nil, nil, nil},
}

// startChange begins the i-th of changes, for n.
func (r *rig) startChange(n *Nexus, i int) *call {
	r.t.Helper()
	c := changes[i]
	cdb, out := c.cdb, c.out
	zero := spc.RODToken{Type: spc.RODZero}
	w := spc.WriteUsingToken{Token: zero.Append(nil), Ranges: []spc.Range{{Blocks: 8}}}
	switch c.name {
	case "EXTENDED COPY":
		out = copyList(1, r.target(0), spc.CopySegment{Type: spc.CopyBlockToBlock, Blocks: 8, SrcLBA: 16})
		cdb = xcopy(out)
	case "WRITE USING TOKEN":
		w.Token = r.newToken(n, 0, spc.Range{LBA: 16, Blocks: 8})
		fallthrough
	case "WRITE USING TOKEN, zeroes":
		out = w.Append(nil)
		cdb = tokenCDB(spc.SAWriteUsingToken, 2, out)
	}
	return r.start(n, 0, cdb, out, 0, c.opts...)
}

// TestGhostWrite: what an initiator that is gone has left at the volume never comes over
// what others have been told is written.
func TestGhostWrite(t *testing.T) {
	theirs := bytes.Repeat([]byte{0xBB}, 4096)
	for i, c := range changes {
		for _, waitsFor := range []string{"space", "storage"} {
			t.Run(c.name+" waits for "+waitsFor, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					v := newFull(t, 1<<20)
					var vol blockdev.Device = v
					if waitsFor == "storage" {
						vol = v.Device // no word of giving up
					}
					r := newRig(t, Config{}, LUConfig{Volume: vol})
					b := r.nx[1]
					if waitsFor == "space" {
						v.fill()
					} else {
						v.SetRules(faulty.Rule{Op: faulty.Write | faulty.Discard, Delay: time.Second, Times: 1})
					}
					ghost := r.startChange(r.nx[0], i)
					synctest.Wait()
					r.dev.CloseNexus(r.nx[0])
					r.nx = r.nx[1:]
					r.on(b, 0, spc.AppendWrite(nil, 0, 8, true), theirs, 0).good()
					if waitsFor == "space" {
						v.extend()
					}
					time.Sleep(time.Hour)
					r.finish(ghost)
					if got := r.on(b, 0, spc.AppendRead(nil, 0, 8, false), nil, 4096).good().data; !bytes.Equal(got, theirs) {
						t.Error("it came over a later write")
					}
					r.close()
					r.nx = nil
				})
			})
		}
	}
}

// TestWaitForSpaceObeysAbort: a command that waits for space ends when it is aborted, not
// when the wait does, and changes nothing.
func TestWaitForSpaceObeysAbort(t *testing.T) {
	for i, c := range changes {
		for _, f := range []TMF{AbortTask, AbortTaskSet, LogicalReset} {
			synctest.Test(t, func(t *testing.T) {
				v := newFull(t, 1<<20)
				r := newRig(t, Config{}, LUConfig{Volume: v})
				before := bytes.Repeat([]byte{0xBB}, 4096)
				if c.name == "COMPARE AND WRITE" {
					before = make([]byte, 4096)
				}
				r.do(spc.AppendWrite(nil, 0, 8, false), before, 0).good()
				v.fill()
				w := r.startChange(r.nx[0], i)
				synctest.Wait()
				began := time.Now()
				if x := r.manage(r.nx[0], f, 0, &w.Task); x != TMFComplete {
					t.Errorf("%s, task management function %d: %v", c.name, f, x)
				}
				r.finish(w).is(spc.StatusTaskAborted)
				if d := time.Since(began); d != 0 {
					t.Errorf("%s, task management function %d: answered after %v", c.name, f, d)
				}
				v.extend()
				time.Sleep(time.Hour)
				r.on(r.nx[1], 0, spc.AppendTestUnitReady(nil), nil, 0) // the reset
				if got := r.on(r.nx[1], 0, spc.AppendRead(nil, 0, 8, false), nil, 4096).good().data; !bytes.Equal(got, before) {
					t.Errorf("%s changed blocks after it had been aborted", c.name)
				}
				r.close()
				r.nx = nil
			})
		}
	}
}

// TestZeroesThatWaitObeyAbort: SANITIZE and FORMAT UNIT, which no abort ends, do not keep
// a unit that is removed while they wait for space; and a copy behind its status ends
// with its nexus.
func TestZeroesThatWaitObeyAbort(t *testing.T) {
	for name, c := range map[string]struct{ cdb, out []byte }{
		"FORMAT UNIT": {formatUnit, nil},
		"SANITIZE":    {[]byte{0x48, 0x81, 0, 0, 0, 0, 0, 0x02, 0x04, 0}, append([]byte{1, 0, 2, 0}, fill(512, 1)...)},
	} {
		synctest.Test(t, func(t *testing.T) {
			v := newFull(t, 1<<20)
			r := newRig(t, Config{}, LUConfig{Volume: v})
			v.fill()
			x := r.start(r.nx[0], 0, c.cdb, c.out, 0)
			synctest.Wait()
			ctx, cancel := context.WithTimeout(t.Context(), fullWait/2)
			defer cancel()
			gone := make(chan error, 1)
			go func() { gone <- r.dev.RemoveLUN(ctx, 0) }()
			r.finish(x)
			if err := <-gone; err != nil {
				t.Errorf("%s: %v", name, err)
			}
			r.close()
			r.nx = nil
		})
	}
	synctest.Test(t, func(t *testing.T) {
		v := newFull(t, 1<<20)
		r := newRig(t, Config{}, LUConfig{Volume: v})
		v.fill()
		zero := spc.RODToken{Type: spc.RODZero}
		w := spc.WriteUsingToken{Immed: true, Token: zero.Append(nil), Ranges: []spc.Range{{Blocks: 8}}}
		list := w.Append(nil)
		r.do(tokenCDB(spc.SAWriteUsingToken, 2, list), list, 0).good()
		synctest.Wait()
		r.dev.CloseNexus(r.nx[0])
		r.nx = r.nx[1:]
		synctest.Wait()
		if n := r.dev.lookup(0).place.Users(); n != 0 {
			t.Error("a copy of a nexus that has ended still waits for space")
		}
		r.close()
		r.nx = nil
	})
}
