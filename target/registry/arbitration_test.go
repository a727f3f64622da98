package registry

import (
	"errors"
	"fmt"
	"testing"

	"softiser/initiator"
	"softiser/initiator/blockio"
	"softiser/initiator/nvmf"
)

// member is a host of somebody's cluster, with its ways to the volume: to node a and to node b.
type member struct {
	name string
	key  uint64
	ways []reservable
}

type reservable interface {
	blockio.Volume
	blockio.Reserver
}

// registers registers the host on its first n ways, replacing what may be left of an earlier
// life, as Windows and multipathd do.
func (m *member) registers(t *testing.T, n int) {
	t.Helper()
	for i, w := range m.ways[:n] {
		if err := w.Register(t.Context(), blockio.Registration{NewKey: m.key, Ignore: true}); err != nil {
			t.Fatalf("%s registers on way %d: %v", m.name, i, err)
		}
	}
}

// wantWrite writes through a way, which is refused by the reservation or not.
func (m *member) wantWrite(t *testing.T, way int, refused bool) {
	t.Helper()
	err := m.ways[way].Do(t.Context(), &initiator.Request{Op: initiator.OpWrite, Buf: make([]byte, 4096)})
	if refused != errors.Is(err, blockio.ErrReservation) || !refused && err != nil {
		t.Errorf("%s writes through way %d: %v; want refused %v", m.name, way, err, refused)
	}
}

// TestArbitration: the owner of a disk of a failover cluster, as Windows arbitrates for it, holds
// on to it across a move of the volume, loses it to a challenger after one, and stays out
// after the next. Hosts that have no part in it are kept out all the time.
func TestArbitration(t *testing.T) {
	const kind = blockio.WriteExclusiveRegistrants
	for _, wire := range []string{"iscsi", "nvme+tcp"} {
		t.Run(wire, func(t *testing.T) {
			d, store := newDisk(t), t.TempDir()
			a, b := newNode(t, d, store, "a", 100, true), newNode(t, d, store, "b", 200, true)
			a.promote(t)
			owner, challenger, stranger := newMember(t, wire, 1, a, b), newMember(t, wire, 2, a, b), newMember(t, wire, 3, a, b)
			ways := 2
			if wire != "iscsi" { // it is the host's, whatever the way, and one that is inaccessible takes none
				ways = 1
			}
			owner.registers(t, ways)
			if err := owner.ways[0].Reserve(t.Context(), owner.key, kind); err != nil {
				t.Fatal(err)
			}
			challenger.registers(t, ways)
			stranger.wantWrite(t, 0, true)

			a.demote(t)
			b.promote(t)
			owner.wantWrite(t, 1, false)
			challenger.wantWrite(t, 1, false) // it is registered
			stranger.wantWrite(t, 1, true)
			r, err := challenger.ways[1].Reservations(t.Context())
			if err != nil || r.Type != kind || holder(r) != owner.key {
				t.Fatalf("after the move: %+v, %v", r, err)
			}
			// The owner does not defend itself.
			if err := challenger.ways[1].Preempt(t.Context(), blockio.Preemption{Key: challenger.key, Victim: owner.key, Type: kind, Abort: true}); err != nil {
				t.Fatal(err)
			}
			owner.wantWrite(t, 1, true)

			b.demote(t)
			a.promote(t)
			owner.wantWrite(t, 0, true) // what node a knew of it is over
			challenger.wantWrite(t, 0, false)
			if r, err := challenger.ways[0].Reservations(t.Context()); err != nil || holder(r) != challenger.key {
				t.Errorf("after the move back: %+v, %v", r, err)
			}
			if err := challenger.ways[0].ClearReservations(t.Context(), challenger.key); err != nil {
				t.Fatal(err)
			}
			a.demote(t)
			b.promote(t)
			stranger.wantWrite(t, 1, false)
		})
	}
}

func holder(r *blockio.Reservations) uint64 {
	for _, x := range r.Registrants {
		if x.Holder {
			return x.Key
		}
	}
	return 0
}

// newMember is host number n with a way to each node.
func newMember(t *testing.T, wire string, n uint64, nodes ...*clusterNode) *member {
	t.Helper()
	m := &member{name: fmt.Sprintf("host %d", n), key: n}
	for _, node := range nodes {
		var w reservable
		var err error
		if wire == "iscsi" {
			c := node.path(t)
			c.Path, c.InitiatorName = true, fmt.Sprintf("iqn.2026-11.test:host%d", n)
			w, err = initiator.Open(t.Context(), c)
		} else {
			var c nvmf.Config
			if c, err = nvmf.ParseURL("nvme+tcp://" + node.addr + "/" + haNQN + "/1"); err != nil {
				t.Fatal(err)
			}
			c.Path, c.HostNQN = true, fmt.Sprintf("nqn.2026-11.test:host%d", n)
			w, err = nvmf.Open(t.Context(), c)
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { w.Close() })
		m.ways = append(m.ways, w)
	}
	return m
}
