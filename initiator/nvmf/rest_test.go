package nvmf_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"softiser/blockdev"
	"softiser/initiator/blockio"
	. "softiser/initiator/nvmf"
	"softiser/internal/await"
	"softiser/internal/nvme"
)

// toRest brings the association of a namespace to rest.
func toRest(t *testing.T, n *Namespace) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := n.Rest(ctx); err != nil {
		t.Fatal(err)
	}
}

// carried is a resting association as the next process gets it.
func carried(t *testing.T, n *Namespace) *CarriedAssociation {
	t.Helper()
	k, err := n.Carry()
	if err != nil {
		t.Fatal(err)
	}
	for i := range k.FDs {
		k.Files = append(k.Files, i)
	}
	text, err := json.Marshal(k)
	if err != nil {
		t.Fatal(err)
	}
	got := &CarriedAssociation{FDs: k.FDs}
	if err := errors.Join(json.Unmarshal(text, got), got.Check(len(k.FDs))); err != nil {
		t.Fatal(err)
	}
	return got
}

// An association goes from one user to the next, as from process to process: the controller is
// the same, what was written is there, keep alives are answered, and events are heard.
func TestAssociationCarried(t *testing.T) {
	for _, tr := range []Transport{TransportTCP, TransportRDMA} {
		for _, queues := range []int{1, 3} {
			t.Run(fmt.Sprintf("%v queues=%d", tr, queues), func(t *testing.T) {
				t.Parallel()
				carriesAssociation(t, func(c *Config) {
					c.Transport, c.Queues = tr, queues
					c.HeaderDigest = tr == TransportTCP && queues > 1
				})
			})
		}
	}
}

func carriesAssociation(t *testing.T, change func(*Config)) {
	addr, dev, _ := serve(t, nil)
	cfg := config(addr)
	cfg.KeepAlive, cfg.Path = 2*time.Second, true // an answer that takes longer is a loss
	change(&cfg)
	var events []string
	var resized atomic.Int64
	var mu sync.Mutex
	cfg.OnEvent = func(e Event) {
		mu.Lock()
		defer mu.Unlock()
		if e.Kind == EventResized {
			resized.Add(1)
		} else if e.Kind != EventConnected && e.Kind != EventClosed && e.Kind != EventAsync {
			events = append(events, e.String())
		}
	}
	n := open(t, cfg)
	first := n.Association().Describe()
	var before []*Namespace
	for i := range 6 {
		p := bytes.Repeat([]byte{byte(i + 1)}, 64<<10)
		if _, err := n.WriteAt(p, int64(i)<<16); err != nil {
			t.Fatal(err)
		}
		toRest(t, n)
		if err := n.Rest(t.Context()); err == nil {
			t.Fatal("it rests twice")
		}
		next := cfg
		next.Carried = carried(t, n)
		before = append(before, n)
		var err error
		if n, err = Open(t.Context(), next); err != nil {
			t.Fatal(err)
		}
		for k := range i + 1 {
			b := make([]byte, 64<<10)
			if _, err := n.ReadAt(b, int64(k)<<16); err != nil || !bytes.Equal(b, bytes.Repeat([]byte{byte(k + 1)}, 64<<10)) {
				t.Fatalf("association %d reads what association %d wrote: %v", i+1, k, err)
			}
		}
	}
	if s := n.Association().Describe(); s != first {
		t.Errorf("it is %s, it was %s", s, first)
	}
	pings := n.Stats().Pings
	await.True(t, "the controller is pinged", func() bool { return n.Stats().Pings > pings })
	resized.Store(0)
	if err := dev.(blockdev.Resizer).Resize(2 * size); err != nil {
		t.Fatal(err)
	}
	await.True(t, "an event that the first process has asked for is heard", func() bool { return resized.Load() > 0 })
	mu.Lock()
	if len(events) > 0 {
		t.Errorf("what happened to the association:\n%s", strings.Join(events, "\n"))
	}
	mu.Unlock()
	if st := n.Stats(); st.Losses != 0 || st.Logins != 1 {
		t.Errorf("%+v", st)
	}
	if err := n.Close(); err != nil {
		t.Error(err)
	}
	// Those before would have ended with their processes; here they find the controller gone.
	for _, n := range before {
		n.Resume()
		await.True(t, "its end is noticed", func() bool { return n.Stats().Losses > 0 })
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	}
}

