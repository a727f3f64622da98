package multipath

import (
	"testing"
	"testing/synctest"
	"time"
)

// A timer that has fired for one time without a path, and comes to the lock when the next one has
// begun, ends nothing of that.
func TestTheNextTimeWithoutAPathHasAWaitOfItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newStorage()
		a := st.path("a")
		v := open(t, Config{NoPathRetry: time.Minute}, a)
		time.Sleep(time.Millisecond)
		a.cut()
		r := start(v, read(0))
		time.Sleep(30 * time.Second)
		v.giveUp()
		pending(t, "the read, after half of its wait", r)
		time.Sleep(31 * time.Second)
		if err := <-r; err == nil {
			t.Error("the read has ended without a path and without an error")
		}
	})
}
