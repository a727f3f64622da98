package nvmf

import (
	"net/netip"
	"sync"
	"testing"

	"softiser/blockdev"
	"softiser/internal/nvme"
)

// What a connection holds moves to the share of its host whole, whoever takes and gives back
// memory meanwhile; and a connection that has gone moves nowhere.
func TestHoldingMoves(t *testing.T) {
	pool, err := blockdev.NewPool(32 << 20)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	s := &shares{pool: pool}
	h := s.join(netip.MustParseAddr("192.0.2.1"))
	other := s.join(netip.MustParseAddr("192.0.2.1"))
	address := h.share.Load()
	if !h.Reserve(5) || !other.Reserve(7) {
		t.Fatal("there is no memory")
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 2000 {
				if h.Reserve(3) {
					h.Unreserve(3)
				}
			}
		})
	}
	h.proved("nqn.a")
	wg.Wait()
	host := h.share.Load()
	if host == address || host.held.Load() != 5 || address.held.Load() != 7 || h.held != 5 {
		t.Errorf("the host holds %d, its address %d, the connection %d; want 5, 7, 5", host.held.Load(), address.held.Load(), h.held)
	}
	h.proved("nqn.a")
	if host.conns != 1 || address.conns != 1 {
		t.Errorf("%d connections of the host, %d of its address", host.conns, address.conns)
	}
	other.leave()
	other.proved("nqn.a")
	other.Unreserve(7)
	h.leave()
	h.Unreserve(5)
	if len(s.by) != 0 || host.held.Load() != 0 || address.held.Load() != 0 || pool.Reserved() != 0 {
		t.Errorf("%d shares are left, %d bytes of the host, %d of its address, %d of the pool", len(s.by), host.held.Load(), address.held.Load(), pool.Reserved())
	}
}

// A command that has lost its data is not looked at, and may be sent again.
func TestCommandWithoutItsData(t *testing.T) {
	for want, k := range map[nvme.Status]*nvme.Command{
		nvme.TransientTransport: {Corrupt: true},
		nvme.CommandInterrupted: {NoRoom: true},
	} {
		k.SQE.Init(nvme.OpWrite, 1)
		q := &queue{}
		if s := q.refuses(&request{q: q, cmd: k}); s != want {
			t.Errorf("%v, want %v", s, want)
		}
	}
}