// An association that is at rest sends nothing, whatever it is given, until it goes on.
func TestAssociationRests(t *testing.T) {
	for _, tr := range []Transport{TransportTCP, TransportRDMA} {
		t.Run(tr.String(), func(t *testing.T) {
			addr, _, _ := serve(t, nil)
			cfg := config(addr)
			cfg.Transport, cfg.KeepAlive = tr, 10*time.Second
			n := open(t, cfg)
			for range 10 {
				toRest(t, n)
				var ended atomic.Bool
				q := &blockio.Request{Op: blockio.OpRead, Buf: make([]byte, 512), Done: func(*blockio.Request) { ended.Store(true) }}
				out := n.Stats().PDUsOut
				n.Submit(q)
				if n.Stats().PDUsOut != out || ended.Load() {
					t.Fatal("an association at rest sends")
				}
				n.Resume()
				await.True(t, "the request ends", ended.Load)
				if q.Err != nil {
					t.Fatal(q.Err)
				}
			}
			if st := n.Stats(); st.Losses != 0 {
				t.Errorf("%+v", st)
			}
		})
	}
}

// Who carries an association does not wait for a connection that waits for him: one that stands
// looks again whether it may whenever somebody transmits.
func TestCarriedBesideItsConnections(t *testing.T) {
	addr, _, _ := serve(t, nil)
	n := open(t, config(addr))
	toRest(t, n)
	tr := n.Association().Conn()
	never := nvme.HostCommand{Slot: 3} // it is never sent, and has Push transmit nothing
	never.SQE.Init(nvme.OpFlush, 1)
	tr.Submit(&never)
	over := make(chan struct{})
	go func() {
		defer close(over)
		for range 20000 {
			if _, err := n.Carry(); err == nil {
				t.Error("it is carried with something to say")
				return
			}
		}
	}()
	await.True(t, "all attempts have ended", func() bool {
		for range 100 {
			tr.Push()
		}
		select {
		case <-over:
			return true
		default:
			return false
		}
	})
	tr.Terminate(errors.New("enough"))
	n.Resume()
	await.True(t, "the loss is noticed", func() bool { return n.Stats().Losses > 0 })
}

// What cannot be carried says so and goes on; what does not belong to a configuration is refused.
func TestAssociationsThatDoNotRest(t *testing.T) {
	addr, _, _ := serve(t, nil)
	cfg := config(addr)
	a, err := Connect(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	shared, err := a.Namespace(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := shared.Rest(t.Context()); err == nil {
		t.Error("one of several users brings it to rest")
	}
	n := open(t, cfg)
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := n.Carry(); err == nil {
		t.Error("one that goes on is carried")
	}
	for _, change := range []func(*Config){
		func(c *Config) { c.HostNQN += "x" },
		func(c *Config) { c.Transport = TransportRDMA },
	} {
		toRest(t, n)
		next := cfg
		change(&next)
		next.Carried = carried(t, n)
		n.Resume()
		if _, err := Open(t.Context(), next); err == nil {
			t.Error("it belongs to another one")
		}
		for _, fd := range next.Carried.FDs {
			if fd >= 0 {
				t.Errorf("nobody has taken descriptor %d", fd)
			}
		}
	}
	_ = n.Rest(over) // whether there was time or not
	n.Resume()
	if _, err := n.ReadAt(make([]byte, 512), 0); err != nil {
		t.Error(err)
	}
}

// Whatever comes as an association is refused, or is one that can be gone on with.
func FuzzCarriedAssociation(f *testing.F) {
	f.Add([]byte(`{"files":[0,1],"state":{"cntlid":1,"queues":[{"limit":31,"event":"DAAAAA==","tcp":{"align":4,"max_h2c_data":8192,"slots":32}},{"limit":31,"tcp":{"align":4,"max_h2c_data":8192,"slots":32}}]}}`))
	f.Add([]byte(`{"files":[0],"state":{"queues":[{"rdma":{"slots":2,"queue_pair":{"initiator":true,"fpdu_size":1500}},"limit":1}]}}`))
	f.Fuzz(func(t *testing.T, in []byte) {
		var k CarriedAssociation
		if json.Unmarshal(in, &k) != nil || k.Check(2) != nil {
			return
		}
		if n := len(k.Files); n < 2 {
			t.Errorf("%d queues", n)
		}
	})
}
