package nvmf

import (
	"softiser/internal/nvme"
	"softiser/target/volume"
)

// ioTable is the commands of I/O queues by their opcodes.
var ioTable [256]ioCommand

func init() {
	ioTable = [256]ioCommand{
		nvme.OpFlush:               {access: volume.Writes, run: func(r volumeRequest) { flushRequest{r}.start() }},
		nvme.OpWrite:               {access: volume.Writes, hold: volume.HoldWrite, ranged: true, data: true, run: func(r volumeRequest) { writeRequest{r}.start() }},
		nvme.OpRead:                {access: volume.Reads, hold: volume.HoldRead, ranged: true, data: true, run: func(r volumeRequest) { readRequest{r}.start() }},
		nvme.OpWriteUncorrectable:  {access: volume.Writes, hold: volume.HoldStaged, ranged: true, run: func(r volumeRequest) { markRequest{r}.start() }},
		nvme.OpCompare:             {access: volume.Reads, hold: volume.HoldRead, ranged: true, data: true, run: func(r volumeRequest) { scanRequest{r}.compare() }},
		nvme.OpWriteZeroes:         {access: volume.Writes, hold: volume.HoldWrite, ranged: true, run: func(r volumeRequest) { zeroRequest{r}.write() }},
		nvme.OpDatasetManagement:   {access: volume.Writes, hold: volume.HoldStaged, run: func(r volumeRequest) { zeroRequest{r}.manage() }},
		nvme.OpCopy:                {access: volume.Writes, run: func(r volumeRequest) { copyRequest{r}.start() }},
		nvme.OpVerify:              {access: volume.Reads, hold: volume.HoldRead, ranged: true, run: func(r volumeRequest) { scanRequest{r}.verify() }},
		nvme.OpReservationRegister: {access: volume.Always, run: func(r volumeRequest) { reservationRequest{r}.register() }},
		nvme.OpReservationReport:   {access: volume.Always, run: func(r volumeRequest) { reservationRequest{r}.report() }},
		nvme.OpReservationAcquire:  {access: volume.Always, run: func(r volumeRequest) { reservationRequest{r}.acquire() }},
		nvme.OpReservationRelease:  {access: volume.Always, run: func(r volumeRequest) { reservationRequest{r}.unreserve() }},
	}
}

// arrive checks an I/O command and brings it into its volume's task set.
func (r volumeRequest) arrive() {
	sqe := r.sqe()
	row := &ioTable[sqe.Opcode()]
	if row.run == nil || sqe.Opcode() == nvme.OpWriteUncorrectable && !r.q.ctrl.sub.anyMarks() {
		r.end(nvme.InvalidOpcode | nvme.DoNotRetry)
		return
	}
	if sqe.Opcode() == nvme.OpFlush && sqe.NSID() == nvme.NSIDAll {
		flushRequest{r}.all()
		return
	}
	if s := r.check(row); s != nvme.Success {
		r.end(s)
		return
	}
	r.admit()
}
