package rdmatools

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"softiser/rdma"
)

// The first messages of a measurement may be on their way, and answered, while others of them are
// posted: a queue pair sends what is queued along with what it sends of itself.
func TestFirstMessagesAreAnswered(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	port := freePort(t)
	ended := make(chan error, 1)
	go func() {
		_, err := tool(ctx, "read-bw", "-p", port)
		ended <- err
	}()
	dev, err := rdma.Open(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	var kind perfKind
	for _, kind = range perfKinds {
		if kind.name == "read-bw" {
			break
		}
	}
	p := &perf{kind: kind, transport: transport{crc: "required", rev: 2}, size: 8, iters: 4000, depth: 2000, reads: 16}
	run := &perfRun{perf: p, mem: make([]byte, p.size), done: make(chan error, 1)}
	if run.endpoint, err = newEndpoint(dev, p.queues(), run.handle); err != nil {
		t.Fatal(err)
	}
	defer run.close()
	if err := run.prepare(); err != nil {
		t.Fatal(err)
	}
	params, err := p.connParams()
	if err != nil {
		t.Fatal(err)
	}
	offer := perfOffer{Test: kind.name, Size: p.size, Depth: p.depth}
	params.PrivateData = offer.append(nil)
	var info *rdma.ConnInfo
	if err := served(t, func() (err error) {
		info, err = rdma.Dial(ctx, "tcp", "127.0.0.1:"+port, run.qp, &params)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	var answer perfOffer
	if err := answer.parse(info.PrivateData); err != nil {
		t.Fatal(err)
	}
	run.remote = answer.Mem
	var over atomic.Bool
	pushed := make(chan struct{})
	go func() {
		defer close(pushed)
		for !over.Load() {
			run.qp.Push()
		}
	}()
	res, err := run.run(ctx)
	over.Store(true)
	<-pushed
	if err != nil || res.iters != p.iters {
		t.Errorf("%+v, %v", res, err)
	}
	run.disconnect()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
