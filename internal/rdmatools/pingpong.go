package rdmatools

import (
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"softiser/internal/usage"
	"softiser/rdma"
)

// The pingpongs of libibverbs: ibv_rc_pingpong, ibv_uc_pingpong, ibv_ud_pingpong. Their
// queue pairs are connected by numbers that the programs tell each other over TCP; there
// is no connection manager.
//
//	client                         TCP                       server
//	   | -- LID:QPN:PSN:GID ---------------------------------> |   connects
//	   | <--------------------------------- LID:QPN:PSN:GID -- |
//	   | connects, -- "done" --------------------------------> |
//	   |                       RoCE                            |
//	   | -- Send --------------------------------------------> |
//	   | <------------------------------------------- Send --- |   and so on
const (
	pingpongPort = 18515
	pingpongQKey = 0x11111111
	pingpongDone = "done\x00"
	pingpongWait = 30 * time.Second // for each step of the exchange
)

// pingpongDest is what the ends tell each other: "%04x:%06x:%06x:%s" with the GID as 32
// hexadecimal digits, and a NUL.
type pingpongDest struct {
	lid uint16
	rdma.Endpoint
}

const pingpongDestLen = 4 + 1 + 6 + 1 + 6 + 1 + 32 + 1

func (d *pingpongDest) append(b []byte) []byte {
	gid := d.Addr.As16()
	return fmt.Appendf(b, "%04x:%06x:%06x:%s\x00", d.lid, d.QPN, d.PSN, hex.EncodeToString(gid[:]))
}

func (d *pingpongDest) parse(b []byte) error {
	bad := fmt.Errorf("pingpong: the other end says %q instead of LID:QPN:PSN:GID", b)
	f := strings.Split(strings.TrimSuffix(string(b), "\x00"), ":")
	if len(f) != 4 {
		return bad
	}
	lid, err1 := strconv.ParseUint(f[0], 16, 16)
	qpn, err2 := strconv.ParseUint(f[1], 16, 24)
	psn, err3 := strconv.ParseUint(f[2], 16, 24)
	gid, err4 := hex.DecodeString(f[3])
	if err1 != nil || err2 != nil || err3 != nil || err4 != nil || len(gid) != 16 {
		return bad
	}
	*d = pingpongDest{uint16(lid), rdma.Endpoint{Addr: netip.AddrFrom16([16]byte(gid)).Unmap(), QPN: uint32(qpn), PSN: uint32(psn)}}
	if d.Addr.IsUnspecified() {
		return usage.Errorf("pingpong: the other end has told no GID: start it with -g and the index of its RoCE v2 GID")
	}
	return nil
}

// show prints an end as the originals do.
func (d *pingpongDest) show(which string) string {
	return fmt.Sprintf("  %-15s LID 0x%04x, QPN 0x%06x, PSN 0x%06x, GID %v\n", which+" address:", d.lid, d.QPN, d.PSN, netip.AddrFrom16(d.Addr.As16()))
}

type pingpong struct {
	kind                      rdma.QPType
	source                    string
	port                      portFlag
	size, mtu                 int
	rxDepth, iters            int
	json                      bool
	out                       io.Writer
	routs, sent, got, pending int

	*endpoint
	dest     rdma.Destination // of the type UD
	send     []byte
	recv     []byte // with room for the header of datagrams
	headroom int
}

// pingpongCommands are the commands rc-pingpong, uc-pingpong and ud-pingpong.
func pingpongCommands() []*cobra.Command {
	var cmds []*cobra.Command
	for _, t := range []rdma.QPType{rdma.TypeRC, rdma.TypeUC, rdma.TypeUD} {
		cmds = append(cmds, pingpongCommand(t))
	}
	return cmds
}

