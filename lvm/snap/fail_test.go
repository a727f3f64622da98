package snap

import (
	"bytes"
	"errors"
	"testing"
	"testing/synctest"

	"softiser/blockdev"
	"softiser/blockdev/faulty"
	"softiser/lvm/internal/lvmtest"
)

// TestMergeStoreFails: while a snapshot is merged, the write fails that takes
// merged chunks off the store's list. Whether the disk has it or not, what is
// written and flushed afterwards is there after a restart.
func TestMergeStoreFails(t *testing.T) {
	broken := errors.New("the disk is broken")
	for name, rules := range map[string][]faulty.Rule{
		"not written":              {{Op: faulty.Write, Err: broken, Times: 1}},
		"written":                  {{Op: faulty.Flush, Err: broken, Times: 1}},
		"lost in the disk's cache": {{Op: faulty.Write, Lost: true, Times: 1}, {Op: faulty.Flush, Err: broken, Times: 1}},
		"torn":                     {{Op: faulty.Write, Torn: true, Times: 1}},
	} {
		for _, retry := range []bool{false, true} {
			base, cow := lvmtest.New(size), lvmtest.New(4*size)
			bad := faulty.New(cow, 1)
			open := func(store blockdev.Device) (*Set, *Snapshot) {
				st, err := OpenStore(store, 4096)
				must(t, err)
				s := NewSet(base, nil, nil)
				return s, s.Add("s", st, size)
			}
			set, sn := open(bad)
			model := bytes.Repeat([]byte{1}, size)
			o := set.Origin()
			write := func(b byte, off, n int) {
				p := bytes.Repeat([]byte{b}, n)
				_, err := o.WriteAt(p, int64(off))
				must(t, err)
			}
			_, err := sn.WriteAt(model, 0) // the snapshot is what the origin becomes
			must(t, err)
			must(t, set.StartMerge(sn))
			bad.SetRules(rules...)
			for bad.Hits() == 0 {
				if done, err := set.MergeStep(); done || err != nil && bad.Hits() == 0 {
					t.Fatalf("%s: the merge ended before anything failed: %v", name, err)
				}
			}
			bad.SetRules()
			// All chunks were in one step: some are still in doubt.
			for i, off := range []int{0, 8192, 65536, size - 4096} {
				write(byte(10+i), off, 512)
				copy(model[off:], bytes.Repeat([]byte{byte(10 + i)}, 512))
			}
			must(t, o.WriteZeroes(16384, 4096, true))
			clear(model[16384:20480])
			must(t, o.Flush())
			if retry {
				for {
					done, err := set.MergeStep()
					must(t, err)
					if done {
						break
					}
				}
				write(99, 4096, 4096)
				copy(model[4096:], bytes.Repeat([]byte{99}, 4096))
				must(t, o.Flush())
			}
			check := func(what string) {
				t.Helper()
				got := make([]byte, size)
				_, err := o.ReadAt(got, 0)
				must(t, err)
				for i := range got {
					if got[i] != model[i] {
						t.Fatalf("%s, retry %v, %s: byte %d is %d, not %d", name, retry, what, i, got[i], model[i])
					}
				}
			}
			check("before the restart")
			set, sn = open(cow)
			o = set.Origin()
			must(t, set.StartMerge(sn))
			check("after the restart")
			for {
				done, err := set.MergeStep()
				must(t, err)
				if done {
					break
				}
			}
			check("after the merge")
		}
	}
}

// TestRefusedShrink: a write that needs the room which a store is about to lose
// waits until that is decided; if the store keeps it, nothing has failed.
func TestRefusedShrink(t *testing.T) {
	const chunk = 4096
	for _, atEndOfArea := range []bool{false, true} {
		for _, shrunk := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				cow := lvmtest.New(2 * size)
				st, err := OpenStore(cow, chunk)
				must(t, err)
				set := NewSet(lvmtest.New(2*size), nil, nil)
				sn := set.Add("s", st, 2*size)
				o := set.Origin()
				// The list of exceptions takes a second area after 256 of them: to
				// record the last of the first needs that, too.
				used := int64(10)
				if atEndOfArea {
					used = 255
				}
				_, err = o.WriteAt(make([]byte, used*chunk), 0)
				must(t, err)
				size := int64(st.next) * chunk
				if atEndOfArea {
					size += chunk // room for the copy, not for the area
				}
				sh, err := sn.Shrink(size)
				must(t, err)
				done := make(chan error, 2)
				for i := range int64(2) {
					go func() {
						_, err := o.WriteAt(bytes.Repeat([]byte{5}, chunk), (used+i)*chunk)
						done <- err
					}()
				}
				synctest.Wait()
				if len(done) == 2 {
					t.Error("no write waits")
				}
				if !sn.Usage().Valid {
					t.Error("the snapshot was lost before its store was smaller")
				}
				if shrunk {
					cow.Grow(size)
				}
				sh.End()
				must(t, <-done)
				must(t, <-done)
				if u := sn.Usage(); u.Valid == shrunk {
					t.Errorf("shrunk %v, valid %v", shrunk, u.Valid)
				}
				if !shrunk {
					got := make([]byte, (used+2)*chunk)
					_, err := sn.ReadAt(got, 0)
					must(t, err)
					if !bytes.Equal(got, make([]byte, len(got))) {
						t.Error("the snapshot has changed")
					}
				}
			})
		}
	}
}
