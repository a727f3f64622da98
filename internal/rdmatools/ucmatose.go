package rdmatools

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"softiser/internal/usage"
	"softiser/rdma"
)

// ucmatose connects, sends messages both ways and disconnects:
//
//	client                             server
//	   | <---- message_count Sends ----- |   the server speaks first
//	   | ----- message_count Sends ----> |
//	   | <---- disconnect -------------- |
//
// With iWARP the passive side must not be the first to send (RFC 5044 §7.1.2).
// Our client therefore asks for the peer-to-peer start-up. Linux's siw does not
// unless told to, so our server gives such a client a moment and then speaks.
const (
	ucmatosePort    = 7471
	speakFirstAfter = 100 * time.Millisecond
)

type ucmatose struct {
	exchange
	transport
	server, bind string
	port         portFlag
}

// ucmatoseCommand is the command ucmatose.
func ucmatoseCommand() *cobra.Command {
	u := &ucmatose{}
	cmd := &cobra.Command{
		Use:   "ucmatose [-s SERVER]",
		Short: "RDMA connection and Send test, compatible with rdma-core's ucmatose",
		Long:  "Without -s, waits for connections; with -s, connects. Both ends must be given the same -c, -C and -S.",
		Example: `  iser-initiator rdma ucmatose -C 100                # server; or rdma-core's: ucmatose -C 100
  iser-initiator rdma ucmatose -s 127.0.0.1 -C 100   # client
  iser-initiator rdma ucmatose --provider roce -b 127.0.0.1                # the same over RoCE,
  iser-initiator rdma ucmatose --provider roce -b 127.0.0.2 -s 127.0.0.1   # one process per address`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cmd.SilenceUsage = true
			u.out = cmd.OutOrStdout()
			return u.run(cmd.Context())
		},
	}
	f := cmd.Flags()
	f.StringVarP(&u.server, "server", "s", "", "be the client of this server")
	f.StringVarP(&u.bind, "bind", "b", "", "address to listen on (server); RoCE: the local address of either end")
	f.VarP(u.port.or(ucmatosePort), "port", "p", "port of the service: TCP's, or rdma_cm's over RoCE")
	u.counts(f, "number of connections", "messages each way per connection", "bytes per message")
	u.flags(cmd)
	return cmd
}

// run prepares the ends of all connections and is the server or the client.
func (u *ucmatose) run(ctx context.Context) error {
	if u.connections < 1 || u.connections > 16384 || u.count < 0 || u.count > 16384 || u.size < 0 || u.size > 1<<24 {
		return usage.Errorf("ucmatose: want 1 to 16384 connections (-c), 0 to 16384 messages (-C) of at most 16 MiB (-S)")
	}
	u.source = u.bind
	p, err := u.params()
	if err != nil {
		return err
	}
	p.IRD, p.ORD = 1, 1
	p.RoCE.RNRRetry = -1 // as the original: receives are there before the connection is
	dev, err := u.open()
	if err != nil {
		return err
	}
	defer dev.Close()
	ends := make([]*ucmatoseEnd, u.connections)
	for i := range ends {
		if ends[i], err = u.newEnd(dev); err != nil {
			return err
		}
		defer ends[i].close()
	}
	start := time.Now()
	if u.server != "" {
		err = u.runClient(ctx, ends, &p)
	} else {
		err = u.runServer(ctx, dev, ends, &p)
	}
	return u.end(err, start, map[string]any{"crc": ends[0].qp.CRC()})
}

// ucmatoseEnd is one connection with its message buffer: like the original, all
// messages share one.
type ucmatoseEnd struct {
	*endpoint
	mem         []byte
	sent, recvd int
}

