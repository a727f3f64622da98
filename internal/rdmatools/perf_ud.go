package rdmatools

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"time"

	"softiser/internal/usage"
	"softiser/rdma"
)

// Datagrams (-c UD) have no connection that could carry the test: the client's lookup of
// the server's port does, the server's queue pair is the answer, and a second lookup says
// that the test is over.

// perfEnd is the test that a client asks for when it is done.
const perfEnd = "end"

// perfMaxDepth is the largest -t.
const perfMaxDepth = 4096

// datagrams makes a configuration one for datagrams, at the local address.
func (p *perf) datagrams(q rdma.QPConfig) (rdma.QPConfig, error) {
	local, err := p.local()
	q.Datagram = rdma.DatagramParams{LocalAddr: local}
	return q, err
}

// fits is an error if messages are longer than a datagram; a size that nobody has asked for
// is cut.
func (p *perf) fits(mtu int) error {
	if p.size > mtu && !p.set.Changed("size") {
		p.size = mtu
	}
	if p.size > mtu {
		return usage.Errorf("%s: -s %d: a datagram carries %d bytes", p.kind.name, p.size, mtu)
	}
	return nil
}

// measureDatagrams is the client.
func (p *perf) measureDatagrams(ctx context.Context, dev *rdma.Device, host string) error {
	if p.source == "" {
		local, err := rdma.LocalAddrTo(ctx, host)
		if err != nil {
			return err
		}
		p.source = local.String()
	}
	q, err := p.datagrams(p.queues())
	if err != nil {
		return err
	}
	run := &perfRun{perf: p, done: make(chan error, 1)}
	if run.endpoint, err = newEndpoint(dev, q, run.handle); err != nil {
		return err
	}
	defer run.close()
	info := run.qp.Info()
	if err := p.fits(info.RoCE.PathMTU); err != nil {
		return err
	}
	run.mem = make([]byte, p.size)
	if err := run.prepare(); err != nil {
		return err
	}
	ask := func(test string) (*rdma.DatagramPeer, error) {
		offer := perfOffer{Test: test, Size: p.size, Depth: p.depth}
		peer, err := run.qp.Resolve(ctx, p.network(), net.JoinHostPort(host, p.port.String()), offer.append(nil))
		return peer, withReason(err)
	}
	peer, err := ask(p.kind.name)
	if err != nil {
		return err
	}
	run.dest = peer.Destination
	res, err := run.run(ctx)
	if err != nil {
		return err
	}
	if _, err := ask(perfEnd); err != nil {
		return err
	}
	res.fill(p, &info)
	return res.print(p.out, p.json)
}

// serveDatagrams is the server: one client after the other.
func (p *perf) serveDatagrams(ctx context.Context, dev *rdma.Device) error {
	for {
		err := p.serveDatagramClient(ctx, dev)
		if !p.persist || ctx.Err() != nil {
			if p.persist {
				return nil
			}
			return err
		}
		if err != nil {
			fmt.Fprintf(p.out, "%s: %v\n", p.kind.name, err)
		}
	}
}

// perfDatagrams is the server's side of one test. Its fields are used by lookups, which
// come one at a time.
type perfDatagrams struct {
	s      *perfServer
	client netip.Addr    // whose test it is; lookups come from ports of their own
	done   chan error    // capacity 1
	asked  rdma.RoCEAddr // of the lookup that has begun it, which may come again
}

// serveDatagramClient serves one client of the datagram tests.
func (p *perf) serveDatagramClient(ctx context.Context, dev *rdma.Device) error {
	mine := *p
	mine.depth, mine.iters = perfMaxDepth, 1
	q, err := mine.datagrams(mine.queues())
	if err != nil {
		return err
	}
	d := &perfDatagrams{s: &perfServer{perf: &mine}, done: make(chan error, 1)}
	if d.s.endpoint, err = newEndpoint(dev, q, d.s.handle); err != nil {
		return err
	}
	defer d.s.close()
	ln, err := dev.ServeDatagrams(p.network(), net.JoinHostPort(p.source, p.port.String()), d.lookup)
	if err != nil {
		return err
	}
	defer ln.Close()
	return d.wait(ctx)
}

// wait waits for the end of the test, which a client that was interrupted does not tell of.
func (d *perfDatagrams) wait(ctx context.Context) error {
	look := time.NewTicker(patience)
	defer look.Stop()
	for seen := uint64(0); ; {
		select {
		case err := <-d.done:
			return err
		case <-d.s.qp.Done():
			return d.s.qp.Err()
		case <-ctx.Done():
			return ctx.Err()
		case <-look.C:
			now := d.s.progress.Load()
			if now != 0 && now == seen {
				return errSilent()
			}
			seen = now
		}
	}
}

// lookup answers a client that begins or ends a test.
func (d *perfDatagrams) lookup(l *rdma.Lookup) rdma.LookupAnswer {
	from := netip.AddrPort(l.Remote).Addr()
	yes := rdma.LookupAnswer{QP: d.s.qp}
	var o perfOffer
	err := o.parse(l.PrivateData)
	switch {
	case d.client.IsValid() && from != d.client: // whatever it asks for
		return rdma.LookupAnswer{PrivateData: []byte("the server is busy with another client")}
	case err != nil:
		err = fmt.Errorf("the private data is no test of this program: %w", err)
	case o.Test == perfEnd && d.client.IsValid():
		d.finish(nil)
		return yes
	case d.asked == l.Remote:
		d.s.progress.Add(1)
		return yes
	case d.client.IsValid():
		return rdma.LookupAnswer{PrivateData: []byte("the server is busy with another test")}
	case o.Test != d.s.kind.name:
		err = fmt.Errorf("the server runs %s, the client %s", d.s.kind.name, o.Test)
	default:
		err = d.begin(&o)
	}
	if err != nil {
		d.finish(err)
		why := []byte(err.Error())
		return rdma.LookupAnswer{PrivateData: why[:min(len(why), maxLookupReason)]}
	}
	d.client, d.asked = from, l.Remote
	d.s.progress.Add(1)
	return yes
}

// maxLookupReason is how much of a reason fits the answer to a lookup, bytes.
const maxLookupReason = 136

// begin makes the server ready for a test.
func (d *perfDatagrams) begin(o *perfOffer) error {
	s := d.s
	s.size, s.depth = o.Size, o.Depth
	if err := s.check(); err != nil {
		return err
	}
	if mtu := s.qp.Info().RoCE.PathMTU; s.size > mtu {
		return fmt.Errorf("messages of %d bytes: a datagram of the server carries %d", s.size, mtu)
	}
	s.bufs = make([]byte, rdma.GRHLen+s.size)
	for range s.depth + 4 {
		if err := s.post(); err != nil {
			return err
		}
	}
	return nil
}

func (d *perfDatagrams) finish(err error) {
	select {
	case d.done <- err:
	default: // it was over already
	}
}
