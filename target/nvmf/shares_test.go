package nvmf_test

import (
	"net"
	"testing"

	"softiser/blockdev"
	"softiser/internal/await"
	"softiser/internal/nvme"
	"softiser/target"
	"softiser/target/nvmf"
)

// A host that has the target hold as much as it can leaves room for the others.
func TestGreedyHost(t *testing.T) {
	pool, err := blockdev.NewPool(32 << 20)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { pool.Close() })
	r := open(t, func(c *target.Config, _ *nvmf.SubsystemConfig) { c.Staging = pool })
	greedy := r.attachFrom("127.0.0.2", "nqn.greedy", 1, 1).io[0]
	honest := r.attach(hostNQN, 10, 1).io[0]
	data := make([]byte, 512<<10)
	var held []*command
	for range 24 {
		held = append(held, greedy.startSilent(rw(nvme.OpCompare, 0, 1024), data))
	}
	refused := 0
	await.True(t, "a command of the greedy host without room", func() bool {
		refused = 0
		for _, c := range held {
			select {
			case <-c.done:
				refused++
			default:
			}
		}
		return refused+len(greedy.asked) == len(held)
	})
	if refused == 0 {
		t.Fatal("there is room for everything")
	}
	for _, c := range held {
		select {
		case <-c.done:
			if s := greedy.status(c); s != nvme.CommandInterrupted {
				t.Errorf("%v", s)
			}
		default:
		}
	}
	for range 3 {
		if _, err := honest.do(rw(nvme.OpCompare, 0, 1024), nil, data); err != nil {
			t.Fatalf("%d of the greedy host's commands were refused; the other's: %v", refused, err)
		}
	}
}

// attachFrom is attach from a local address.
func (r *rig) attachFrom(local, nqn string, id byte, n int) *host {
	r.t.Helper()
	r.from = &net.TCPAddr{IP: net.ParseIP(local)}
	defer func() { r.from = nil }()
	return r.attach(nqn, id, n)
}
