package nvmf_test

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"slices"
	"syscall"
	"testing"
	"time"

	"softiser/blockdev"
	"softiser/internal/await"
	"softiser/internal/nvme"
	"softiser/internal/nvmetcp"
	"softiser/target"
	"softiser/target/nvmf"
)

// thrown is a command of FuzzCommands as its bytes say it:
//
//	0 where: bits 0 and 1 the queue, 2 wait for the answer, 3 do not send data,
//	  4 and 5 FUSE, 6 room for as many bytes as the command is about
//	1 opcode | 2 NSID, FFh for all | 3 command dwords 10 to 15 | 27 room for data 2 | 29 length of data 2
//	31 data
type thrown []byte

const thrownLen = 31

func throwable(where byte, s nvme.SQE, in int, out []byte) []byte {
	b := append([]byte{where, s[0], s[4]}, s[40:64]...)
	b = binary.LittleEndian.AppendUint16(b, uint16(in))
	b = binary.LittleEndian.AppendUint16(b, uint16(len(out)))
	return append(b, out...)
}

func (b thrown) sqe() (s nvme.SQE) {
	s.Init(nvme.Opcode(b[1]), uint32(b[2]))
	if b[2] == 0xff {
		s.SetNSID(nvme.NSIDAll)
	}
	copy(s[40:], b[3:27])
	s.SetFuse(nvme.Fuse(b[0] >> 4 & 3))
	return s
}

// data is what the command has room for, and what it brings.
func (b thrown) data(s *nvme.SQE) (in, out []byte) {
	n := int(binary.LittleEndian.Uint16(b[27:]))
	if b[0]&0x40 != 0 {
		switch {
		case b[0]&3 == 1:
			n = int(s.ReadWrite().Blocks()) * 512
		case s.Opcode() == nvme.AdminGetLogPage:
			n = int(min(s.GetLogPage().Length(), 1<<20))
		default:
			n = nvme.IdentifyLen
		}
	}
	switch {
	case s.ToHost():
		in = make([]byte, n)
	case s.FromHost():
		out = b[thrownLen:]
		if b[0]&0x40 != 0 && b[0]&3 == 1 && s.Opcode() != nvme.OpDatasetManagement && s.Opcode() != nvme.OpCopy {
			out = slices.Concat(out, make([]byte, n))[:n]
		}
	}
	return in, out
}

// bare makes a command of its dwords, from 10 on.
func bare(op nvme.Opcode, nsid uint32, dwords ...uint32) (s nvme.SQE) {
	s.Init(op, nsid)
	for i, v := range dwords {
		s.SetCDW(10+i, v)
	}
	return s
}

