package iscsi

import (
	"bytes"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"softiser/internal/await"
	"softiser/internal/iscsi"
	"softiser/internal/iscsitcp"
	"softiser/internal/iser"
	"softiser/rdma"

	"softiser/target/portal"
)

// mover is an initiator above a datamover: the same test runs over iSER and TCP.
type mover struct {
	t     testing.TB
	dm    iscsi.Datamover
	in    chan *iscsi.PDU
	ended chan error
	cmdSN uint32
	itt   uint32
	expSN uint32
	isid  iscsi.ISID
	p     iscsi.Params
}

func (m *mover) ControlNotify(p *iscsi.PDU) {
	for p != nil {
		next := p.Unlink()
		keep := &iscsi.PDU{BHS: p.BHS, Data: bytes.Clone(p.Data)}
		p.Release()
		m.in <- keep
		p = next
	}
}
func (m *mover) DataCompletionNotify(*iscsi.Transfer) {}
func (m *mover) ConnectionTerminateNotify(err error)  { m.ended <- err }
func (m *mover) Sequence() iscsi.Sequence             { return iscsi.Sequence{} }

// initiatorDevice is the RDMA side of all initiators in this process.
var initiatorDevice = sync.OnceValue(func() *iser.Device {
	d, err := iser.Open(iser.Config{})
	if err != nil {
		panic(err)
	}
	atExit = append(atExit, func() { await.Until(func() bool { return d.Close() == nil }) })
	return d
})

// transportStream is RFC 7145's own start-up: it begins as TCP.
const transportStream portal.Transport = 77

// connect opens a connection for kind without logging in.
func (s *server) connect(kind portal.Transport, cfg iser.ConnConfig) *mover {
	s.t.Helper()
	m := &mover{t: s.t, in: make(chan *iscsi.PDU, 1024), ended: make(chan error, 1), cmdSN: 1, isid: iscsi.ISID{0x80, 7}}
	nc, err := net.Dial("tcp", s.addr)
	if err != nil {
		s.t.Fatal(err)
	}
	switch kind {
	case portal.RDMA:
		m.dm, err = initiatorDevice().Client(s.t.Context(), nc, cfg)
	case transportStream:
		m.dm, err = initiatorDevice().Upgrade(nc, iscsi.RoleInitiator, iscsitcp.Config{}, cfg)
	default:
		m.dm, err = iscsitcp.New(nc, iscsi.RoleInitiator, iscsitcp.Config{})
	}
	if err != nil {
		s.t.Fatal(err)
	}
	m.dm.Start(m)
	s.t.Cleanup(func() {
		m.dm.Terminate(fmt.Errorf("the test is over"))
		select {
		case <-m.ended:
		case <-time.After(ioTime):
			s.t.Error("the initiator's connection does not end")
		}
	})
	return m
}

func (m *mover) send(p *iscsi.PDU) {
	m.t.Helper()
	p.BHS.SetExpStatSN(m.expSN)
	p.BHS.SetDataLen(len(p.Data))
	if err := m.dm.SendControl(p); err != nil {
		m.t.Fatalf("send %v: %v", p.BHS.Opcode(), err)
	}
	m.dm.Push()
}

func (m *mover) recv() *iscsi.PDU {
	m.t.Helper()
	select {
	case p := <-m.in:
		if p.BHS.ITT() != iscsi.ReservedTag || p.BHS.Opcode() != iscsi.OpNopIn {
			m.expSN = p.BHS.StatSN() + 1
		}
		return p
	case err := <-m.ended:
		m.ended <- err
		m.t.Fatalf("the connection ended: %v", err)
	case <-time.After(ioTime):
		m.t.Fatal("nothing comes")
	}
	return nil
}

