package iscsi

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"softiser/internal/iscsi"
	"softiser/internal/iser"
	"softiser/target/portal"
	"softiser/target/scsi"
)

const (
	placeBlock = 512
	placeLen   = 128 << 10 // of a WRITE: more than any read-ahead takes
)

func placed(p scsi.Placement) func(*serverConfig, *Target) {
	return func(_ *serverConfig, t *Target) { t.LUNs[0].Placement = p }
}

// blocksOf counts the blocks of got that are wholly old, wholly new, and neither.
func blocksOf(got, before, after []byte) (old, now, neither int) {
	for at := 0; at < len(got); at += placeBlock {
		switch b := got[at : at+placeBlock]; {
		case bytes.Equal(b, before[at:at+placeBlock]):
			old++
		case bytes.Equal(b, after[at:at+placeBlock]):
			now++
		default:
			neither++
		}
	}
	return old, now, neither
}

// TestPlacement: the connection of a WRITE ends inside a logical block, or a bit of
// its data is damaged on the way, at 24 places. With verified placement no block is
// anything but old or new. With direct placement each of them is, which is what its
// documentation says, and which shows that the test looks at the right place.
func TestPlacement(t *testing.T) {
	const places = 24
	at := func(i int) int { return 4100 + i*5000 } // never at the edge of a block
	eachTransport(t, func(t *testing.T, kind portal.Transport) {
		for _, placement := range []scsi.Placement{scsi.PlacementDirect, scsi.PlacementVerified} {
			for _, what := range []string{"cut", "flip"} {
				t.Run(fmt.Sprintf("%v/%s", placement, what), func(t *testing.T) {
					s := serve(t, placed(placement))
					before, after := pattern(placeLen, 1), pattern(placeLen, 2)
					broken := 0
					for i := range places {
						sc := untouched
						sc.digests = true
						if what == "cut" {
							sc.cut = at(i)
						} else {
							sc.flip = at(i)
						}
						off := int64(i) * placeLen
						if _, err := s.vol.WriteAt(before, off); err != nil {
							t.Fatal(err)
						}
						m := s.behind(t, sc).connect(kind, iser.ConnConfig{})
						m.isid[5] = byte(i)
						m.login("ImmediateData=No", "DataDigest=CRC32C")
						m.ready()
						m.cmd(cdbRW10(0x2a, uint32(off/placeBlock), placeLen/placeBlock), nil, after)
						m.lost()
						eventually(t, "the session has ended", func() bool { return len(s.sessionList(nil)) == 0 })
						got := make([]byte, placeLen)
						if _, err := s.vol.ReadAt(got, off); err != nil {
							t.Fatal(err)
						}
						if _, _, n := blocksOf(got, before, after); n > 0 {
							broken++
						}
					}
					want := places
					if placement == scsi.PlacementVerified {
						want = 0
					}
					if broken != want {
						t.Errorf("%d of %d WRITEs left a block that is neither old nor new, want %d", broken, places, want)
					}
				})
			}
		}
	})
}

// lost waits for the end of the connection, or ends it where the target has only
// refused the command.
func (m *mover) lost() {
	m.t.Helper()
	select {
	case p := <-m.in:
		if p.BHS.Opcode() == iscsi.OpSCSIResponse && p.BHS.SCSIResponse().Status() == 0 {
			m.t.Error("a WRITE whose data did not arrive was acknowledged")
		}
		m.dm.Terminate(fmt.Errorf("the test is over"))
		err := <-m.ended
		m.ended <- err
	case err := <-m.ended:
		m.ended <- err
	case <-time.After(ioTime):
		m.t.Fatal("nothing comes")
	}
}

// TestPlacementReaders: while half of a block has arrived, another session reads
// it; then the WRITE goes on beside readers.
func TestPlacementReaders(t *testing.T) {
	eachTransport(t, func(t *testing.T, kind portal.Transport) {
		for _, placement := range []scsi.Placement{scsi.PlacementDirect, scsi.PlacementVerified} {
			t.Run(placement.String(), func(t *testing.T) {
				s := serve(t, placed(placement))
				before, after := pattern(placeLen, 1), pattern(placeLen, 2)
				if _, err := s.vol.WriteAt(before, 0); err != nil {
					t.Fatal(err)
				}
				sc := pausing(placeLen/2 + placeBlock/2)
				m := s.behind(t, sc).connect(kind, iser.ConnConfig{})
				m.login("ImmediateData=No")
				m.ready()
				reader := s.session()
				read := func() (old, now, neither int) {
					return blocksOf(reader.read10(0, placeLen/placeBlock), before, after)
				}
				m.cmd(cdbRW10(0x2a, 0, placeLen/placeBlock), nil, after)
				sc.waitPaused(t) // beside a reader the WRITE would not be lent the volume itself
				if placement == scsi.PlacementDirect {
					eventually(t, "a reader sees the half of a block", func() bool { _, _, n := read(); return n == 1 })
				} else {
					for range 50 {
						if _, now, neither := read(); now+neither > 0 {
							t.Fatalf("a reader sees %d new blocks and %d of both before the WRITE has its data", now, neither)
						}
					}
				}
				close(sc.resume)
				for {
					_, now, neither := read()
					if neither > 0 && placement == scsi.PlacementVerified {
						t.Fatalf("a reader sees %d blocks that are neither old nor new", neither)
					}
					if now == placeLen/placeBlock {
						break
					}
				}
				if p := m.recv(); p.BHS.SCSIResponse().Status() != 0 {
					t.Errorf("WRITE: status %#x", p.BHS.SCSIResponse().Status())
				}
				copied := s.Status().Targets[0].LUNs[0].Stats.PlacementCopied
				if want := map[scsi.Placement]uint64{scsi.PlacementVerified: placeLen}[placement]; copied != want {
					t.Errorf("%d bytes were copied for placement, want %d", copied, want)
				}
			})
		}
	})
}
