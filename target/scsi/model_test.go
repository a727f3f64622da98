package scsi

import (
	"bytes"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"softiser/internal/spc"
)

// The property test: several initiators send random commands, each to blocks of
// its own, abort some and reset the unit now and then. A model of each
// initiator's blocks says what READ must return. A command that was aborted
// leaves its blocks undefined (SAM-5 lets it be done in part) until they are
// written again. Now and then one of them formats the unit while the others
// pause.

const (
	modelBlocks = 512 // of each initiator
	modelSteps  = 1500
)

// model is one initiator with what it knows of its blocks.
type model struct {
	r     *rig
	n     *Nexus
	rnd   *rand.Rand
	base  uint64
	data  []byte
	known []bool
	t     *testing.T
}

// It runs in a bubble of fake time, where a machine that stalls makes nothing time
// out, and commands that wait for each other end the test at once.
func TestModel(t *testing.T) { synctest.Test(t, testModel) }

func testModel(t *testing.T) {
	steps := modelSteps
	if testing.Short() {
		steps /= 5
	}
	for _, c := range []struct {
		block     int
		placement Placement
	}{{512, PlacementDirect}, {512, PlacementVerified}, {4096, PlacementVerified}} {
		bs := c.block
		r := newRig(t, Config{}, LUConfig{Volume: newVolume(t, 4*modelBlocks*int64(bs), bs), Workers: 3, Placement: c.placement})
		r.nexus(3)
		r.nexus(4)
		var all []*model
		for i, n := range r.nx {
			m := &model{r: r, n: n, t: t, rnd: rand.New(rand.NewPCG(uint64(bs), uint64(i))), base: uint64(i) * modelBlocks,
				data: make([]byte, modelBlocks*bs), known: make([]bool, modelBlocks)}
			for k := range m.known {
				m.known[k] = true
			}
			all = append(all, m)
		}
		const rounds = 3
		for round := range rounds {
			var wg sync.WaitGroup
			for _, m := range all {
				wg.Add(1)
				go func() {
					defer wg.Done()
					for range steps / rounds {
						m.step(bs)
					}
				}()
			}
			wg.Wait()
			if round < rounds-1 {
				all[round].format(all, bs)
			}
		}
		r.close()
		r.nx = nil
	}
}

// step sends one command and checks or notes its effect.
func (m *model) step(bs int) {
	k := m.rnd.IntN(modelBlocks)
	n := 1 + m.rnd.IntN(min(40, modelBlocks-k))
	lba := m.base + uint64(k)
	have := m.data[k*bs:][:n*bs]
	to := m.rnd.IntN(modelBlocks - n + 1)
	switch m.rnd.IntN(17) {
	case 0, 1, 2:
		got := m.send(spc.AppendRead(nil, lba, uint32(n), false), nil, n*bs)
		if got.status == spc.StatusGood {
			m.compare(got.data, k, bs, "READ")
		}
	case 3, 4, 5:
		p := m.fresh(n * bs)
		cdb := spc.AppendWrite(nil, lba, uint32(n), m.rnd.IntN(4) == 0)
		if m.rnd.IntN(3) == 0 {
			cdb = spc.AppendWriteVerify(nil, lba, uint32(n), 1)
		}
		m.wrote(m.send(cdb, p, 0, m.unasked(len(p))), k, n, bs, p)
	case 6:
		p := m.fresh(bs)
		m.wrote(m.send(spc.AppendWriteSame16(nil, lba, uint32(n), 0), p, 0), k, n, bs, bytes.Repeat(p, n))
	case 7:
		list := spc.AppendUnmapList(nil, []spc.Range{{LBA: lba, Blocks: uint32(n)}})
		m.wrote(m.send(spc.AppendUnmap(nil, uint16(len(list))), list, 0), k, n, bs, make([]byte, n*bs))
	case 8:
		m.wrote(m.send(spc.AppendWriteSame16(nil, lba, uint32(n), spc.FlagNDOB|spc.FlagUnmap), nil, 0), k, n, bs, make([]byte, n*bs))
	case 9:
		p := m.fresh(n * bs)
		m.wrote(m.send(spc.AppendCompareAndWrite(nil, lba, uint8(n), false), append(bytes.Clone(have), p...), 0), k, n, bs, p)
	case 10:
		p := m.fresh(n * bs)
		q := bytes.Clone(p)
		for i := range q {
			q[i] |= have[i]
		}
		if !m.allKnown(k, n) {
			return
		}
		m.wrote(m.send(spc.AppendOrWrite16(nil, lba, uint32(n), false), p, 0), k, n, bs, q)
	case 11:
		p := m.fresh(n * bs)
		m.wrote(m.send(spc.AppendWriteAtomic16(nil, lba, uint16(n), false), p, 0, m.unasked(len(p))), k, n, bs, p)
	case 12:
		if got := m.send(spc.AppendVerify(nil, lba, uint32(n), 1), bytes.Clone(have), 0); got.status == spc.StatusCheckCondition &&
			got.sd.Key == spc.KeyMiscompare && m.allKnown(k, n) {
			m.t.Errorf("VERIFY of %d blocks at %d: %v", n, lba, got.sd)
		}
	case 13:
		m.disturb()
	case 14:
		m.xcopy(k, to, n, bs)
	case 15:
		m.token(k, to, n, bs)
	case 16:
		m.status(k, n, bs)
	}
}