// login goes to the full feature phase in one exchange.
func (m *mover) login(kv ...string) {
	m.t.Helper()
	prof := m.dm.KeyProfile()
	neg := iscsi.NewNegotiation(iscsi.RoleInitiator, iscsi.DefaultSettings(), prof, true)
	offer := neg.Offer(nil)
	for _, s := range kv {
		k, _, _ := strings.Cut(s, "=")
		if i := bytes.Index(offer, []byte(k+"=")); i >= 0 {
			end := i + bytes.IndexByte(offer[i:], 0) + 1
			offer = append(offer[:i:i], offer[end:]...)
		}
	}
	p := &iscsi.PDU{Data: append(keys("InitiatorName=iqn.2026-11.test:mover", "TargetName="+testIQN), offer...)}
	p.Data = append(p.Data, keys(kv...)...)
	q := p.BHS.NewLoginRequest()
	q.SetStages(true, false, iscsi.StageOperational, iscsi.StageFullFeature)
	q.SetISID(m.isid)
	q.SetCmdSN(m.cmdSN)
	m.send(p)
	r := m.recv()
	if st := r.BHS.LoginResponse().Status(); st != iscsi.LoginSuccess || !r.BHS.Final() {
		m.t.Fatalf("login: status %04x final %v, %q", uint16(st), r.BHS.Final(), r.Data)
	}
	got := parseKeys(r.Data)
	num := func(k string, def uint32) uint32 {
		var n uint32
		if _, err := fmt.Sscan(got[k], &n); err != nil {
			return def
		}
		return n
	}
	m.p = iscsi.Params{
		InitialR2T: got["InitialR2T"] != "No", ImmediateData: got["ImmediateData"] != "No",
		MaxBurstLength: num("MaxBurstLength", 262144), FirstBurstLength: num("FirstBurstLength", 65536),
		MaxXmitDataSegmentLength: num("MaxRecvDataSegmentLength", 8192), MaxRecvDataSegmentLength: 262144, MaxOutstandingR2T: 1,
		DataPDUInOrder: true, DataSequenceInOrder: true, RDMAExtensions: got["RDMAExtensions"] == "Yes",
	}
	if got["DataDigest"] == "CRC32C" {
		m.p.DataDigest = iscsi.DigestCRC32C
	}
	if m.p.RDMAExtensions {
		m.p.TaggedBufferForSolicitedDataOnly = prof.DeclareTaggedBuffer
		m.p.MaxXmitDataSegmentLength = num("TargetRecvDataSegmentLength", 8192)
		m.p.TargetRecvDataSegmentLength = m.p.MaxXmitDataSegmentLength
		m.p.InitiatorRecvDataSegmentLength = num("InitiatorRecvDataSegmentLength", 8192)
	}
	m.dm.NoticeKeyValues(&m.p)
	if err := m.dm.Enable(); err != nil {
		m.t.Fatal(err)
	}
}

// cmd sends a SCSI command with its buffers.
func (m *mover) cmd(cdb []byte, in, out []byte) (itt uint32, bufs *iscsi.TaskBuffers) {
	m.t.Helper()
	bufs = &iscsi.TaskBuffers{}
	p := &iscsi.PDU{Bufs: bufs}
	q := p.BHS.NewSCSICommand()
	q.SetFinal(true)
	q.SetAttr(1)
	q.SetCDB(cdb)
	m.itt++
	q.SetITT(m.itt)
	q.SetCmdSN(m.cmdSN)
	m.cmdSN++
	switch {
	case in != nil:
		bufs.In = [][]byte{in}
		q.SetRead(true)
		q.SetEDTL(uint32(len(in)))
	case out != nil:
		bufs.Out = [][]byte{out}
		bufs.Immediate, bufs.Unsolicited = m.p.UnsolicitedLimit(uint32(len(out)))
		q.SetWrite(true)
		q.SetEDTL(uint32(len(out)))
		q.SetFinal(bufs.Unsolicited == bufs.Immediate)
	}
	p.BHS.SetExpStatSN(m.expSN)
	if err := m.dm.SendControl(p); err != nil {
		m.t.Fatalf("send command: %v", err)
	}
	m.dm.Push()
	return m.itt, bufs
}

func (m *mover) run(cdb []byte, in, out []byte) *iscsi.PDU {
	m.t.Helper()
	itt, _ := m.cmd(cdb, in, out)
	p := m.recv()
	if p.BHS.Opcode() != iscsi.OpSCSIResponse || p.BHS.ITT() != itt {
		m.t.Fatalf("got %v for %#x, want the response to %#x", p.BHS.Opcode(), p.BHS.ITT(), itt)
	}
	return p
}

func (m *mover) good(cdb []byte, in, out []byte) {
	m.t.Helper()
	if p := m.run(cdb, in, out); p.BHS.SCSIResponse().Status() != 0 {
		m.t.Fatalf("CDB % x: status %#x data % x", cdb, p.BHS.SCSIResponse().Status(), p.Data)
	}
}

