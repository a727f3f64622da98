package nvmf_test

import (
	"encoding/binary"
	"io"
	"net"
	"testing"
	"time"

	"softiser/internal/alloctest"
	"softiser/internal/nvme"
	"softiser/internal/nvmetcp"
)

// bareQueue is an I/O queue of a host that allocates nothing itself: it has one command
// at a time, whose PDUs are made before.
type bareQueue struct {
	t    testing.TB
	nc   net.Conn
	in   []byte
	h2c  nvmetcp.Data
	cqe  [nvmetcp.CapsuleRespLen]byte
	hold [nvmetcp.DataLen]byte
}

// bare connects I/O queue 1 of a host's controller.
func (h *host) bare() *bareQueue {
	h.t.Helper()
	nc, err := net.Dial("tcp", h.r.addr)
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { nc.Close() })
	nc.SetDeadline(time.Now().Add(time.Minute))
	b := &bareQueue{t: h.t, nc: nc, in: make([]byte, 4<<20)}
	b.must(nc.Write((&nvmetcp.ICReq{}).AppendTo(nil)))
	b.must(io.ReadFull(nc, b.in[:nvmetcp.ICLen]))
	var s nvme.SQE
	c := s.NewConnect()
	c.SetQID(1)
	c.SetSQSize(31)
	if st := b.do(bareCommand(s, 0, h.data.AppendTo(nil), true), nil); st != nvme.Success {
		h.t.Fatal(st)
	}
	return b
}

func (b *bareQueue) must(_ int, err error) {
	if err != nil {
		b.t.Helper()
		b.t.Fatal(err)
	}
}

// bareCommand is the PDU of a command with n bytes for the host, or with data of it.
func bareCommand(s nvme.SQE, n int, data []byte, inCapsule bool) []byte {
	var k nvmetcp.CapsuleCmd
	s.SetCID(7)
	if inCapsule {
		s.SGL().SetBlock(nvme.SGLInCapsule, 0, uint32(len(data)))
	} else {
		s.SGL().SetBlock(nvme.SGLTransport, 0, uint32(n+len(data)))
		data = nil
	}
	*k.SQE() = s
	k.SetHeader(0, uint32(len(data)), 0)
	return append(k[:], data...)
}

// do sends a command and takes what comes back until it has ended; out is for R2Ts.
func (b *bareQueue) do(pdu, out []byte) nvme.Status {
	b.must(b.nc.Write(pdu))
	for {
		b.must(io.ReadFull(b.nc, b.hold[:nvmetcp.CHLen]))
		h := (*nvmetcp.CH)(b.hold[:])
		n := int(binary.LittleEndian.Uint32(b.hold[4:])) - nvmetcp.CHLen
		switch h.Type() {
		case nvmetcp.TypeC2HData:
			b.must(io.ReadFull(b.nc, b.in[:n]))
		case nvmetcp.TypeR2T:
			b.must(io.ReadFull(b.nc, b.hold[nvmetcp.CHLen:]))
			d := (*nvmetcp.Data)(b.hold[:])
			b.h2c.Set(nvmetcp.TypeH2CData, nvmetcp.FlagLast, 0, d.CCCID(), d.TTAG(), d.Offset(), d.Length(), 0)
			b.must(b.nc.Write(b.h2c[:]))
			b.must(b.nc.Write(out[d.Offset():][:d.Length()]))
		case nvmetcp.TypeCapsuleResp:
			copy(b.cqe[:], b.hold[:nvmetcp.CHLen])
			b.must(io.ReadFull(b.nc, b.cqe[nvmetcp.CHLen:]))
			return (*nvmetcp.CapsuleResp)(b.cqe[:]).CQE().Status()
		default:
			b.t.Fatalf("%s", h.Type())
		}
	}
}

// Nothing is allocated for a command, neither in the front end nor below it: inline, on a
// worker, with data in the capsule and without.
func TestNoAllocationPerCommand(t *testing.T) {
	r := open(t, nil)
	q := r.attach(hostNQN, 10, 0).bare()
	page, long := make([]byte, 4096), make([]byte, 1<<20)
	var flush nvme.SQE
	flush.Init(nvme.OpFlush, 1)
	fua := rw(nvme.OpWrite, 0, 8)
	fua.SetCDW(12, fua.CDW(12)|1<<30)
	deallocate := rw(nvme.OpWriteZeroes, 8, 8)
	deallocate.SetCDW(12, deallocate.CDW(12)|1<<25)
	for _, tt := range []struct {
		name string
		pdu  []byte
		out  []byte
	}{
		{"Read 4 KiB", bareCommand(rw(nvme.OpRead, 8, 8), 4096, nil, false), nil},
		{"Read 1 MiB", bareCommand(rw(nvme.OpRead, 0, 2048), 1<<20, nil, false), nil},
		{"Write 4 KiB in the capsule", bareCommand(rw(nvme.OpWrite, 8, 8), 0, page, true), nil},
		{"Write 4 KiB by R2T", bareCommand(rw(nvme.OpWrite, 8, 8), 0, page, false), page},
		{"Write 1 MiB", bareCommand(rw(nvme.OpWrite, 0, 2048), 0, long, false), long},
		{"Write with FUA", bareCommand(fua, 0, page, true), nil},
		{"Write with FUA by R2T", bareCommand(fua, 0, page, false), page},
		{"Flush", bareCommand(flush, 0, nil, false), nil},
		{"Write Zeroes", bareCommand(rw(nvme.OpWriteZeroes, 8, 8), 0, nil, false), nil},
		{"Write Zeroes that deallocates", bareCommand(deallocate, 0, nil, false), nil},
		{"Compare", bareCommand(rw(nvme.OpCompare, 8, 8), 0, page, true), nil},
		{"Compare by R2T", bareCommand(rw(nvme.OpCompare, 8, 8), 0, page, false), page},
		{"Verify", bareCommand(rw(nvme.OpVerify, 0, 2048), 0, nil, false), nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bad := nvme.Success
			once := func() {
				if st := q.do(tt.pdu, tt.out); st != nvme.Success {
					bad = st
				}
			}
			for range 10 {
				once()
			}
			if n := alloctest.PerRun(200, once); n != 0 {
				t.Errorf("%v allocations per command", n)
			}
			if bad != nvme.Success {
				t.Error(bad)
			}
		})
	}
}
