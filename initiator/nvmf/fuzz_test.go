package nvmf_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"math/bits"
	"testing"
	"time"

	"softiser/initiator/blockio"
	. "softiser/initiator/nvmf"
	"softiser/internal/await"
	"softiser/internal/nvme"
)

// change is what FuzzController makes of an answer of its controller, as its bytes say it:
//
//	0 which command: opcode | 1 which kind of it, FFh for all: CNS, log page, property, Fabrics type …
//	2 bit 0: only the first | 1 status | 2 result | 3 the data ends at the offset | 4 the bytes go on to its end
//	3 status | 5 result | 13 offset in the data | 15 how many bytes | 16 bytes
type change []byte

const (
	changeLen = 16

	once, status, result, short, fill = 1, 2, 4, 8, 16

	ioKind = 0xFE // whatever is no admin command
)

func changed(op nvme.Opcode, kind, flags byte, s nvme.Status, res uint64, at int, with []byte) []byte {
	b := []byte{byte(op), kind, flags}
	b = binary.LittleEndian.AppendUint16(b, uint16(s))
	b = binary.LittleEndian.AppendUint64(b, res)
	b = binary.LittleEndian.AppendUint16(b, uint16(at))
	return append(append(b, byte(len(with))), with...)
}

// changes takes the bytes apart.
func changes(b []byte) (l []change) {
	for len(b) >= changeLen && len(l) < 32 {
		n := min(changeLen+int(b[15]), len(b))
		l = append(l, bytes.Clone(b[:n]))
		b = b[n:]
	}
	return l
}

// kindOf is what commands of one opcode are told apart by.
func kindOf(admin bool, s *nvme.SQE) byte {
	switch {
	case s.Opcode() == nvme.OpFabrics && s.FabricsType() == nvme.FabricsPropertyGet:
		return 0x80 | byte(s.Property().Offset())
	case s.Opcode() == nvme.OpFabrics:
		return byte(s.FabricsType())
	case !admin:
		return ioKind
	case s.Opcode() == nvme.AdminIdentify:
		return byte(s.Identify().CNS())
	case s.Opcode() == nvme.AdminGetLogPage:
		return byte(s.GetLogPage().ID())
	}
	return 0
}

// matches reports whether the change is one of that answer; a controller that is shut down is not asked
// for long.
func (c change) matches(q *fakeQueue, s *nvme.SQE) bool {
	kind := kindOf(q.id == 0, s)
	return c[2] != 0 && nvme.Opcode(c[0]) == s.Opcode() && (c[1] == 0xFF || c[1] == kind) && nvme.Config(q.cc).Shutdown() == nvme.ShutdownNone
}

// on changes the data.
func (c change) on(out []byte) []byte {
	at := min(int(binary.LittleEndian.Uint16(c[13:])), len(out))
	with := c[changeLen:]
	copy(out[at:], with)
	if c[2]&fill != 0 && len(with) > 0 {
		for rest := out[at:]; len(rest) > 0; rest = rest[min(len(with), len(rest)):] {
			copy(rest, with)
		}
	}
	if c[2]&short != 0 {
		out = out[:at]
	}
	return out
}