func (m *mover) ready() {
	m.t.Helper()
	for range 8 {
		if m.run(testUnitReady, nil, nil).BHS.SCSIResponse().Status() == 0 {
			return
		}
	}
	m.t.Fatal("never ready")
}

func eachTransport(t *testing.T, f func(t *testing.T, kind portal.Transport)) {
	for _, kind := range []portal.Transport{portal.RDMA, portal.TCP} {
		t.Run(strings.ReplaceAll(wireName(kind), "/", "-"), func(t *testing.T) { f(t, kind) })
	}
}

// Both transports on one port: data of every size, and what Status says of it.
func TestBothTransports(t *testing.T) {
	eachTransport(t, func(t *testing.T, kind portal.Transport) {
		s := serve(t, unsolicitedAllowed)
		for _, kv := range [][]string{{"InitialR2T=Yes", "ImmediateData=Yes"}, {"InitialR2T=Yes", "ImmediateData=No"},
			{"InitialR2T=No", "ImmediateData=Yes"}, {"InitialR2T=No", "ImmediateData=No"}} {
			m := s.connect(kind, iser.ConnConfig{})
			m.isid[5] = byte(len(kv[0])*16 + len(kv[1]))
			m.login(append(kv, "FirstBurstLength=65536")...)
			m.ready()
			for i, blocks := range []int{1, 2, 8, 16, 17, 127, 128, 129, 256, 2048, 8192} {
				data := pattern(blocks*512, byte(i))
				m.good(cdbRW10(0x2a, 8, uint16(blocks)), nil, data)
				back := make([]byte, len(data))
				m.good(cdbRW10(0x28, 8, uint16(blocks)), back, nil)
				mustEqual(t, fmt.Sprintf("%v, %d blocks", kv, blocks), back, data)
			}
		}
		for _, x := range s.Status().Sessions {
			if x.Transport != wireName(kind) || x.Reads == 0 || x.ReadLatency.Count != x.Reads {
				t.Errorf("status: %+v", x)
			}
		}
	})
}

// Neither a READ nor a solicited WRITE is copied.
func TestNothingIsCopied(t *testing.T) {
	s := serve(t, nil)
	m := s.connect(portal.RDMA, iser.ConnConfig{})
	m.login("ImmediateData=No")
	m.ready()
	const n, size = 10, 256 << 10
	const headers = 4096 // of control PDUs, in the estimate
	for range n {
		m.good(cdbRW10(0x28, 0, size/512), make([]byte, size), nil)
	}
	x := s.Status().Sessions[0]
	if x.BytesOut < n*size || x.BytesCopied > headers {
		t.Errorf("READ: %d bytes out, %d of them copied", x.BytesOut, x.BytesCopied)
	}
	for range n {
		m.good(cdbRW10(0x2a, 0, size/512), nil, make([]byte, size))
	}
	x = s.Status().Sessions[0]
	// A receiver that is held up between its look for sinks and its read takes what has
	// come meanwhile into its buffer, once per command at most.
	if x.BytesIn < n*size || x.BytesCopied > headers+n*64<<10 {
		t.Errorf("WRITE: %d bytes in, %d of them copied", x.BytesIn, x.BytesCopied)
	}
}

// What Linux initiators rely on: silence until the first command, and never
// more than 128 bytes of data in a control PDU.
func TestISERLimits(t *testing.T) {
	s := serve(t, func(c *serverConfig, _ *Target) {
		c.Timeouts.NopInterval = 50 * time.Millisecond
		c.Timeouts.NopReply = time.Minute
	})
	m := s.connect(portal.RDMA, iser.ConnConfig{})
	m.login()
	s.AddLUN(testIQN, func() LUN { l := s.memory(t, "late", 1<<20); l.LUConfig.LUN = 3; return l }())
	select {
	case p := <-m.in:
		t.Fatalf("%v before the first command", p.BHS.Opcode())
	case <-time.After(200 * time.Millisecond):
	}
	m.run(testUnitReady, nil, nil)
	if p := m.recv(); p.BHS.Opcode() != iscsi.OpNopIn {
		t.Errorf("got %v, want a ping", p.BHS.Opcode())
	}
	m.ready()
	p := m.run(cdbRW10(0x28, 0xffffff00, 1), make([]byte, 512), nil)
	if p.BHS.SCSIResponse().Status() != 2 || len(p.Data) > 128 || len(p.Data) < 20 {
		t.Errorf("check condition with %d bytes", len(p.Data))
	}
	n := &iscsi.PDU{Data: nil}
	o := n.BHS.NewNopOut()
	o.SetITT(0x777)
	o.SetTTT(iscsi.ReservedTag)
	o.SetImmediate(true)
	o.SetFinal(true)
	o.SetCmdSN(m.cmdSN)
	m.send(n)
	for {
		p := m.recv()
		if p.BHS.ITT() == 0x777 {
			break
		}
	}
}