// FuzzCommands throws commands at a controller, at its admin queue, an I/O queue and a connection that
// has not connected. Each is answered, with no more data than there is room for; nothing is left of them.
func FuzzCommands(f *testing.F) {
	const admin, io1, fresh, wait, silent, first, second, fits = 0, 1, 2, 4, 8, 0x10, 0x20, 0x40
	var s nvme.SQE
	var seed []byte
	for _, c := range []nvme.CNS{nvme.CNSController, nvme.CNSNamespace, nvme.CNSActiveNamespaces, nvme.CNSDescriptors, nvme.CNSControllers, nvme.CNSCommandSets} {
		s.NewIdentify(c, 1)
		seed = append(seed, throwable(admin|wait|fits, s, 0, nil)...)
	}
	f.Add(seed)
	seed = nil
	for _, l := range []nvme.LogID{nvme.LogSupported, nvme.LogError, nvme.LogSMART, nvme.LogFirmware, nvme.LogChangedNamespaces, nvme.LogCommandEffects, nvme.LogANA, nvme.LogSanitize, nvme.LogReservation, nvme.LogDiscovery} {
		s.NewGetLogPage(l, nvme.NSIDAll, 0, 512)
		seed = append(seed, throwable(admin|wait|fits, s, 0, nil)...)
	}
	f.Add(seed)
	seed = nil
	for id := range uint32(0x20) {
		seed = append(seed, throwable(admin|wait|fits, bare(nvme.AdminGetFeatures, 1, id), 0, nil)...)
		seed = append(seed, throwable(admin|wait|fits, bare(nvme.AdminSetFeatures, 1, id, 0x3f), 0, make([]byte, 16))...)
	}
	f.Add(seed)
	f.Add(slices.Concat(throwable(admin, bare(nvme.AdminAsyncEvent, 0), 0, nil), throwable(admin, bare(nvme.AdminSetFeatures, 1, 0x84, 1), 0, nil),
		throwable(io1, rw(nvme.OpWrite, 0, 1), 0, make([]byte, 512)), throwable(admin|wait, bare(nvme.AdminFormatNVM, 1), 0, nil),
		throwable(admin|wait, bare(nvme.AdminSanitize, 0, 2), 0, nil), throwable(admin|wait, bare(nvme.AdminAbort, 0, 1|3<<16), 0, nil)))
	seed = nil
	for op := range nvme.Opcode(0x80) {
		if op != 0x7f { // Fabrics
			seed = append(seed, throwable(io1|wait|fits, rw(op, 8, 8), 0, make([]byte, 16))...)
		}
	}
	f.Add(seed)
	f.Add(slices.Concat(throwable(io1|fits|first, rw(nvme.OpCompare, 0, 40), 0, nil), throwable(io1|fits|second, rw(nvme.OpWrite, 0, 40), 0, []byte{1}),
		throwable(io1|fits|first, rw(nvme.OpCompare, 0, 1), 0, nil), throwable(io1|fits, rw(nvme.OpRead, 0, 1), 0, nil)))
	f.Add(slices.Concat(throwable(io1|fits|silent, rw(nvme.OpWrite, 0, 40), 0, nil), throwable(io1|fits, rw(nvme.OpRead, 8, 8), 0, nil),
		throwable(admin, bare(nvme.AdminAbort, 0, 1|2<<16), 0, nil)))
	ranges := nvme.AppendDSMRange(nvme.AppendDSMRange(nil, nvme.BlockRange{LBA: 32, Blocks: 8}), nvme.BlockRange{LBA: 64, Blocks: 8})
	copies := nvme.AppendCopyRange(nvme.AppendCopyRange(nil, nvme.BlockRange{LBA: 32, Blocks: 8}), nvme.BlockRange{LBA: 64, Blocks: 8})
	f.Add(slices.Concat(throwable(io1|wait, *s.NewDeallocate(1, 2).SQE, 0, ranges), throwable(io1|wait, bare(nvme.OpCopy, 1, 0, 0, 1), 0, copies)))
	f.Add(slices.Concat(throwable(io1|wait, bare(nvme.OpReservationRegister, 1, 0), 0, binary.LittleEndian.AppendUint64(make([]byte, 8), 7)),
		throwable(io1|wait, bare(nvme.OpReservationAcquire, 1, 1<<8), 0, binary.LittleEndian.AppendUint64(nil, 7)),
		throwable(io1|wait, bare(nvme.OpReservationReport, 1, 63, 1), 256, nil), throwable(io1|wait, bare(nvme.OpReservationRelease, 1, 1<<8), 0, binary.LittleEndian.AppendUint64(nil, 7))))
	s.NewConnect().SetSQSize(31)
	d := nvme.ConnectData{HostID: nvme.HostID{15: 10}, CntlID: nvme.CntlIDDynamic, Subsystem: subNQN, Host: hostNQN}
	f.Add(slices.Concat(throwable(fresh|wait, s, 0, d.AppendTo(nil)), throwable(fresh|wait, s, 0, d.AppendTo(nil))))
	s.NewPropertySet(nvme.PropCC, uint64(nvme.NewConfig(nvme.CommandSetAll, false)))
	off := throwable(admin|wait, s, 0, nil)
	s.NewPropertyGet(nvme.PropCSTS)
	f.Add(slices.Concat(off, throwable(io1, rw(nvme.OpRead, 0, 1), 512, nil), throwable(admin|wait, s, 0, nil)))

	f.Fuzz(func(t *testing.T, b []byte) {
		staging, err := blockdev.NewPool(8 << 20)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { // after the server's end
			if out, kept := staging.Out(), staging.Reserved(); out != 0 || kept != 0 {
				t.Errorf("%d bytes of staging memory are out, %d reserved", out, kept)
			}
			if err := staging.Close(); err != nil {
				t.Error(err)
			}
		})
		r := open(t, func(c *target.Config, s *nvmf.SubsystemConfig) {
			c.Staging = staging
			s.Namespaces[0].Volume = newMem(t, 1<<20)
		})
		h := r.attach(hostNQN, 10, 1)
		qs := []*queue{h.queue, h.io[0], dial(t, r.addr)}
		type pending struct {
			q *queue
			c *command
		}
		var all []pending
		owed := false // data, which others may wait for
		for n := 0; len(b) >= thrownLen && n < 100; n++ {
			size := min(int(binary.LittleEndian.Uint16(b[29:])), len(b)-thrownLen)
			x := thrown(b[:thrownLen+size])
			b = b[len(x):]
			q := qs[int(x[0]&3)%len(qs)]
			s := x.sqe()
			in, out := x.data(&s)
			if x[0]&silent != 0 && len(out) > inline {
				owed = true
				q.startSilent(s, out)
				continue
			}
			c := q.start(s, in, out)
			if q == h.queue && s.Opcode() == nvme.AdminAsyncEvent {
				continue // answered when something happens
			}
			all = append(all, pending{q, c})
			if x[0]&wait != 0 && !owed && s.Fuse() != nvme.FuseFirst {
				q.answered(t, c)
			}
		}
		if !owed {
			h.io[0].start(bare(nvme.OpFlush, 1), nil, nil) // for the first half that waits for its other
			for _, p := range all {
				p.q.answered(t, p.c)
			}
		}
		for _, q := range qs {
			q.close()
			var term *terminated
			if why := q.err; errors.As(why, &term) || !errors.Is(why, io.EOF) && !errors.Is(why, io.ErrUnexpectedEOF) && !errors.Is(why, syscall.ECONNRESET) && !errors.Is(why, net.ErrClosed) {
				t.Error(why)
			}
		}
		await.True(t, "nothing is left", func() bool { return len(r.srv.Controllers()) == 0 && nvmetcp.BuffersOut() == 0 })
	})
}

// answered waits for the answer to a command, or the end of the connection.
func (q *queue) answered(t *testing.T, c *command) {
	select {
	case <-c.done:
		q.mu.Lock()
		defer q.mu.Unlock()
		if q.err == nil && c.got > len(c.in) {
			t.Errorf("%d bytes came where %d have room", c.got, len(c.in))
		}
	case <-time.After(ioTime):
		t.Fatalf("command %d is not answered", c.cid)
	}
}
