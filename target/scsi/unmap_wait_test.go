package scsi

import (
	"testing"
	"testing/synctest"

	"softiser/internal/spc"
)

// TestUnmapWithoutItsList: nobody's COMPARE AND WRITE waits for the parameters of an UNMAP, which may
// never come.
func TestUnmapWithoutItsList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Config{}, LUConfig{Volume: newVolume(t, 1<<20, 512)})
		r.do(spc.AppendWrite(nil, 0, 8, false), fill(4096, 1), 0).good()
		list := spc.AppendUnmapList(nil, []spc.Range{{Blocks: 8}})
		c := r.start(r.nx[1], 0, spc.AppendUnmap(nil, uint16(len(list))), list, 0, held)
		synctest.Wait()
		r.do(spc.AppendCompareAndWrite(nil, 8, 1, false), make([]byte, 1024), 0).good()
		r.port.release(c)
		r.finish(c).good()
		if !allZero(r.do(spc.AppendRead(nil, 0, 8, false), nil, 4096).good().data) {
			t.Error("not unmapped")
		}
		r.close()
		r.nx = nil
	})
}