// pingpongCommand makes the command for a type of queue pair.
func pingpongCommand(t rdma.QPType) *cobra.Command {
	p := &pingpong{kind: t}
	name, size := strings.ToLower(t.String())+"-pingpong", 4096
	if t == rdma.TypeUD {
		size = 1024
	}
	cmd := &cobra.Command{
		Use:   name + " [SERVER]",
		Short: "Ping-pong of Sends over RoCE by a queue pair of type " + t.String() + ", compatible with libibverbs' ibv_" + strings.ReplaceAll(name, "-", "_"),
		Long: "Without SERVER, waits for a client. The ends tell each other over TCP where their queue pairs are; the\n" +
			"address of that connection is the one of RoCE. Both ends must be given the same -s, -n and -m.",
		Example: "  iser-initiator rdma " + name + " --bind_source_ip 127.0.0.1             # server; or ibv_" + strings.ReplaceAll(name, "-", "_") + " -g 1\n" +
			"  iser-initiator rdma " + name + " --bind_source_ip 127.0.0.2 127.0.0.1   # client; one process per address",
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cmd.SilenceUsage = true
			p.out = cmd.OutOrStdout()
			return p.run(cmd.Context(), append(args, "")[0])
		},
	}
	f := cmd.Flags()
	f.VarP(p.port.or(pingpongPort), "port", "p", "TCP port of the exchange")
	f.StringVar(&p.source, "bind_source_ip", "", "local address (default: that of the TCP connection)")
	f.IntVarP(&p.size, "size", "s", size, "bytes per message")
	if t != rdma.TypeUD {
		f.IntVarP(&p.mtu, "mtu", "m", 1024, "path MTU: 256, 512, 1024, 2048 or 4096")
	}
	f.IntVarP(&p.rxDepth, "rx-depth", "r", 500, "receives posted at a time")
	f.IntVarP(&p.iters, "iters", "n", 1000, "number of exchanges")
	f.BoolVar(&p.json, "json", false, "print the result as JSON")
	return cmd
}

// run exchanges numbers with the other end, then messages.
func (p *pingpong) run(ctx context.Context, server string) (err error) {
	defer func() { err = interrupted(ctx, err) }()
	var local netip.Addr
	if p.source != "" {
		if local, err = netip.ParseAddr(p.source); err != nil {
			return usage.Errorf("local address %q: want an IP address", p.source)
		}
	}
	if err := checkMTU(p.mtu); err != nil {
		return err
	}
	switch {
	case p.size < 1 || p.size > 1<<24:
		return usage.Errorf("pingpong: -s %d: want 1 to %d bytes", p.size, 1<<24)
	case p.rxDepth < 1 || p.rxDepth > 1<<14:
		return usage.Errorf("pingpong: -r %d: want 1 to %d", p.rxDepth, 1<<14)
	case p.iters < 1:
		return usage.Errorf("pingpong: -n %d: want at least 1", p.iters)
	}
	nc, err := p.meet(ctx, server)
	if err != nil {
		return err
	}
	defer nc.Close()
	stop := context.AfterFunc(ctx, func() { _ = nc.Close() })
	defer stop()
	if !local.IsValid() {
		local = nc.LocalAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()
	}
	dev, err := rdma.Open(&rdma.DeviceConfig{Provider: rdma.ProviderRoCE})
	if err != nil {
		return err
	}
	defer dev.Close()
	if err := p.prepare(dev, local); err != nil {
		return err
	}
	defer p.close()
	mine := pingpongDest{Endpoint: rdma.Endpoint{Addr: local, QPN: p.qp.Num(), PSN: rand.Uint32() & 0xffffff}}
	if err := p.exchange(nc, server != "", &mine); err != nil {
		return err
	}
	start := time.Now()
	if err := p.play(ctx, server != ""); err != nil {
		return fmt.Errorf("pingpong: after %d messages sent, %d received: %w", p.sent, p.got, err)
	}
	took := time.Since(start).Seconds()
	p.disconnect()
	bytes := 2 * float64(p.size) * float64(p.iters)
	if p.json {
		return printJSON(p.out, map[string]any{
			"test": strings.ToLower(p.kind.String()) + "-pingpong", "size_bytes": p.size, "iterations": p.iters, "seconds": took,
			"mbit_per_s": bytes * 8 / took / 1e6, "us_per_iteration": took * 1e6 / float64(p.iters),
		})
	}
	fmt.Fprintf(p.out, "%.0f bytes in %.2f seconds = %.2f Mbit/sec\n", bytes, took, bytes*8/took/1e6)
	fmt.Fprintf(p.out, "%d iters in %.2f seconds = %.2f usec/iter\n", p.iters, took, took*1e6/float64(p.iters))
	return nil
}

// meet makes the TCP connection.
func (p *pingpong) meet(ctx context.Context, server string) (net.Conn, error) {
	if server != "" {
		return dialTCP(ctx, p.source, server, p.port)
	}
	ln, err := listenTCP(ctx, p.source, p.port)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = ln.Close() })
	defer stop()
	defer ln.Close()
	return ln.Accept()
}

// dialTCP and listenTCP are for what ends of RoCE tell each other over TCP; source is the
// local address, or empty.
func dialTCP(ctx context.Context, source, server string, port portFlag) (net.Conn, error) {
	var d net.Dialer
	if source != "" {
		d.LocalAddr = &net.TCPAddr{IP: net.ParseIP(source)}
	}
	return d.DialContext(ctx, "tcp", net.JoinHostPort(server, port.String()))
}

func listenTCP(ctx context.Context, source string, port portFlag) (net.Listener, error) {
	return new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(source, port.String()))
}