// FuzzController answers a host as its bytes say: structures, log pages, properties, features, events and
// the status of any command. The host ends what it is asked for, with a volume that is possible or an
// error, and nothing is left of it.
func FuzzController(f *testing.F) {
	const all, discovery, drop = 0xFF, 1, 2 // of the first byte
	add := func(mode byte, l ...[]byte) { f.Add(append([]byte{mode}, bytes.Join(l, nil)...)) }
	add(0)
	add(discovery)
	add(drop)
	ones := bytes.Repeat([]byte{0xFF}, 64)
	for _, cns := range []nvme.CNS{nvme.CNSController, nvme.CNSNamespace, nvme.CNSActiveNamespaces, nvme.CNSDescriptors, nvme.CNSCommandSetController} {
		add(drop, changed(nvme.AdminIdentify, byte(cns), fill, 0, 0, 0, ones))
		add(0, changed(nvme.AdminIdentify, byte(cns), short, 0, 0, 0, nil))
		add(0, changed(nvme.AdminIdentify, byte(cns), status, nvme.InternalError, 0, 0, nil))
		add(drop, changed(nvme.AdminIdentify, byte(cns), once|fill, 0, 0, 8, ones))
	}
	for _, id := range []nvme.LogID{nvme.LogDiscovery, nvme.LogANA, nvme.LogChangedNamespaces} {
		add(discovery, changed(nvme.AdminGetLogPage, byte(id), fill, 0, 0, 0, ones))
		add(0, changed(nvme.AdminGetLogPage, byte(id), fill, 0, 0, 8, ones[:2]))
		add(0, changed(nvme.AdminGetLogPage, byte(id), short, 0, 0, 0, nil))
	}
	for _, ev := range []nvme.Event{nvme.EventNamespaceChanged, nvme.EventANAChanged, nvme.EventDiscoveryChanged, 0xFFFFFFFF} {
		add(0, changed(nvme.AdminAsyncEvent, all, once|result, 0, uint64(ev), 0, nil), changed(nvme.AdminIdentify, byte(nvme.CNSNamespace), fill, 0, 0, 0, []byte{1}))
	}
	add(0, changed(nvme.AdminAsyncEvent, all, status, nvme.InvalidField, 0, 0, nil))
	for _, p := range []nvme.PropertyOffset{nvme.PropCAP, nvme.PropVS, nvme.PropCSTS} {
		for _, v := range []uint64{0, 1, 2, 1<<64 - 1} {
			add(0, changed(nvme.OpFabrics, 0x80|byte(p), result, 0, v, 0, nil))
		}
	}
	for _, v := range []uint64{0, 1, 1 << 16, 1<<64 - 1} {
		add(0, changed(nvme.AdminSetFeatures, all, result, 0, v, 0, nil))
		add(0, changed(nvme.AdminGetFeatures, all, result, 0, v, 0, nil))
		add(0, changed(nvme.OpFabrics, byte(nvme.FabricsConnect), result, 0, v, 0, nil))
	}
	for _, s := range []nvme.Status{nvme.ConnectInvalidParameters, nvme.ConnectControllerBusy, nvme.ConnectInvalidHost | nvme.DoNotRetry} {
		add(0, changed(nvme.OpFabrics, byte(nvme.FabricsConnect), status, s, 1<<16|24, 0, nil))
	}
	for _, op := range []nvme.Opcode{nvme.OpRead, nvme.OpWrite, nvme.OpFlush, nvme.OpCompare, nvme.OpWriteZeroes, nvme.OpDatasetManagement, nvme.OpReservationReport} {
		add(0, changed(op, ioKind, status, nvme.InvalidOpcode|nvme.DoNotRetry, 0, 0, nil))
		add(0, changed(op, ioKind, once|status, nvme.CommandInterrupted, 0, 0, nil))
		add(0, changed(op, ioKind, short, 0, 0, 100, nil))
	}
	add(0, changed(nvme.OpReservationReport, ioKind, fill, 0, 0, 0, ones))

	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) == 0 {
			return
		}
		l := changes(b[1:])
		c := newFake(t)
		c.ident.CMIC, c.ident.ANAGroups, c.ident.OAES = nvme.ReportsANA, 1, nvme.NoticeNamespace|nvme.NoticeANA|nvme.NoticeDiscovery
		c.ident.ONCS |= nvme.HasVerify | nvme.HasReservations
		c.limits = nvme.CommandSetLimits{VerifySize: 4}
		c.logs = map[nvme.LogID][]byte{
			nvme.LogANA: nvme.AppendANA(nil, 1, []nvme.ANAGroup{{ID: 1, State: nvme.ANAStateOptimized, Namespaces: []uint32{1}}}, false),
			nvme.LogDiscovery: nvme.AppendDiscovery(nil, 1, []nvme.DiscoveryEntry{
				{Transport: nvme.TransportTCP, Family: nvme.FamilyIPv4, Type: nvme.SubsystemNVM, Service: "4420", Subsystem: subNQN, Address: "127.0.0.1"}}),
		}
		c.alter = func(q *fakeQueue, k *nvme.Command, e *nvme.CQE, out []byte) ([]byte, bool) {
			c.mu.Lock()
			defer c.mu.Unlock()
			if q.id != 0 && k.SQE.Opcode() == nvme.OpReservationReport {
				out = make([]byte, min(k.SQE.ReservationReport().Length(), 4096))
			}
			hit := false
			for _, x := range l {
				if !x.matches(q, &k.SQE) {
					continue
				}
				hit = true
				if x[2]&status != 0 {
					e.SetStatus(nvme.Status(binary.LittleEndian.Uint16(x[3:])))
				}
				if x[2]&result != 0 {
					e.SetResult(binary.LittleEndian.Uint64(x[5:]))
				}
				out = x.on(out)
				if x[2]&once != 0 {
					x[2] = 0
				}
			}
			return out, hit
		}
		over := make(chan struct{})
		go func() {
			defer close(over)
			cfg := c.config()
			// Short, as they end what a controller like this leaves a host to wait for; nothing depends on them.
			cfg.ConnectTimeout, cfg.CommandTimeout = 300*time.Millisecond, 200*time.Millisecond
			cfg.Queues, cfg.QueueDepth, cfg.Path, cfg.SilenceProbe = 2, 4, true, -1
			if b[0]&discovery != 0 {
				cfg.Subsystem = nvme.DiscoveryNQN
			}
			a, err := Connect(t.Context(), cfg)
			if err != nil {
				return
			}
			use(t, a)
			if b[0]&drop != 0 {
				c.drop()
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				if a.WaitLive(ctx) == nil {
					use(t, a)
				}
				cancel()
			}
			_ = a.Close() // may say that the controller did not shut down
		}()
		select {
		case <-over:
		case <-time.After(await.Deadline):
			t.Fatal("the host does not come to an end")
		}
	})
}

