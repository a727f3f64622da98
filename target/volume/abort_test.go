package volume

import "testing"

// tellsCancel is a request that tells when its data phase is cancelled.
type tellsCancel struct {
	req
	cancelled func()
}

func (r *tellsCancel) Cancel(Port) { r.cancelled() }
func (r *tellsCancel) Via() Port   { return r }

// TestCopyBehindAnAbort: the copy of a command that comes when the commands before it have
// been marked aborted goes on, as its command does. It would end with an error that its
// client could not tell from a fault.
func TestCopyBehindAnAbort(t *testing.T) {
	b := serve(t, new(Registry), Config{Device: newDevice(t, "a")}, "a")
	me := new(Client)
	var behind *req
	var c *Copy
	first := &tellsCancel{cancelled: func() {
		behind, _ = b.start(nil, me, Simple, 0, 0, HoldNone)
		c = b.v.NewCopy(&behind.op)
	}}
	first.v = b.v
	first.op.Init(first)
	first.op.Client = me
	if !b.v.Admit(&first.op) {
		t.Fatal("a command alone does not run")
	}
	before := b.v.NewCopy(&first.op)
	b.v.AbortWith(func(*Op) AbortReason { return AbortedByOther }, func(*Client) bool { return true }, nil)
	if behind == nil {
		t.Fatal("a command that ran has not been cancelled")
	}
	if !before.Stopped() {
		t.Error("the copy of an aborted command goes on")
	}
	if behind.op.Aborted() || c.Stopped() {
		t.Errorf("a command behind the abort: aborted %v, its copy ended %v", behind.op.Aborted(), c.Stopped())
	}
	c.End()
	before.End()
	behind.end()
	first.end()
}
