package scsi

import (
	"softiser/blockdev"
	"softiser/internal/spc"
	"softiser/target/volume"
)

// Execute runs t, on the connection's receive goroutine, as far as it goes
// without waiting. It ends with Port.Respond, now or later.
func (d *Device) Execute(t *Task) {
	t.reset(d)
	t.trimCDB()
	var i *itl
	if n, ok := spc.DecodeLUN(t.LUN); ok {
		i = t.Nexus.itls.Load().find(n)
	}
	if i == nil || !i.lu.place.Use() {
		d.executeNoLU(t)
		return
	}
	lu := i.lu
	t.itl, t.lu = i, lu
	var c *command
	if len(t.CDB) > 0 {
		c = d.table.find(t.CDB)
	}
	if c == nil || c.offered != nil && !c.offered(lu) {
		d.executeUnknown(t, c)
		return
	}
	t.op = c
	if i.pending.Load() != 0 && !c.has(fNoUA) {
		if a, ok := i.take(); ok {
			t.fail(spc.KeyUnitAttention, a)
			return
		}
	}
	if t.Attr >= AttrACA {
		t.fail(spc.KeyAborted, spc.ASCInvalidMessage)
		return
	}
	if asksForACA(t) {
		t.badCDB(len(t.CDB) - 1)
		return
	}
	if g := lu.gates() & c.gates; g != 0 {
		t.refuse(g)
		return
	}
	if !i.path.allows(t) {
		return
	}
	if lu.conflicts(t, c) {
		t.status(spc.StatusReservationConflict)
		return
	}
	if c.has(fIO) {
		if !t.decodeIO() {
			return
		}
	} else if c.hold != volume.HoldNone {
		t.Cover(0, ^uint64(0), c.hold)
	}
	t.job = (*Task).enable
	t.Op.Client, t.Op.Order = &t.Nexus.client, orders[t.Attr]
	if lu.vol.Admit(&t.Op) {
		t.enable()
	}
}

// trimCDB cuts the CDB to the length that its operation code says, 0 if it is shorter.
func (t *Task) trimCDB() {
	size := spc.CDBLen(t.CDB)
	if size > len(t.CDB) {
		size = 0
	}
	t.CDB = t.CDB[:size]
}

// orders translates task attributes (SAM-5 §8.6); AttrACA has been refused.
var orders = [...]volume.Order{AttrUntagged: volume.Simple, AttrSimple: volume.Simple, AttrOrdered: volume.Ordered, AttrHeadOfQueue: volume.HeadOfQueue}

// enable starts a task that is in the task set and whose turn has come. It checks gates and
// reservation again, even for a task that did not wait: a reservation applies to the command
// that enters the enabled state (SPC-4 §5.12.1), and once PREEMPT AND ABORT has been
// answered, no command of the preempted initiator may take effect. A task that entered the
// task set too late to be aborted by it sees the new reservation here, as that is published
// before the abort looks for tasks.
func (t *Task) enable() {
	lu := t.lu
	if g := lu.gates() & t.op.gates; g != 0 {
		t.refuse(g)
		return
	}
	if lu.conflicts(t, t.op) {
		t.status(spc.StatusReservationConflict)
		return
	}
	if t.writes() && lu.vol.BeforeChange(blockdev.NoWait, nil) != nil {
		t.toWorker(func(t *Task) {
			if err := t.lu.vol.BeforeChange(blockdev.Wait, t.Stop()); err != nil {
				t.failErr(err, volume.Writing)
				return
			}
			t.start()
		})
		return
	}
	t.start()
}

// writes reports whether the command changes blocks.
func (t *Task) writes() bool { return t.op.gates&volume.ReadOnly != 0 && t.op.op != spc.OpSanitize }

// start runs an enabled task, unless its volume's rate limit holds it back.
func (t *Task) start() {
	if t.lu.vol.Limited() && t.op.has(fDataRead|fDataWrite) {
		t.job, t.Op.Bytes = t.op.run, t.n
		if t.lu.vol.Throttle(&t.Op) {
			return
		}
	}
	t.op.run(t)
}

// asksForACA reports the NACA bit of the control byte, which asks for an ACA
// condition.
func asksForACA(t *Task) bool {
	if spc.Opcode(t.CDB[0]) == spc.OpVariable {
		return t.CDB[1]&0x04 != 0
	}
	return t.CDB[len(t.CDB)-1]&0x04 != 0
}

// decodeIO decodes and checks the blocks of a medium access command: protection
// information is not there (RDPROTECT and the like must be 0), the address must
// lie on the medium even for 0 blocks (SBC-3 §5.11), and READ and WRITE keep to
// the longest transfer.
func (t *Task) decodeIO() bool {
	g := t.lu.geo()
	t.io = spc.ParseIO(t.CDB)
	if t.op.op == spc.OpCompareAndWrite {
		t.io.Blocks = uint32(t.CDB[13])
	} else if t.op.op == spc.OpWriteAtomic16 {
		t.io.Blocks &= 0xFFFF // bytes 10-11 are the atomic boundary
	}
	if t.op.has(fAlloc) {
		return true
	}
	if t.io.LBA > g.Blocks || uint64(t.io.Blocks) > g.Blocks-t.io.LBA {
		s := spc.Sense{Key: spc.KeyIllegalRequest, ASC: spc.ASCLBAOutOfRange}
		s.InfoValid, s.Info = true, t.io.LBA
		t.check(&s)
		return false
	}
	if t.io.Protect() != 0 {
		t.badCDB(1)
		return false
	}
	t.off = int64(t.io.LBA) << g.Shift
	t.n = int64(t.io.Blocks) << g.Shift
	if t.op.has(fDataRead|fDataWrite) && t.n > int64(t.lu.cfg.MaxTransfer) {
		t.badCDB(lengthField(len(t.CDB)))
		return false
	}
	t.Cover(t.io.LBA, t.io.LBA+uint64(t.io.Blocks), t.op.hold)
	return true
}

// lengthField returns where the transfer length of a CDB of n bytes begins.
func lengthField(n int) int {
	switch n {
	case 6:
		return 4
	case 10:
		return 7
	case 12:
		return 6
	case 32:
		return 28
	}
	return 10
}

// executeUnknown refuses a command that the unit does not offer; c is its row, nil if there is
// none.
func (d *Device) executeUnknown(t *Task, c *command) {
	if c == nil && len(t.CDB) > 0 && d.table.family(t.CDB[0], t.lu) {
		t.badCDB(1) // the operation code exists, its service action does not
		return
	}
	t.illegal(spc.ASCInvalidOpcode)
}

// executeNoLU answers for a LUN that names no logical unit (SPC-4 §4.6.4,
// SAM-5 §4.7.4): INQUIRY tells so, REPORT LUNS works, the rest is refused.
func (d *Device) executeNoLU(t *Task) {
	if len(t.CDB) == 0 {
		t.illegal(spc.ASCInvalidOpcode)
		return
	}
	switch spc.Opcode(t.CDB[0]) {
	case spc.OpInquiry:
		inquiryNoLU(t)
	case spc.OpReportLUNs:
		reportLUNs(t)
	case spc.OpRequestSense:
		s := spc.Sense{Key: spc.KeyIllegalRequest, ASC: spc.ASCLUNotSupported}
		replySense(t, &s)
	case spc.OpTestUnitReady:
		if t.LUN == spc.WellKnownReportLUNs {
			t.good()
			return
		}
		fallthrough
	default:
		t.illegal(spc.ASCLUNotSupported)
	}
}
