package scsi

import (
	"softiser/internal/spc"

	"softiser/target/volume"
)

// request is a Task as its volume sees it.
type request Task

// taskOf returns the task that an op is part of; nil for an op of another front end.
func taskOf(o *volume.Op) *Task {
	r, _ := o.Request().(*request)
	return (*Task)(r)
}

// Step implements volume.Request.
func (r *request) Step(why volume.Cause) {
	t := (*Task)(r)
	switch why {
	case volume.Abort:
		t.end()
	case volume.TimeOut:
		t.status(spc.StatusBusy)
	default:
		t.job(t)
	}
}

// Via implements volume.Request.
func (r *request) Via() volume.Port { return r.task().Port.Via() }

func (r *request) task() *Task { return (*Task)(r) }

// Describe implements volume.Request.
func (r *request) Describe(c *volume.TracedCommand) {
	t := r.task()
	c.Node, c.Unit, c.Initiator = t.dev.cfg.Name, uint32(t.lu.lun), t.Nexus.initiator
	c.Command = "no CDB"
	if len(t.CDB) > 0 {
		c.Command = spc.Opcode(t.CDB[0]).String()
	}
	if t.op != nil && t.op.has(fIO) {
		c.LBA, c.Bytes = t.io.LBA, t.n
	}
	t.Port.Describe(c)
}

// respond gives the status to the port.
func (t *Task) respond() {
	if t.Op.Traced() {
		t.Op.Tell(t.outcome())
	}
	t.Port.Respond(t)
}

// outcome is the status of a task in words.
func (t *Task) outcome() string {
	if t.Silent {
		return "aborted"
	}
	if s, err := spc.ParseSense(t.Sense[:t.SenseLen]); t.Status == spc.StatusCheckCondition && err == nil {
		return t.Status.String() + ": " + s.String()
	}
	return t.Status.String()
}

// Cancel implements volume.Request. The Port of a slot is always the same.
func (r *request) Cancel(via volume.Port) { r.Port.Cancel(r.task(), via) }

// toWorker hands t to a worker, which calls job.
func (t *Task) toWorker(job func(*Task)) {
	t.job = job
	t.lu.vol.ToWorker(&t.Op)
}

// toSyncer is toWorker for a job that makes data durable.
func (t *Task) toSyncer(job func(*Task)) {
	t.job = job
	t.lu.vol.ToSyncer(&t.Op)
}

// toCommitter is toWorker for a job that makes what was received the content of its blocks.
func (t *Task) toCommitter(job func(*Task), fua bool) {
	t.job = job
	t.lu.vol.ToCommitter(&t.Op, fua)
}

// exclusively runs job on a worker with the blocks of t held exclusively, until the
// task ends or yields.
func (t *Task) exclusively(job func(*Task)) {
	t.job = job
	t.lu.vol.Exclusively(&t.Op)
}

// writing goes on with job on a worker, as a write of the task's range (volume.Tasks.JoinWrites).
func (t *Task) writing(job func(*Task)) {
	t.job = job
	t.lu.vol.JoinWrites(&t.Op)
}

// end is the last step of every task: it leaves the task set, its status goes to the port,
// and then the task management functions that waited for it go on. An aborted task gets the
// status that its abort calls for (TAS), and CHECK CONDITION may abort other tasks (QERR;
// both SPC-4 §7.5.8).
func (t *Task) end() {
	lu := t.lu
	if lu == nil || !t.Op.InSet() {
		// Never admitted: no such logical unit, or refused before the task set.
		if lu != nil {
			lu.vol.TraceRefused(&t.Op)
		}
		t.Op.Refused()
		t.respond()
		return
	}
	why, waits := lu.vol.Leave(&t.Op)
	switch {
	case why == volume.AbortedByNode:
		// SPC-4 §5.15.2.5: the state changes; the initiator repeats the command.
		t.Sent = 0
		t.setSense(&spc.Sense{Key: spc.KeyNotReady, ASC: spc.ASCAccessTransition})
	case why != volume.NotAborted:
		t.Status, t.SenseLen, t.Sent = spc.StatusTaskAborted, 0, 0
		t.Silent = why == volume.AbortedByOwner || !t.told && !lu.modes.tas.Load()
	}
	if t.Status == spc.StatusCheckCondition {
		if q := lu.modes.qerr.Load(); q != qerrContinue {
			others := lu.queueError(t, q == qerrAbortAll)
			t.respond()
			others.Finish()
			waits.Done()
			return
		}
	}
	t.respond()
	if waits != nil {
		waits.Done()
	}
}

// queueError applies QERR after a CHECK CONDITION of t (SPC-4 §7.5.8): 01b aborts the
// whole task set, 11b the tasks of the same nexus. What is left to do about them comes
// behind the status of t. Other initiators learn it as after CLEAR TASK SET.
func (lu *LU) queueError(t *Task, all bool) volume.Aborts {
	n, hit := t.Nexus, map[*Nexus]bool{}
	aborts := lu.vol.Mark(func(o *volume.Op) volume.AbortReason {
		x := taskOf(o)
		switch {
		case x != nil && x.Nexus == n:
			return volume.AbortedByOwner
		case all && x != nil:
			hit[x.Nexus] = true
			return volume.AbortedByOther
		case all:
			return volume.AbortedByOther
		}
		return volume.NotAborted
	}, nil)
	if len(hit) > 0 {
		lu.tellCleared(func(x *Nexus) bool { return hit[x] })
	}
	return aborts
}

// AbortTask ends one task of n early, because its connection or session ends: it
// takes the path of ABORT TASK, without a response to wait for. A task that is
// entering Execute meanwhile may be missed; its port then refuses it further
// data. The caller makes sure that t is not released before AbortTask returns.
func (n *Nexus) AbortTask(t *Task) {
	for _, i := range *n.itls.Load() {
		if i.lu.abortTask(n, t, nil) {
			return
		}
	}
	for _, lu := range *n.dev.leaving.Load() {
		if lu.abortTask(n, t, nil) {
			return
		}
	}
}

func byOwnerIf(yes bool) volume.AbortReason {
	if yes {
		return volume.AbortedByOwner
	}
	return volume.NotAborted
}

// byNexus tells why a task ends when nexus n ends all of them.
func byNexus(t *Task, n *Nexus) volume.AbortReason { return t.Op.Client.By(&n.client) }
