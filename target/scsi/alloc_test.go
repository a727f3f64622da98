package scsi

import (
	"testing"

	"softiser/internal/alloctest"
	"softiser/internal/spc"
	"softiser/target/volume"
)

// loopPort answers everything at once, on the caller's goroutine, and keeps no
// records: what remains is the device server itself.
type loopPort struct {
	pending *Task
	status  Status
	bytes   uint64
}

func (p *loopPort) DataIn(_ *Task, _ uint32, segs [][]byte) error {
	for _, s := range segs {
		p.bytes += uint64(len(s))
	}
	return nil
}

func (p *loopPort) DataOut(t *Task, _ uint32, _ [][]byte) error {
	p.pending = t
	return nil
}

func (p *loopPort) Cancel(*Task, volume.Port) {}
func (p *loopPort) Respond(t *Task)           { p.status = t.Status }
func (p *loopPort) Push()                     {}

func (p *loopPort) Via() volume.Port { return p }

func (p *loopPort) Describe(*volume.TracedCommand) {}

// run executes one prepared command to its end.
func (p *loopPort) run(d *Device, t *Task, cdb []byte, n *Nexus, in, out uint32) {
	t.CDB, t.LUN, t.Attr, t.Nexus, t.Port = cdb, 0, AttrSimple, n, p
	t.InLen, t.OutLen = in, out
	p.status = spc.StatusBusy
	d.Execute(t)
	if p.pending != nil {
		p.pending = nil
		t.DataOutDone(nil)
	}
	t.Release()
}

func warm(t testing.TB, r *rig) {
	t.Helper()
	r.do(spc.AppendWrite(nil, 0, 2048, false), make([]byte, 1<<20), 0).good()
	r.do(spc.AppendRead(nil, 0, 2048, false), nil, 1<<20).good()
}

func TestNothingAllocatedPerCommand(t *testing.T) {
	for _, p := range []Placement{PlacementDirect, PlacementVerified} {
		t.Run(p.String(), func(t *testing.T) { nothingAllocated(t, LUConfig{Volume: newVolume(t, 8<<20, 512), Placement: p}) })
	}
}

func nothingAllocated(t *testing.T, cfg LUConfig) {
	r := newRig(t, Config{}, cfg)
	warm(t, r)
	var task Task
	p := &loopPort{}
	read, write := spc.AppendRead(nil, 8, 8, false), spc.AppendWrite(nil, 8, 8, false)
	check := func(name string, f func()) {
		t.Helper()
		f()
		if p.status != spc.StatusGood {
			t.Fatalf("%s: not done inline: %v", name, p.status)
		}
		if n := alloctest.PerRun(200, f); n != 0 {
			t.Errorf("%s: %v allocations per command", name, n)
		}
	}
	check("READ", func() { p.run(r.dev, &task, read, r.nx[0], 4096, 0) })
	check("WRITE", func() { p.run(r.dev, &task, write, r.nx[0], 0, 4096) })
	data := make([]byte, 4096)
	check("WRITE with immediate data", func() {
		task.Arrived, task.UnsolicitedLen = data, 4096
		p.run(r.dev, &task, write, r.nx[0], 0, 4096)
		task.UnsolicitedLen = 0
	})
	tur := spc.AppendTestUnitReady(nil)
	check("TEST UNIT READY", func() { p.run(r.dev, &task, tur, r.nx[0], 0, 0) })
}

// BenchmarkExecute is the dispatch of a command and the lease of its memory. No
// payload is moved (except what is immediate), so it has no SetBytes.
func BenchmarkExecute(b *testing.B) {
	r := newRig(b, Config{})
	warm(b, r)
	for _, c := range []struct {
		name    string
		cdb     []byte
		in, out uint32
	}{
		{"READ-4K", spc.AppendRead(nil, 8, 8, false), 4096, 0},
		{"WRITE-4K", spc.AppendWrite(nil, 8, 8, false), 0, 4096},
		{"WRITE-4K-immediate", spc.AppendWrite(nil, 8, 8, false), 0, 4096},
		{"READ-1M", spc.AppendRead(nil, 0, 2048, false), 1 << 20, 0},
		{"TEST-UNIT-READY", spc.AppendTestUnitReady(nil), 0, 0},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			var task Task
			p := &loopPort{}
			data := make([]byte, 4096)
			for range b.N {
				if c.name == "WRITE-4K-immediate" {
					task.Arrived, task.UnsolicitedLen = data, 4096
				}
				p.run(r.dev, &task, c.cdb, r.nx[0], c.in, c.out)
			}
		})
	}
}