// use asks an association for all that there is.
func use(t *testing.T, a *Association) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, _ = a.Namespaces(ctx)
	_, _ = a.DiscoveryLog(ctx)
	n, err := a.Namespace(ctx, 1)
	if err != nil {
		return
	}
	defer n.Close()
	i, l := n.Info(), n.Limits()
	block := int64(i.BlockSize)
	if block < 512 || bits.OnesCount64(uint64(block)) != 1 || i.Size <= 0 || i.Size%block != 0 {
		t.Errorf("a volume of %d bytes with blocks of %d", i.Size, block)
	}
	for _, most := range []int64{l.MaxTransfer, l.MaxUnmap, l.MaxWriteSame, l.MaxCompareAndWrite} {
		if most < 0 || most%block != 0 {
			t.Errorf("limits %+v with blocks of %d", l, block)
		}
	}
	_, _, _ = n.Access(ctx)
	_, _ = n.Reservations(ctx)
	_ = n.Fence(ctx, nil)
	span := min(i.Size, 2*block) // what the fake has room for, in two commands at most
	for _, r := range []*blockio.Request{
		{Op: blockio.OpWrite, Buf: make([]byte, span), FUA: true}, {Op: blockio.OpRead, Buf: make([]byte, span)}, {Op: blockio.OpFlush},
		{Op: blockio.OpDiscard, Len: span, FUA: true}, {Op: blockio.OpWriteZeroes, Len: span}, {Op: blockio.OpVerify, Len: span},
		{Op: blockio.OpCompareAndWrite, Buf: make([]byte, 2*block)},
	} {
		_ = n.Do(ctx, r)
	}
}