// A READ that is aborted while storage has it touches the initiator's memory no
// more once the response has come.
func TestISERAbort(t *testing.T) {
	s := serve(t, nil)
	m := s.connect(portal.RDMA, iser.ConnConfig{})
	m.login()
	m.ready()
	release := s.dev.hold()
	defer release()
	in := make([]byte, 4096)
	itt, bufs := m.cmd(cdbRW10(0x28, 0, 8), in, nil)
	eventually(t, "the read is at the volume", func() bool { return s.dev.held() == 1 })
	p := &iscsi.PDU{}
	q := p.BHS.NewTaskRequest(iscsi.AbortTask)
	q.SetImmediate(true)
	q.SetITT(0x5000)
	q.SetRefTask(itt)
	q.SetRefCmdSN(m.cmdSN - 1)
	q.SetCmdSN(m.cmdSN)
	m.send(p)
	s.aborted(&rawInitiator{tsih: s.Status().Sessions[0].TSIH}, 1)
	release()
	if r := m.recv(); r.BHS.Opcode() != iscsi.OpTaskResponse || r.BHS.TaskResponse().Response() != iscsi.TaskComplete {
		t.Fatalf("got %v %d", r.BHS.Opcode(), r.BHS[2])
	}
	m.dm.ReleaseTask(bufs)
	m.ready()
}

func TestISERSettings(t *testing.T) {
	s := serve(t, func(c *serverConfig, _ *Target) {
		c.Portals = []portal.Config{{Listen: "127.0.0.1:0", CRC: rdma.CRCOff}, {Listen: "127.0.0.1:0", NoISER: true}, {Listen: "127.0.0.1:0", LargeFPDU: true, BusyPoll: 20 * time.Microsecond}}
	})
	m := s.connect(portal.RDMA, iser.ConnConfig{RDMA: rdma.ConnParams{CRC: rdma.CRCOffered}})
	m.login()
	m.ready()
	if d := s.Status().Sessions[0].Connection; !strings.Contains(d, "CRC off") {
		t.Errorf("CRC off: %s", d)
	}
	nc, err := net.Dial("tcp", s.Addrs()[1])
	if err != nil {
		t.Fatal(err)
	}
	if _, err := initiatorDevice().Client(t.Context(), nc, iser.ConnConfig{}); err == nil {
		t.Error("a portal without iSER accepted an RDMA connection")
	}
	s.addr = s.Addrs()[2]
	m = s.connect(portal.RDMA, iser.ConnConfig{RDMA: rdma.ConnParams{MPA: rdma.MPAParams{GSO: true}}})
	m.isid[5] = 1
	m.login()
	m.ready()
	data := pattern(1<<20, 1)
	m.good(cdbRW10(0x2a, 0, 2048), nil, data)
}

