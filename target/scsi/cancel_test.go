package scsi

import (
	"testing"

	"softiser/internal/spc"
	"softiser/target/volume"
)

// movingPort gives the slot to another connection, as it were, when DataOut has been asked for.
type movingPort struct {
	loopPort
	was, is   loopPort
	moved     bool
	cancelled []volume.Port
}

func (p *movingPort) Via() volume.Port {
	if p.moved {
		return &p.is
	}
	return &p.was
}

func (p *movingPort) DataOut(t *Task, off uint32, segs [][]byte) error {
	t.Nexus.AbortTask(t)
	p.moved = true
	return p.loopPort.DataOut(t, off, segs)
}

func (p *movingPort) Cancel(_ *Task, via volume.Port) { p.cancelled = append(p.cancelled, via) }

// Who cancels a DataOut says where the command came from, not whose its slot may be by then.
func TestCancelSaysWhere(t *testing.T) {
	r := newRig(t, Config{}, LUConfig{Volume: newVolume(t, 8<<20, 512)})
	warm(t, r)
	var task Task
	p := &movingPort{}
	task.CDB, task.Attr, task.Nexus, task.Port, task.OutLen = spc.AppendWrite(nil, 8, 8, false), AttrSimple, r.nx[0], p, 4096
	r.dev.Execute(&task)
	if len(p.cancelled) != 2 || p.cancelled[0] != &p.was || p.cancelled[1] != &p.was {
		t.Errorf("cancelled at %v, want twice %p", p.cancelled, &p.was)
	}
	task.DataOutDone(nil)
	task.Release()
}
