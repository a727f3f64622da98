package scsi

import (
	"bytes"
	"testing"

	"softiser/internal/spc"
)

// A small WRITE beside a WRITE whose data has not come yet, in the same page:
// the claim of the page must wait on a worker, for the other command's data may
// be due on the goroutine that executes this one.
func TestImmediateWriteBesideOpenWrite(t *testing.T) {
	r := newRig(t, Config{})
	long := r.start(r.nx[0], 0, spc.AppendWrite(nil, 0, 3, false), bytes.Repeat([]byte{1}, 3*512), 0, held)
	short := r.start(r.nx[0], 0, spc.AppendWrite(nil, 3, 1, false), bytes.Repeat([]byte{2}, 512), 0, immediate(512))
	select {
	case <-short.done:
		t.Error("the small WRITE was done when Execute returned: it waited in there, or wrote into an open lease's page")
	default:
	}
	r.port.release(long)
	r.finish(long).good()
	r.finish(short).good()
	got := r.do(spc.AppendRead(nil, 0, 4, false), nil, 4*512).good().data
	if want := append(bytes.Repeat([]byte{1}, 3*512), bytes.Repeat([]byte{2}, 512)...); !bytes.Equal(got, want) {
		t.Error("wrong data")
	}
}
