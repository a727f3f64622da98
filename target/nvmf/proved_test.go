package nvmf_test

import (
	"errors"
	"testing"
	"time"

	"softiser/blockdev"
	"softiser/internal/await"
	"softiser/internal/nvme"
	"softiser/internal/nvme/dhchap"
	"softiser/internal/nvme/tlspsk"
	"softiser/target"
	"softiser/target/nvmf"
)

// Behind one address, hosts that have proved who they are, by DH-HMAC-CHAP or by TLS, have
// shares of their own; those that only say so share the address's, and those that owe a proof
// are few.
func TestProvedHostsHaveShares(t *testing.T) {
	const tlsNQN = "nqn.2026-11.softiser:host.tls"
	k := tlsKey(t, tlsKeyText)
	r := openAuth(t, func(c *target.Config, s *nvmf.SubsystemConfig) {
		c.Limits.Controllers = 16 // half of them 8, a share 2, and 4 for those who owe a proof
		s.Hosts = append(s.Hosts, nvmf.HostRule{NQN: tlsNQN, TLSKey: k})
	})
	var guests []*host
	for i := range 8 {
		guests = append(guests, r.attach("nqn.guest", byte(i), 0))
	}
	d := admin(subNQN)
	d.Host = "nqn.guest"
	if _, err := dial(t, r.addr).connect(0, d, time.Minute); !errors.Is(err, nvme.ConnectControllerBusy) {
		t.Errorf("a guest's ninth controller: %v", err)
	}
	// By a proof of either kind, from the same address.
	byTLS := func() error {
		q, err := secureDial(t, r.addr, names(t, k, tlsNQN, subNQN, tlspsk.Version1))
		if err != nil {
			t.Fatal(err)
		}
		d := admin(subNQN)
		d.Host = tlsNQN
		_, err = q.connect(0, d, time.Minute)
		return err
	}
	for range 2 {
		if _, err := r.provedQueue(t, chap(t, subNQN)).readBlocks(0, 512); err != nil {
			t.Error(err)
		}
		if err := byTLS(); err != nil {
			t.Fatal(err)
		}
	}
	// A share is as much as each of them has.
	h := r.unproved(subNQN)
	if err := h.authenticate(chap(t, subNQN), 1); !errors.Is(err, nvme.CommandInterrupted) {
		t.Errorf("the proof for a third controller: %v", err)
	}
	<-h.done
	if err := byTLS(); !errors.Is(err, nvme.ConnectControllerBusy) {
		t.Errorf("a third controller by TLS: %v", err)
	}
	await.True(t, "what got no controller has gone", func() bool { return len(r.srv.Controllers()) == 12 })
	// Who owes a proof and does not give it has no more than two of the four places.
	for range 2 {
		r.unproved(subNQN)
	}
	if _, err := dial(t, r.addr).connect(0, admin(subNQN), time.Minute); !errors.Is(err, nvme.ConnectControllerBusy) {
		t.Errorf("a third host that owes a proof: %v", err)
	}
	// What has been given back is there again.
	for _, h := range guests[:2] {
		h.close()
	}
	await.True(t, "guests have gone", func() bool { return len(r.srv.Controllers()) == 12 })
	if err := byTLS(); !errors.Is(err, nvme.ConnectControllerBusy) {
		t.Errorf("beyond its share while more than half are there: %v", err)
	}
}

// The memory that a proved host makes the target hold is its own affair: another one behind
// the same address is served as ever.
func TestProvedHostsHoldTheirOwn(t *testing.T) {
	r, greedyKeys := sharedMemoryRig(t)
	greedy := r.provedQueue(t, greedyKeys)
	honest := r.provedQueue(t, chap(t, subNQN))
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
	for range 3 {
		if _, err := honest.do(rw(nvme.OpCompare, 0, 1024), nil, data); err != nil {
			t.Fatalf("%d of the greedy host's commands were refused; the other's: %v", refused, err)
		}
	}
}

// sharedMemoryRig is a target with little memory and two hosts with secrets.
func sharedMemoryRig(t *testing.T) (*rig, dhchap.Config) {
	t.Helper()
	pool, err := blockdev.NewPool(32 << 20)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { pool.Close() })
	r := openAuth(t, func(c *target.Config, s *nvmf.SubsystemConfig) {
		c.Staging = pool
		s.Hosts = append(s.Hosts, nvmf.HostRule{NQN: "nqn.greedy", Secret: secret(t, ctrlSecret)})
	})
	return r, dhchap.Config{HostNQN: "nqn.greedy", SubsystemNQN: subNQN, Host: secret(t, ctrlSecret)}
}

// provedQueue returns an I/O queue of a host that has proved who it is.
func (r *rig) provedQueue(t *testing.T, keys dhchap.Config) *queue {
	t.Helper()
	h := &host{queue: dial(t, r.addr), r: r, data: admin(subNQN)}
	h.data.Host = keys.HostNQN
	e, err := h.connect(0, h.data, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	h.data.CntlID = nvme.ConnectResult(e.DW0()).CntlID()
	if err := h.authenticate(keys, 1); err != nil {
		t.Fatal(err)
	}
	h.enable()
	q := dial(t, r.addr)
	if _, err := q.connect(1, h.data, 0); err != nil {
		t.Fatal(err)
	}
	if err := q.authenticate(keys, 2); err != nil {
		t.Fatal(err)
	}
	return q
}