// The IRD and ORD of a portal are those of the MPA Reply and the limits of the
// connection, as far as the initiator wants and serves as many (RFC 6581 §9); the whole
// range that may be configured works.
func TestReadDepths(t *testing.T) {
	for _, c := range []struct {
		ird, ord         int // of the portal
		asks, serves     int // of the initiator
		wantIRD, wantORD int // of the target's end
	}{
		{7, 5, 64, 64, 7, 5},
		{7, 5, 3, 2, 3, 2},
		{1, 1, 64, 64, 1, 1},
		{0, 0, 128, 128, 128, 128},
		{portal.MaxReads, portal.MaxReads, 128, 128, 128, 128},
	} {
		s := serve(t, func(cfg *serverConfig, _ *Target) { cfg.Portals[0].IRD, cfg.Portals[0].ORD = c.ird, c.ord })
		m := s.connect(portal.RDMA, iser.ConnConfig{RDMA: rdma.ConnParams{ORD: c.asks, IRD: c.serves}})
		m.login()
		m.ready()
		data, back := pattern(1<<20, 1), make([]byte, 1<<20)
		m.good(cdbRW10(0x2a, 0, 2048), nil, data)
		m.good(cdbRW10(0x28, 0, 2048), back, nil)
		mustEqual(t, "read back", back, data)
		if got, want := s.Status().Sessions[0].Connection, fmt.Sprintf("IRD %d, ORD %d,", c.wantIRD, c.wantORD); !strings.Contains(got, want) {
			t.Errorf("%+v: the target says %q, want %q", c, got, want)
		}
		if info := m.dm.(*iser.Conn).QP().Info(); info.ORD != c.wantIRD {
			t.Errorf("%+v: the initiator was told IRD %d", c, info.ORD)
		}
	}
	for _, n := range []int{-1, portal.MaxReads + 1} {
		for _, p := range []portal.Config{{Listen: "127.0.0.1:0", IRD: n}, {Listen: "127.0.0.1:0", ORD: n}} {
			if _, err := portal.NewServer(portal.ServerConfig{Portals: []portal.Config{p}}); err == nil || !strings.Contains(err.Error(), "want 1 to 256") {
				t.Errorf("%d Reads: %v", n, err)
			}
		}
	}
}

// RFC 7145 §5.1: the login runs over the stream, the rest over RDMA.
func TestStreamLogin(t *testing.T) {
	s := serve(t, func(c *serverConfig, _ *Target) { c.Portals[0].StreamLogin = true })
	m := s.connect(transportStream, iser.ConnConfig{})
	m.login()
	if !m.p.RDMAExtensions {
		t.Fatal("RDMAExtensions was not agreed on")
	}
	m.ready()
	data, back := pattern(1<<20, 1), make([]byte, 1<<20)
	m.good(cdbRW10(0x2a, 0, 2048), nil, data)
	m.good(cdbRW10(0x28, 0, 2048), back, nil)
	mustEqual(t, "read back", back, data)
	x := s.Status().Sessions[0]
	if x.Transport != "iSER" || !strings.Contains(x.Connection, "login over the stream") {
		t.Errorf("%s: %s", x.Transport, x.Connection)
	}
	// Plain initiators and Linux's start-up are served by the same portal.
	for i, kind := range []portal.Transport{portal.TCP, portal.RDMA} {
		m := s.connect(kind, iser.ConnConfig{})
		m.isid[5] = byte(i + 1)
		m.login()
		m.ready()
		m.good(cdbRW10(0x28, 0, 2048), back, nil)
	}
	s.second(99).logout()
}

// 32 sessions of each portal.Transport at once, on one port.
func TestManySessionsOfBothKinds(t *testing.T) {
	s := serve(t, nil)
	var wg sync.WaitGroup
	for i := range 64 {
		kind := portal.RDMA
		if i%2 == 0 {
			kind = portal.TCP
		}
		m := s.connect(kind, iser.ConnConfig{})
		m.isid[4], m.isid[5] = 9, byte(i)
		wg.Add(1)
		go func() {
			defer wg.Done()
			m.login()
			m.ready()
			data, back := pattern(64<<10, byte(i)), make([]byte, 64<<10)
			for range 5 {
				m.good(cdbRW10(0x2a, uint32(i*256), 128), nil, data)
				m.good(cdbRW10(0x28, uint32(i*256), 128), back, nil)
				mustEqual(t, fmt.Sprintf("session %d", i), back, data)
			}
		}()
	}
	wg.Wait()
	if n := len(s.Status().Sessions); n != 64 {
		t.Errorf("%d sessions, want 64", n)
	}
}

// An RDMA connection that is cut during I/O leaves nothing behind.
func TestISERCut(t *testing.T) {
	s := serve(t, nil)
	for i := range 10 {
		m := s.connect(portal.RDMA, iser.ConnConfig{})
		m.isid[5] = byte(i)
		m.login()
		m.ready()
		release := s.dev.hold()
		m.cmd(cdbRW10(0x28, 0, 8), make([]byte, 4096), nil)
		m.cmd(cdbRW10(0x2a, 0, 2048), nil, make([]byte, 1<<20))
		m.dm.Terminate(fmt.Errorf("cut"))
		release()
		eventually(t, "the session goes", func() bool { return len(s.Status().Sessions) == 0 })
	}
}