// prepare makes the queue pair, with receives in it.
func (p *pingpong) prepare(dev *rdma.Device, local netip.Addr) (err error) {
	q := rdma.QPConfig{Type: p.kind, MaxSend: 2, MaxRecv: p.rxDepth}
	if p.kind == rdma.TypeUD {
		q.Datagram = rdma.DatagramParams{LocalAddr: local, QKey: pingpongQKey}
		p.headroom = rdma.GRHLen
	}
	if p.endpoint, err = newEndpoint(dev, q, nil); err != nil {
		return err
	}
	if mtu := p.qp.Info().RoCE.PathMTU; p.kind == rdma.TypeUD && p.size > mtu {
		p.close()
		return usage.Errorf("ud-pingpong: -s %d: a datagram from %v carries %d bytes", p.size, local, mtu)
	}
	p.send, p.recv = make([]byte, p.size), make([]byte, p.headroom+p.size)
	if err := p.refill(); err != nil {
		p.close()
		return err
	}
	return nil
}

// refill posts as many receives as fit.
func (p *pingpong) refill() error {
	for ; p.routs < p.rxDepth; p.routs++ {
		if err := p.qp.PostRecv(rdma.RecvWR{SGL: p.sgl(p.recv)}); err != nil {
			return err
		}
	}
	return nil
}

// exchange tells the other end where this one is, and connects the two.
func (p *pingpong) exchange(nc net.Conn, client bool, mine *pingpongDest) error {
	_ = nc.SetDeadline(time.Now().Add(pingpongWait))
	if !p.json {
		fmt.Fprint(p.out, mine.show("local"))
	}
	var theirs pingpongDest
	read := func() error {
		b := make([]byte, pingpongDestLen)
		if _, err := io.ReadFull(nc, b); err != nil {
			return fmt.Errorf("pingpong: the other end has not said where its queue pair is: %w", err)
		}
		return theirs.parse(b)
	}
	write := func(b []byte) error {
		_, err := nc.Write(b)
		return err
	}
	connect := func() error { return p.connect(mine.Endpoint, theirs.Endpoint) }
	tell := func() error { return write(mine.append(nil)) }
	steps := []func() error{read, connect, tell, func() error {
		_, err := io.ReadFull(nc, make([]byte, len(pingpongDone)))
		return err
	}}
	if client {
		steps = []func() error{tell, read, connect, func() error { return write([]byte(pingpongDone)) }}
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	if !p.json {
		fmt.Fprint(p.out, theirs.show("remote"))
	}
	return nil
}

// connect makes the queue pair ready to send to the other one.
func (p *pingpong) connect(mine, theirs rdma.Endpoint) error {
	if p.kind == rdma.TypeUD {
		ah, err := p.pd.CreateAH(theirs.Addr)
		p.dest = rdma.Destination{AH: ah, QPN: theirs.QPN, QKey: pingpongQKey}
		return err
	}
	const timeout = 4096 << 14 // ns; as the originals
	return p.qp.Attach(mine, theirs, &rdma.ConnParams{IRD: 1, ORD: 1, RoCE: rdma.RoCEParams{PathMTU: p.mtu, AckTimeout: timeout}})
}

// What an end waits for before it sends again.
const (
	pendingSend = 1 << iota
	pendingRecv
)

func (p *pingpong) post() error {
	p.pending = pendingSend | pendingRecv
	return p.qp.PostSend(rdma.SendWR{Op: rdma.OpSend, Flags: rdma.FlagSignaled, SGL: p.sgl(p.send), Dest: p.dest})
}

// play sends and receives in turns; the client begins. A message that is lost is not sent again, but
// by RC, and nobody tells of an end that was killed.
func (p *pingpong) play(ctx context.Context, client bool) error {
	ctx, stop := untilSilent(ctx, p.endpoint)
	defer stop()
	p.pending = pendingRecv
	if client {
		if err := p.post(); err != nil {
			return err
		}
	}
	for p.sent < p.iters || p.got < p.iters {
		wc, err := p.next(ctx)
		if err != nil {
			return err
		}
		if wc.Opcode != rdma.WCRecv {
			p.sent++
			p.pending &^= pendingSend
		} else {
			if n := int(wc.ByteLen) - p.headroom; n != p.size {
				return fmt.Errorf("a message of %d bytes; both ends must be given the same -s (here %d)", n, p.size)
			}
			p.got++
			p.pending &^= pendingRecv
			if p.routs--; p.routs <= 1 {
				if err := p.refill(); err != nil {
					return err
				}
			}
		}
		if p.pending == 0 && p.sent < p.iters {
			if err := p.post(); err != nil {
				return err
			}
		}
	}
	return nil
}
