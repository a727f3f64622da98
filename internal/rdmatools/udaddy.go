package rdmatools

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"softiser/internal/usage"
	"softiser/rdma"
)

// udaddy looks up queue pairs for datagrams, sends to them, and is answered:
//
//	client                                      server
//	   | -- lookup of the port (SIDR), each ----> |   a queue pair for each
//	   | -- message_count datagrams ------------> |   immediate data: the client's queue pair
//	   | <---------- message_count datagrams ---- |
const udaddyPort = 7174

type udaddy struct {
	exchange
	server, bind string
	port         portFlag
}

// udaddyCommand is the command udaddy.
func udaddyCommand() *cobra.Command {
	u := &udaddy{}
	cmd := &cobra.Command{
		Use:   "udaddy -b ADDRESS [-s SERVER]",
		Short: "Datagrams over RoCE, compatible with rdma-core's udaddy",
		Long: "Without -s, waits for lookups; with -s, looks up and sends. Both ends must be given the same -c, -C and -S.\n" +
			"It fails when no datagram has come for --timeout.",
		Example: `  iser-initiator rdma udaddy -b 127.0.0.1                # server; or rdma-core's: udaddy
  iser-initiator rdma udaddy -b 127.0.0.2 -s 127.0.0.1   # client; one process per address`,
		Args: cobra.NoArgs,
	}
	f := cmd.Flags()
	var wait time.Duration
	f.StringVarP(&u.server, "server", "s", "", "be the client of this server")
	f.StringVarP(&u.bind, "bind", "b", "", "local address (needed by the server)")
	f.VarP(u.port.or(udaddyPort), "port", "p", "port of the service")
	u.counts(f, "number of queue pairs at each end", "datagrams each way per queue pair", "bytes per datagram")
	f.DurationVar(&wait, "timeout", 30*time.Second, "give up, as datagrams may be lost, when they have not come for this long; the server waits for its first client without end")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cmd.SilenceUsage = true
		u.out = cmd.OutOrStdout()
		return u.run(cmd.Context(), wait)
	}
	return cmd
}

// run makes the queue pairs, and is the server or the client.
func (u *udaddy) run(ctx context.Context, wait time.Duration) error {
	if u.connections < 1 || u.connections > 1024 || u.count < 0 || u.count > 16384 || u.size < 0 {
		return usage.Errorf("udaddy: want 1 to 1024 queue pairs (-c), 0 to 16384 datagrams (-C), no negative size (-S)")
	}
	if err := checkWait(wait); err != nil {
		return err
	}
	if u.size == 0 { // as the original has it
		u.count = 0
	}
	var local netip.Addr
	var err error
	switch {
	case u.bind != "":
		if local, err = netip.ParseAddr(u.bind); err != nil {
			return usage.Errorf("local address %q: want an IP address", u.bind)
		}
	case u.server == "":
		return usage.Errorf("over RoCE a server listens on one address: say which (-b)")
	default:
		if local, err = rdma.LocalAddrTo(ctx, u.server); err != nil {
			return err
		}
	}
	dev, err := rdma.Open(&rdma.DeviceConfig{Provider: rdma.ProviderRoCE})
	if err != nil {
		return err
	}
	defer dev.Close()
	nodes := make([]*datagramNode, u.connections)
	for i := range nodes {
		if nodes[i], err = newDatagramNode(dev, local, u.count, u.size, wait); err != nil {
			return err
		}
		defer nodes[i].close()
	}
	start := time.Now()
	if u.server != "" {
		err = u.runClient(ctx, nodes)
	} else {
		err = u.runServer(ctx, dev, local, nodes)
	}
	return u.end(err, start, nil)
}

// checkWait refuses what is no time to wait for a datagram.
func checkWait(d time.Duration) error {
	if d <= 0 {
		return usage.Errorf("--timeout %v: want a time above 0, such as 30s", d)
	}
	return nil
}

