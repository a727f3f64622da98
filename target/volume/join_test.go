package volume

import (
	"testing"
	"testing/synctest"
)

// TestJoinWrites: a command that has collected its data becomes a write: exclusive commands that
// were there are waited for, running writes are not, and those to come wait for it.
func TestJoinWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := serve(t, new(Registry), Config{Device: newDevice(t, "a")}, "a")
		v, me := b.v, new(Client)
		begin := func(lo, hi uint64, kind Hold) *req {
			t.Helper()
			r, now := b.start(nil, me, Simple, lo, hi, kind)
			if !now {
				t.Fatal("it does not begin")
			}
			r.more = func(r *req) { r.steps <- Proceed } // and goes on running
			return r
		}
		staged := func() *req { return begin(0, ^uint64(0), HoldStaged) }
		proceeds := func(what string, r *req) {
			t.Helper()
			if why := <-r.steps; why != Proceed {
				t.Errorf("%s: %v", what, why)
			}
		}

		w, first, late, aborted := begin(0, 8, HoldWrite), staged(), staged(), staged()
		v.JoinWrites(&first.op)
		proceeds("beside a write", first)

		caw := begin(8, 16, HoldStaged)
		v.Exclusively(&caw.op)
		synctest.Wait()
		if caw.over() {
			t.Fatal("an exclusive command runs beside a write")
		}
		first.end()
		proceeds("an exclusive command", caw)

		v.JoinWrites(&late.op)
		v.JoinWrites(&aborted.op)
		behind, now := b.start(nil, me, Simple, 0, 8, HoldRead)
		behind.more = func(r *req) { r.steps <- Proceed }
		synctest.Wait()
		if now || late.over() || aborted.over() {
			t.Fatal("it runs beside an exclusive command, or is overtaken")
		}
		v.AbortWhere(func(o *Op) AbortReason {
			if o == &aborted.op {
				return AbortedByOwner
			}
			return NotAborted
		}, nil)
		if why := <-aborted.steps; why != Abort {
			t.Errorf("aborted: %v", why)
		}
		caw.end()
		proceeds("behind an exclusive command", late)
		proceeds("a read behind that", behind)
		late.end()
		behind.end()

		caw, late = begin(8, 16, HoldStaged), staged()
		v.Exclusively(&caw.op)
		proceeds("an exclusive command", caw)
		v.JoinWrites(&late.op)
		if why := <-late.steps; why != TimeOut {
			t.Errorf("when it is too long: %v", why)
		}
		caw.end()
		w.end()
		if len(v.exclusives) != 0 {
			t.Errorf("%d exclusives are left", len(v.exclusives))
		}
		b.close()
	})
}