func (u *ucmatose) newEnd(dev *rdma.Device) (*ucmatoseEnd, error) {
	n := max(u.count, 1)
	e, err := newEndpoint(dev, rdma.QPConfig{MaxSend: n, MaxRecv: n}, nil)
	if err != nil {
		return nil, err
	}
	c := &ucmatoseEnd{endpoint: e, mem: make([]byte, 2*u.size)}
	for range u.count {
		if err := e.qp.PostRecv(rdma.RecvWR{SGL: e.sgl(c.mem[u.size:])}); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// until waits for completions until done says so.
func (c *ucmatoseEnd) until(ctx context.Context, done func() bool) error {
	for !done() {
		wc, err := c.next(ctx)
		if err != nil {
			return err
		}
		if wc.Opcode == rdma.WCRecv {
			c.recvd++
		} else {
			c.sent++
		}
	}
	return nil
}

func (u *ucmatose) send(c *ucmatoseEnd) error {
	for range u.count {
		if err := c.qp.Enqueue(&rdma.SendWR{Op: rdma.OpSend, Flags: rdma.FlagSignaled, SGL: c.sgl(c.mem[:u.size])}); err != nil {
			return err
		}
	}
	c.qp.Push()
	return nil
}

func (u *ucmatose) sends(ctx context.Context, ends []*ucmatoseEnd) error {
	for _, c := range ends {
		if err := u.send(c); err != nil {
			return err
		}
	}
	for _, c := range ends {
		if err := c.until(ctx, func() bool { return c.sent == u.count }); err != nil {
			return err
		}
	}
	return nil
}

func (u *ucmatose) receives(ctx context.Context, ends []*ucmatoseEnd) error {
	for _, c := range ends {
		if err := c.until(ctx, func() bool { return c.recvd == u.count }); err != nil {
			return err
		}
	}
	return nil
}

// whileMoving is ctx until all connections are silent: because the other end was killed, or waits too,
// for what this one was not told to send.
func (u *ucmatose) whileMoving(ctx context.Context, ends []*ucmatoseEnd) (context.Context, context.CancelFunc) {
	all := make([]*endpoint, len(ends))
	for i, c := range ends {
		all[i] = c.endpoint
	}
	return untilSilent(ctx, all...)
}

// runServer accepts as many connections as there are ends, and moves the messages of
// each.
func (u *ucmatose) runServer(ctx context.Context, dev *rdma.Device, ends []*ucmatoseEnd, p *rdma.ConnParams) error {
	u.say("cmatose: starting server")
	p.MPA.SpeakFirst = speakFirstAfter
	ln, err := u.listen(dev, u.bind, u.port, "-b")
	if err != nil {
		return err
	}
	defer ln.Close()
	for _, c := range ends {
		req, err := ln.Accept(ctx)
		if err == nil {
			err = req.Accept(ctx, c.qp, p)
		}
		if err != nil {
			return err
		}
	}
	ctx, stop := u.whileMoving(ctx, ends)
	defer stop()
	if u.count > 0 {
		u.say("initiating data transfers")
		u.say("completing sends")
		if err := u.sends(ctx, ends); err != nil {
			return err
		}
		u.say("receiving data transfers")
		if err := u.receives(ctx, ends); err != nil {
			return err
		}
		u.say("data transfers complete")
	}
	u.say("cmatose: disconnecting")
	for _, c := range ends {
		c.disconnect()
	}
	u.say("disconnected")
	return nil
}

// runClient connects every end, and moves the messages of each.
func (u *ucmatose) runClient(ctx context.Context, ends []*ucmatoseEnd, p *rdma.ConnParams) error {
	u.say("cmatose: starting client")
	u.say("cmatose: connecting")
	p.MPA.P2P = rdma.P2PWrite | rdma.P2PRead
	for _, c := range ends {
		if _, err := u.dial(ctx, u.server, u.port, c.qp, p); err != nil {
			return err
		}
	}
	ctx, stop := u.whileMoving(ctx, ends)
	defer stop()
	if u.count > 0 {
		u.say("receiving data transfers")
		if err := u.receives(ctx, ends); err != nil {
			return err
		}
		u.say("sending replies")
		if err := u.sends(ctx, ends); err != nil {
			return err
		}
		u.say("data transfers complete")
	}
	// The server disconnects.
	for _, c := range ends {
		if err := c.ended(ctx); err != nil {
			return err
		}
	}
	return nil
}