// send runs a command with a random task attribute and, now and then, an abort
// on its heels. Unit attentions of other initiators' resets are taken and the
// command sent again.
func (m *model) send(cdb, out []byte, in int, opts ...func(*call)) *result {
	for {
		at := []TaskAttr{AttrSimple, AttrSimple, AttrSimple, AttrOrdered, AttrHeadOfQueue}[m.rnd.IntN(5)]
		c := m.r.start(m.n, 0, cdb, out, in, append(opts, attr(at))...)
		if m.rnd.IntN(20) == 0 {
			done := make(chan TMFResponse, 1)
			m.r.dev.Manage(m.n, AbortTask, 0, &c.Task, func(x TMFResponse) { done <- x })
			if x := <-done; x != TMFComplete && x != TMFNoTask {
				m.t.Errorf("ABORT TASK: %v", x)
			}
		}
		got := m.r.finish(c)
		if got.status == spc.StatusCheckCondition && got.sd.Key == spc.KeyUnitAttention {
			continue
		}
		return got
	}
}

// disturb resets the unit, or clears its task set, for everybody, or ends what
// this initiator has there.
func (m *model) disturb() {
	if m.rnd.IntN(8) != 0 {
		return
	}
	f := []TMF{LogicalReset, ClearTaskSet, AbortTaskSet, NexusReset}[m.rnd.IntN(4)]
	done := make(chan TMFResponse, 1)
	m.r.dev.Manage(m.n, f, 0, nil, func(x TMFResponse) { done <- x })
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		m.t.Errorf("task management function %d does not end", f)
	}
}

func (m *model) fresh(n int) []byte {
	p := make([]byte, n)
	v := byte(m.rnd.IntN(256))
	for i := range p {
		p[i] = v + byte(i)*3 + byte(i>>9)
	}
	return p
}

// unasked lets some of the data come with the command or unasked behind it.
func (m *model) unasked(n int) func(*call) {
	switch m.rnd.IntN(3) {
	case 0:
		return immediate(m.rnd.IntN(n + 1))
	case 1:
		return func(c *call) { c.UnsolicitedLen = uint32(m.rnd.IntN(n + 1)) }
	}
	return func(*call) {}
}

func (m *model) allKnown(k, n int) bool {
	for _, x := range m.known[k : k+n] {
		if !x {
			return false
		}
	}
	return true
}

// wrote notes the effect of a command that changes blocks.
func (m *model) wrote(got *result, k, n, bs int, p []byte) {
	switch {
	case got.status == spc.StatusGood:
		copy(m.data[k*bs:], p)
		for i := range n {
			m.known[k+i] = true
		}
	case got.status == spc.StatusTaskAborted:
		for i := range n {
			m.known[k+i] = false
		}
	case got.sd.Key == spc.KeyMiscompare && !m.allKnown(k, n), got.status == spc.StatusBusy:
	default:
		m.t.Errorf("% x: %v, %v", got.cdb, got.status, got.sd)
	}
}

func (m *model) compare(got []byte, k, bs int, what string) {
	for i := 0; i < len(got); i += bs {
		b := k + i/bs
		if m.known[b] && !bytes.Equal(got[i:i+bs], m.data[b*bs:][:bs]) {
			m.t.Errorf("%s: block %d differs from the model", what, m.base+uint64(b))
			m.known[b] = false
		}
	}
}
