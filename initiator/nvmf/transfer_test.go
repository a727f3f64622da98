package nvmf_test

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"
	"testing"

	"softiser/initiator/blockio"
	"softiser/internal/nvme"
)

// What is longer than the controller transfers in one command is read in pieces, and again when it has
// changed between two of them.
func TestLogsInPieces(t *testing.T) {
	f := newFake(t)
	f.ident.MDTS = 1 // 8 KiB
	f.ident.CMIC, f.ident.ANAGroups, f.ident.Namespaces = nvme.ReportsANA, 400, 400
	var groups []nvme.ANAGroup
	for id := range uint32(400) {
		groups = append(groups, nvme.ANAGroup{ID: id + 1, State: nvme.ANAStateInaccessible, Namespaces: []uint32{400 - id}})
	}
	groups[399].State = nvme.ANAStateNonOptimized // of namespace 1
	var entries []nvme.DiscoveryEntry
	for i := range 20 {
		entries = append(entries, nvme.DiscoveryEntry{Transport: nvme.TransportTCP, Family: nvme.FamilyIPv4, Type: nvme.SubsystemNVM, Service: "4420", Subsystem: fmt.Sprint(subNQN, i), Address: "127.0.0.1"})
	}
	f.logs = map[nvme.LogID][]byte{nvme.LogANA: nvme.AppendANA(nil, 1, groups, false), nvme.LogDiscovery: nvme.AppendDiscovery(nil, 1, entries)}
	// Namespace 1 changes places with another one when half of the log has been read.
	moved := false
	var restless atomic.Bool // the log is another one each time
	f.alter = func(q *fakeQueue, k *nvme.Command, _ *nvme.CQE, out []byte) ([]byte, bool) {
		l := k.SQE.GetLogPage()
		switch {
		case q.id != 0:
			if k.SQE.Opcode() == nvme.OpReservationReport {
				n := k.SQE.ReservationReport().Length()
				if n > 8192 {
					t.Errorf("a report of %d bytes", n)
				}
				out = make([]byte, n)
			}
		case k.SQE.Opcode() != nvme.AdminGetLogPage || l.ID() != nvme.LogANA:
		case restless.Load():
			page := f.logs[nvme.LogANA]
			binary.LittleEndian.PutUint64(page, binary.LittleEndian.Uint64(page)+1)
		case l.Offset() > 0 && !moved:
			moved = true
			groups[0].Namespaces, groups[399].Namespaces = groups[399].Namespaces, groups[0].Namespaces
			f.logs[nvme.LogANA] = nvme.AppendANA(nil, 2, groups, false)
			clear(out)
			copy(out, f.logs[nvme.LogANA][l.Offset():])
		}
		return out, false
	}
	n := open(t, f.config())
	if state, _, err := n.Access(t.Context()); err != nil || state != blockio.AccessInaccessible {
		t.Errorf("access %v, %v", state, err)
	}
	log, err := n.Association().DiscoveryLog(t.Context())
	if err != nil || len(log.Records) != 20 || log.Records[19].Subsystem != fmt.Sprint(subNQN, 19) {
		t.Errorf("%+v, %v", log, err)
	}
	if _, err := n.Reservations(t.Context()); err != nil {
		t.Error(err)
	}
	restless.Store(true)
	if state, _, err := n.Access(t.Context()); err == nil {
		t.Errorf("access %v, of a log that changes all the time", state)
	}
}

// What a controller does not send is zeroes, and not what the host has asked for before.
func TestShortAnswer(t *testing.T) {
	f := newFake(t)
	f.alter = func(q *fakeQueue, k *nvme.Command, _ *nvme.CQE, out []byte) ([]byte, bool) {
		if q.id == 0 && k.SQE.Opcode() == nvme.AdminIdentify && k.SQE.Identify().CNS() == nvme.CNSDescriptors {
			out = nil
		}
		return out, false
	}
	// As descriptors, this begins with an EUI-64.
	f.space.Size = 1 | 8<<8
	n := open(t, f.config())
	if names := n.Names(); len(names) > 0 {
		t.Errorf("names %v", names)
	}
}
