package iscsi

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"

	"softiser/blockdev"
	"softiser/blockdev/mem"
	"softiser/internal/iscsi"
	"softiser/internal/iser"
	"softiser/internal/spc"
	"softiser/target/portal"
	"softiser/target/scsi"
)

// stuckDevice is a volume whose first stuckBytes take no WRITE before the gate opens.
type stuckDevice struct {
	blockdev.Device
	gate    chan struct{}
	waiting atomic.Int32
}

const stuckBytes = 1 << 20

// Info says that nobody but a worker is to write parts of pages.
func (d *stuckDevice) Info() blockdev.Info {
	info := d.Device.Info()
	info.ExactWrite = 0
	return info
}

func (d *stuckDevice) WriteAt(p []byte, off int64) (int, error) {
	if off < stuckBytes {
		d.waiting.Add(1)
		<-d.gate
	}
	return d.Device.WriteAt(p, off)
}

// serveFewReceives starts a server whose RDMA device may have about that many receive
// buffers.
func serveFewReceives(t *testing.T, receives int, window int) (*server, *stuckDevice) {
	t.Helper()
	vol, err := mem.Open(mem.Config{Name: t.Name(), Size: volumeSize})
	if err != nil {
		t.Fatal(err)
	}
	d := &stuckDevice{Device: vol, gate: make(chan struct{})}
	cfg := serverConfig{Portals: []portal.Config{{Listen: "127.0.0.1:0"}}, Log: testLog(t)}
	cfg.Limits.Commands = window
	s := &server{t: t, vol: vol}
	if s.testServer, err = newServer(cfg); err != nil {
		t.Fatal(err)
	}
	if err := s.wires.RDMA.Close(); err != nil {
		t.Fatal(err)
	}
	if s.wires.RDMA, err = iser.Open(iser.Config{MaxReceives: receives}); err != nil {
		t.Fatal(err)
	}
	if err := s.AddTarget(Target{Name: testIQN, LUNs: []LUN{{Name: "disk0", LUConfig: scsi.LUConfig{Volume: d, Workers: receives}}}}); err != nil {
		t.Fatal(err)
	}
	if err := s.Listen(); err != nil {
		t.Fatal(err)
	}
	s.addr = s.Addrs()[0]
	served := make(chan error, 1)
	go func() { served <- s.Serve(context.Background()) }()
	t.Cleanup(func() {
		shutdown(s.testServer)
		<-served
		if err := vol.Close(); err != nil {
			t.Errorf("closing the volume: %v", err)
		}
	})
	return s, d
}

// The receive buffers of iSER are shared by all connections. One whose WRITEs are stuck
// with their data in them keeps its share; what it sends beyond is told BUSY, its connection
// goes on, and others find buffers.
func TestSharesOfReceiveBuffers(t *testing.T) {
	const receives, most = 128, 128 + 128/2 // iser.Open adds half
	const third, sent = most / 3, 150
	s, d := serveFewReceives(t, receives, 2*sent)
	open := func(isid byte) *mover {
		m := s.connect(portal.RDMA, iser.ConnConfig{})
		m.isid[5] = isid
		m.login("InitialR2T=No", "ImmediateData=Yes")
		m.ready()
		return m
	}
	hog, other := open(1), open(2)
	unstick := sync.OnceFunc(func() { close(d.gate) })
	defer unstick()
	statuses := map[spc.Status]int{}
	answer := func() {
		p := hog.recv()
		if p.BHS.Opcode() != iscsi.OpSCSIResponse {
			t.Fatalf("a %v", p.BHS.Opcode())
		}
		statuses[spc.Status(p.BHS.SCSIResponse().Status())]++
	}
	data := pattern(512, 1)
	for i := range sent {
		hog.cmd(cdbRW10(0x2a, uint32(i), 1), nil, data)
	}
	for range sent - third {
		answer()
	}
	if statuses[spc.StatusBusy] != sent-third {
		t.Errorf("answers while the WRITEs are stuck: %v, want %d times BUSY", statuses, sent-third)
	}
	eventually(t, "the others are stuck", func() bool { return d.waiting.Load() == third })
	eventually(t, "all other buffers have been given back", func() bool { return s.wires.RDMA.ReceivesOut() <= third })
	for i := range 2 * most { // more than would fit if one were lost now and then
		other.good(cdbRW10(0x2a, stuckBytes/512+uint32(i), 1), nil, data)
	}
	unstick()
	for range third {
		answer()
	}
	if statuses[spc.StatusGood] != third || statuses[spc.StatusBusy] != sent-third {
		t.Errorf("answers: %v, want %d times GOOD and %d times BUSY", statuses, third, sent-third)
	}
	hog.good(cdbRW10(0x2a, 0, 1), nil, data)
}
