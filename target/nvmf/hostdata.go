package nvmf

import (
	"errors"
	"time"

	"softiser/internal/nvme"
	"softiser/target/volume"
)

// This file moves data between a command and its host: the host's SGL, parameters from the
// host, answers to it, and the buffers that hold them meanwhile.

// hostData returns how many bytes the command's SGL has for or from the host.
func (r *request) hostData() (uint32, nvme.Status) {
	d := r.sqe().SGL()
	n := d.Length()
	switch k := d.Kind(); {
	case r.q.t.NamesHostMemory(k):
		return n, nvme.Success
	case k != nvme.SGLInCapsule:
		return 0, nvme.SGLTypeInvalid | nvme.DoNotRetry
	case n == 0:
		return 0, nvme.Success
	case !r.sqe().FromHost():
		return 0, nvme.InvalidField | nvme.DoNotRetry
	case d.Address() != 0: // the capsule has one piece of data
		return 0, nvme.SGLOffsetInvalid | nvme.DoNotRetry
	case int(n) != len(r.cmd.Data):
		return 0, nvme.SGLDataLengthInvalid | nvme.DoNotRetry
	}
	return n, nvme.Success
}

// inCapsule reports whether the host's data came with the command.
func (r *request) inCapsule() bool {
	return len(r.cmd.Data) > 0 && r.sqe().SGL().Kind() == nvme.SGLInCapsule
}

// fetch asks for the host's data from offset off into r.segs, and goes on with then.
func (r *request) fetch(off uint32, then func(*request)) {
	r.onData = then
	use, other := r.use.Load(), r.fused.other
	r.Stamp(volume.Leased)
	r.asked.Store(int64(time.Since(r.q.fe.epoch)))
	if err := r.q.t.GetData(r.cmd, off, r.segs); err != nil {
		r.arrived(err)
		return
	}
	// An abort that came before GetData found nothing to cancel. From here on the
	// command may have ended; cancelling its use is a no-op then.
	if r.Aborted() || other != nil && other.Aborted() {
		r.q.t.Cancel(use)
	}
}

// arrived goes on with a command whose data has come, or will not.
func (r *request) arrived(err error) {
	r.asked.Store(0)
	switch {
	case r.stopped():
		r.end(nvme.AbortRequested)
	case errors.Is(err, nvme.ErrDataDigest):
		r.end(nvme.TransientTransport)
	case err != nil:
		r.end(nvme.DataTransferError)
	default:
		r.Stamp(volume.Placed)
		r.onData(r)
	}
}

// param brings n bytes of parameters to r.params, and goes on with then.
func (r *request) param(n int, then func(*request)) {
	have, s := r.hostData()
	if s == nvme.Success && int64(have) < int64(n) {
		s = nvme.SGLDataLengthInvalid | nvme.DoNotRetry
	}
	if s == nvme.Success && have > maxTransfer { // MDTS: what is longer is not even given room
		s = nvme.InvalidField | nvme.DoNotRetry
	}
	if s != nvme.Success {
		r.end(s)
		return
	}
	if r.inCapsule() {
		r.params = r.cmd.Data[:n]
		then(r)
		return
	}
	if !r.room(int(have)) {
		return
	}
	r.params = r.buf[:n]
	r.segs = append(r.segs[:0], r.buf)
	r.fetch(0, then)
}

// getBuf gives n bytes, whatever they hold, to the command, counted against the memory that hosts can make
// the target hold.
func (r *request) getBuf(n int) bool {
	fe := r.q.fe
	if !r.q.memory.Reserve(volume.BufferSize(n)) {
		return false
	}
	r.buf = fe.bufs.Get(n)[:n]
	return true
}

func (r *request) putBuf() {
	if r.buf == nil {
		return
	}
	fe := r.q.fe
	r.q.memory.Unreserve(cap(r.buf))
	fe.bufs.Put(r.buf)
	r.buf = nil
}

// room makes room for n bytes of parameters or of an answer; if there is none it has ended the command.
func (r *request) room(n int) bool {
	if !r.getBuf(n) {
		r.end(nvme.CommandInterrupted)
		return false
	}
	return true
}

// answer ends a command that has room with data, and zeroes behind it.
func (r *request) answer(data []byte) {
	clear(r.buf[copy(r.buf, data):])
	r.reply(r.buf)
}

// reply ends the command with data, of which the host may have room for less.
func (r *request) reply(data []byte) {
	have, s := r.hostData()
	if s != nvme.Success {
		r.end(s)
		return
	}
	if have == 0 {
		r.end(nvme.SGLDataLengthInvalid | nvme.DoNotRetry)
		return
	}
	r.segs = append(r.segs[:0], data[:min(len(data), int(have))])
	r.q.t.PutData(r.cmd, 0, r.segs, true)
	r.Stamp(volume.Placed)
	r.end(nvme.Success)
}
