package scsi

import (
	"bytes"
	"testing"

	"softiser/blockdev"
	"softiser/internal/spc"
)

// wholePages is a volume whose WriteAt is to be taken for one that claims whole pages.
type wholePages struct{ blockdev.Device }

func (d wholePages) Info() blockdev.Info {
	info := d.Device.Info()
	info.ExactWrite = 0
	return info
}

// A small WRITE beside a WRITE whose data has not come yet, in the same page:
// where the page is claimed for it, that must wait on a worker, for the other command's data may
// be due on the goroutine that executes this one. In memory it need not wait at all.
func TestImmediateWriteBesideOpenWrite(t *testing.T) {
	for name, c := range map[string]struct {
		volume blockdev.Device
		atOnce bool
	}{"exact": {newVolume(t, 8<<20, 512), true}, "whole pages": {wholePages{newVolume(t, 8<<20, 512)}, false}} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, Config{}, LUConfig{Volume: c.volume})
			long := r.start(r.nx[0], 0, spc.AppendWrite(nil, 0, 3, false), bytes.Repeat([]byte{1}, 3*512), 0, held)
			short := r.start(r.nx[0], 0, spc.AppendWrite(nil, 3, 1, false), bytes.Repeat([]byte{2}, 512), 0, immediate(512))
			done := false
			select {
			case <-short.done:
				done = true
			default:
			}
			if done && !c.atOnce {
				t.Error("the small WRITE was done when Execute returned: it waited in there, or wrote into an open lease's page")
			} else if !done && c.atOnce {
				t.Error("the small WRITE was not done when Execute returned")
			}
			r.port.release(long)
			r.finish(long).good()
			r.finish(short).good()
			got := r.do(spc.AppendRead(nil, 0, 4, false), nil, 4*512).good().data
			if want := append(bytes.Repeat([]byte{1}, 3*512), bytes.Repeat([]byte{2}, 512)...); !bytes.Equal(got, want) {
				t.Error("wrong data")
			}
		})
	}
}