// runServer answers lookups with one queue pair for each client, and then what they send.
func (u *udaddy) runServer(ctx context.Context, dev *rdma.Device, local netip.Addr, nodes []*datagramNode) error {
	u.say("udaddy: starting server")
	var mu sync.Mutex // guards given
	given := map[rdma.RoCEAddr]*datagramNode{}
	asked, all := make(chan struct{}, len(nodes)), make(chan struct{})
	ln, err := dev.ServeDatagrams("roce", net.JoinHostPort(local.String(), u.port.String()), func(l *rdma.Lookup) rdma.LookupAnswer {
		mu.Lock()
		defer mu.Unlock()
		n := given[l.Remote]
		if n == nil { // otherwise the answer was lost
			if len(given) == len(nodes) {
				return rdma.LookupAnswer{}
			}
			n = nodes[len(given)]
			asked <- struct{}{}
			if given[l.Remote] = n; len(given) == len(nodes) {
				close(all)
			}
		}
		return rdma.LookupAnswer{QP: n.qp}
	})
	if err != nil {
		return err
	}
	defer ln.Close()
	var late <-chan time.Time // for the next lookup; the first one is waited for without end
	for waiting := true; waiting; {
		select {
		case <-all:
			waiting = false
		case <-asked:
			late = time.After(nodes[0].wait)
		case <-late:
			return fmt.Errorf("%w: %d queue pairs, and the client did not ask for all of them within %v; both ends must be given the same -c", rdma.ErrTimeout, len(nodes), nodes[0].wait)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if u.count == 0 {
		return nil
	}
	u.say("receiving data transfers")
	for _, n := range nodes {
		if err := n.receive(ctx); err != nil {
			return err
		}
	}
	u.say("sending replies")
	for _, n := range nodes {
		if err := n.sendAll(ctx); err != nil {
			return err
		}
	}
	u.say("data transfers complete")
	return nil
}

// runClient looks up a queue pair for each of its own, sends, and waits for the answers.
func (u *udaddy) runClient(ctx context.Context, nodes []*datagramNode) error {
	u.say("udaddy: starting client")
	u.say("udaddy: connecting")
	for _, n := range nodes {
		peer, err := n.qp.Resolve(ctx, "roce", net.JoinHostPort(u.server, u.port.String()), nil)
		if err != nil {
			return err
		}
		n.dest = peer.Destination
	}
	if u.count == 0 {
		return nil
	}
	u.say("initiating data transfers")
	for _, n := range nodes {
		if err := n.sendAll(ctx); err != nil {
			return err
		}
	}
	u.say("receiving data transfers")
	for _, n := range nodes {
		if err := n.receive(ctx); err != nil {
			return err
		}
	}
	u.say("data transfers complete")
	return nil
}

// datagramNode is one queue pair of udaddy or mckey with its buffers: like the originals,
// all messages share one, but each has a header of its own, as it is looked at while others
// come.
type datagramNode struct {
	*endpoint
	count int
	wait  time.Duration // for each datagram
	out   []byte
	heads []byte           // rdma.GRHLen of each receive, which its ID counts
	dest  rdma.Destination // known from the start, or from the first datagram
	recvd int
	sent  int
}

// newDatagramNode makes a queue pair at a local address with count receives of size bytes.
func newDatagramNode(dev *rdma.Device, local netip.Addr, count, size int, wait time.Duration) (*datagramNode, error) {
	depth := max(count, 1)
	e, err := newEndpoint(dev, rdma.QPConfig{Type: rdma.TypeUD, MaxSend: depth, MaxRecv: depth, Datagram: rdma.DatagramParams{LocalAddr: local}}, nil)
	if err != nil {
		return nil, err
	}
	if mtu := e.qp.Info().RoCE.PathMTU; size > mtu {
		e.close()
		return nil, usage.Errorf("-S %d: a datagram from %v carries %d bytes", size, local, mtu)
	}
	n := &datagramNode{endpoint: e, count: count, wait: wait, out: make([]byte, size), heads: make([]byte, count*rdma.GRHLen)}
	body := e.sgl(make([]byte, size))
	for i := range count {
		if err := e.qp.PostRecv(rdma.RecvWR{ID: uint64(i), SGL: append(e.sgl(n.head(uint64(i))), body...)}); err != nil {
			n.close()
			return nil, err
		}
	}
	return n, nil
}

// head is where the network header of a datagram is.
func (n *datagramNode) head(id uint64) []byte { return n.heads[id*rdma.GRHLen:][:rdma.GRHLen] }

// sendAll sends all datagrams; their immediate data is the queue pair that sends.
func (n *datagramNode) sendAll(ctx context.Context) error {
	for range n.count {
		wr := rdma.SendWR{Op: rdma.OpSendImm, Imm: uint64(n.qp.Num()), Flags: rdma.FlagSignaled, SGL: n.sgl(n.out), Dest: n.dest}
		if err := n.qp.Enqueue(&wr); err != nil {
			return err
		}
	}
	n.qp.Push()
	return n.until(ctx, &n.sent)
}

// receive waits for all datagrams.
func (n *datagramNode) receive(ctx context.Context) error { return n.until(ctx, &n.recvd) }

// until waits for completions until a counter says that all are here.
func (n *datagramNode) until(ctx context.Context, counter *int) error {
	for *counter < n.count {
		wc, err := n.nextWithin(ctx)
		if err != nil {
			return err
		}
		if wc.Opcode != rdma.WCRecv {
			n.sent++
			continue
		}
		n.recvd++
		if n.dest.AH == nil {
			if err := n.answerTo(&wc); err != nil {
				return err
			}
		}
	}
	return nil
}

// nextWithin waits for a completion as long as it may take.
func (n *datagramNode) nextWithin(ctx context.Context) (rdma.WC, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, n.wait, fmt.Errorf("%w: %d of %d datagrams came, then none for %v", rdma.ErrTimeout, n.recvd, n.count, n.wait))
	defer cancel()
	wc, err := n.next(ctx)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return wc, err
}

// answerTo finds out from a datagram where to send: the address in front of it, and the
// queue pair that its immediate data names.
func (n *datagramNode) answerTo(wc *rdma.WC) error {
	from, _, err := rdma.ParseGRH(n.head(wc.ID))
	if err != nil {
		return err
	}
	qpn := wc.SrcQPN
	if wc.Flags&rdma.WCWithImm != 0 {
		qpn = uint32(wc.Imm) & rdma.MulticastQPN
	}
	ah, err := n.pd.CreateAH(from)
	n.dest = rdma.Destination{AH: ah, QPN: qpn, QKey: rdma.DefaultQKey}
	return err
}
