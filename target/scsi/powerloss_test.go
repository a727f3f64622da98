package scsi

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"softiser/blockdev/crashlog"
	"softiser/internal/spc"
)

// TestPowerLoss drives the device server over a volume whose completed writes
// are lost, kept or torn by a power failure as the volume may. Whatever was
// acknowledged with FUA, before a SYNCHRONIZE CACHE that ended, or at all while
// the write cache is off, must be in every state in which any later power failure
// can leave the volume.
func TestPowerLoss(t *testing.T) {
	t.Run("write-back", func(t *testing.T) { powerLoss(t, false) })
	t.Run("write-through", func(t *testing.T) { powerLoss(t, true) })
}

func powerLoss(t *testing.T, through bool) {
	const blocks, bs = 64, 512
	d, err := crashlog.New(blocks*bs, bs)
	if err != nil {
		t.Fatal(err)
	}
	r := newRig(t, Config{}, LUConfig{Volume: d})
	if through { // caching page with WCE clear
		page := append(make([]byte, 4), append([]byte{0x08, 0x12}, make([]byte, 0x12)...)...)
		r.do(spc.AppendModeSelect6(nil, false, byte(len(page))), page, 0).good()
	}
	rnd := rand.New(rand.NewPCG(3, 1))
	type promise struct {
		point           int
		certain, latest [blocks]byte // number of the write that is there at least, at most
	}
	var now promise
	var promises []promise
	fuas, syncs := 0, 0
	for i := range byte(120) {
		if rnd.IntN(6) == 0 {
			r.do(spc.AppendSyncCache(nil, 0, 0, false), nil, 0).good()
			now.certain = now.latest
			syncs++
		} else {
			first := rnd.IntN(blocks)
			n := 1 + rnd.IntN(min(16, blocks-first))
			fua := rnd.IntN(3) == 0
			var opts []func(*call)
			if rnd.IntN(2) == 0 {
				opts = append(opts, immediate(n*bs)) // by WriteAt instead of a lease
			}
			data := bytes.Repeat([]byte{i + 1}, n*bs)
			r.do(spc.AppendWrite(nil, uint64(first), uint32(n), fua), data, 0, opts...).good()
			for b := first; b < first+n; b++ {
				now.latest[b] = i + 1
				if fua || through {
					now.certain[b] = i + 1
				}
			}
			if fua {
				fuas++
			}
		}
		now.point = d.Now()
		promises = append(promises, now)
	}
	lost := 0
	for _, p := range promises {
		for im := range d.States(p.point, 40, 7) {
			for b := range blocks {
				got := im.Bytes()[b*bs]
				if got < p.certain[b] || got > p.latest[b] {
					t.Fatalf("point %d: block %d holds write %d, must be %d to %d", p.point, b, got, p.certain[b], p.latest[b])
				}
				if got < p.latest[b] {
					lost++
				}
			}
		}
	}
	// Without these the test would pass on a volume that loses nothing.
	if (lost == 0) != through || fuas < 10 || syncs < 5 {
		t.Errorf("%d blocks lost, %d FUA writes, %d flushes: too few to show anything", lost, fuas, syncs)
	}
}
