package rdmatools

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"softiser/internal/sizeflag"
	"softiser/internal/usage"
	"softiser/rdma"
)

// The measurements are run like perftest's: without an argument the server, with
// the server's address the client, which does the work and prints the result.
// Between two ends of this program the request for the connection carries the test in
// its private data, see perf_offer.go, and the answer where the server's memory is; so
// only the client needs to be given the parameters. With perftest's own programs, see
// perftest.go: a server knows them by a Request without private data, a client
// has to be told.

// perfKind is one test.
type perfKind struct {
	name, short string
	op          rdma.Opcode
	latency     bool
}

var perfKinds = []perfKind{
	{"write-bw", "Bandwidth of RDMA Writes", rdma.OpWrite, false},
	{"read-bw", "Bandwidth of RDMA Reads", rdma.OpRead, false},
	{"send-bw", "Bandwidth of Sends", rdma.OpSend, false},
	{"write-lat", "Latency of RDMA Writes with immediate data (ping-pong, half of the round trip)", rdma.OpWriteImm, true},
	{"read-lat", "Latency of RDMA Reads", rdma.OpRead, true},
	{"send-lat", "Latency of Sends (ping-pong, half of the round trip)", rdma.OpSend, true},
	{"atomic-bw", "Rate of atomic operations", rdma.OpFetchAdd, false},
	{"atomic-lat", "Latency of atomic operations", rdma.OpFetchAdd, true},
}

// atomic reports whether the test is about atomic operations; their size is 8 bytes.
func (k *perfKind) atomic() bool { return k.op == rdma.OpFetchAdd || k.op == rdma.OpCmpSwap }

// answered reports whether the other end answers by itself, without its program.
func (k *perfKind) answered() bool { return k.op == rdma.OpRead || k.atomic() }

// atomicTypes are perftest's names for the values of -A.
var atomicTypes = map[string]rdma.Opcode{"FETCH_AND_ADD": rdma.OpFetchAdd, "CMP_AND_SWAP": rdma.OpCmpSwap}

const atomicSize = 8

type perf struct {
	transport
	kind     perfKind
	port     portFlag
	size     int
	iters    int
	depth    int
	duration rdmaDuration
	reads    int    // RDMA Reads and atomics outstanding: IRD and ORD
	atomicOp string // a key of atomicTypes
	service  string // type of the queue pairs
	qpType   rdma.QPType
	rxDepth  int                 // of perftest's Sends
	perftest bool                // the server is one of perftest's programs
	tcp      bool                // the other end is one of perftest's programs without -R
	ud       rdma.DatagramParams // of the queue pair for such a test with datagrams
	persist  bool
	json     bool
	out      io.Writer
}

const perfPort = 18515 // perftest's

// perfCommands are the commands write-bw, read-bw, send-bw, atomic-bw, and the same with -lat.
func perfCommands() []*cobra.Command {
	var cmds []*cobra.Command
	for _, k := range perfKinds {
		cmds = append(cmds, perfCommand(k))
	}
	return cmds
}

// perfCommand builds one of perftest's programs: ib_write_bw, ib_read_lat and their
// like.
func perfCommand(k perfKind) *cobra.Command {
	p := &perf{kind: k}
	size, iters := 65536, 5000
	if k.latency {
		size, iters = 2, 10000
	}
	msg := sizeflag.Binary{Value: sizeflag.Value(size)}
	cmd := &cobra.Command{
		Use:   k.name + " [SERVER]",
		Short: k.short,
		Long: k.short + ".\nWithout SERVER, waits for a client: this program, or perftest's ib_" + strings.ReplaceAll(k.name, "-", "_") + " -R,\n" +
			"for which -s, -n (and -r) must be the same on both ends. With --perftest the\nserver is that program. " +
			"With --tcp-exchange (RoCE) the other end, whichever it is, is that program without -R:\nthe ends tell each other over TCP where their queue pairs are, as it does by default.",
		Example: "  iser-initiator rdma " + k.name + "                      # server\n" +
			"  iser-initiator rdma " + k.name + " 127.0.0.1 -D 5       # client: five seconds\n" +
			"  iser-initiator rdma " + k.name + " --provider roce --bind_source_ip 127.0.0.1             # the same over RoCE,\n" +
			"  iser-initiator rdma " + k.name + " --provider roce --bind_source_ip 127.0.0.2 127.0.0.1   # one process per address\n" +
			"  iser-initiator rdma " + k.name + " --provider roce --tcp-exchange 10.0.0.2    # ib_" + strings.ReplaceAll(k.name, "-", "_") + " without -R is the server",
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cmd.SilenceUsage = true
			p.out, p.size = cmd.OutOrStdout(), int(msg.Value)
			switch {
			case p.tcp:
				return p.exchangeTCP(cmd.Context(), append(args, "")[0])
			case len(args) == 0:
				return p.serve(cmd.Context())
			}
			if p.perftest {
				return p.measurePerftest(cmd.Context(), args[0])
			}
			return p.measure(cmd.Context(), args[0])
		},
	}
	f := cmd.Flags()
	f.StringVar(&p.source, "bind_source_ip", "", "RoCE: the local address (needed by a server)")
	f.VarP(p.port.or(perfPort), "port", "p", "port of the service: TCP's, or rdma_cm's over RoCE")
	if k.atomic() {
		msg.Value = atomicSize
		f.StringVarP(&p.atomicOp, "atomic_type", "A", "FETCH_AND_ADD", "operation: CMP_AND_SWAP or FETCH_AND_ADD")
	} else {
		f.VarP(&msg, "size", "s", "bytes per message; k and m are powers of 1024")
	}
	f.IntVarP(&p.iters, "iters", "n", iters, "number of messages")
	f.VarP(&p.duration, "duration", "D", "run for this long (seconds, or 500ms) instead of -n messages")
	if !k.latency {
		f.IntVarP(&p.depth, "tx-depth", "t", 128, "messages in flight")
	}
	if k.op == rdma.OpSend && !k.latency {
		f.IntVarP(&p.rxDepth, "rx-depth", "r", 512, "receives posted by the server, with perftest")
	}
	p.reads = 128
	if p.service = rdma.TypeRC.String(); !k.answered() {
		f.StringVarP(&p.service, "connection", "c", p.service, "type of the queue pairs: RC, UC or, for Sends, UD (RoCE; given to both ends; what is lost is lost)")
	}
	if k.answered() {
		f.IntVarP(&p.reads, "outs", "o", p.reads, "RDMA Reads or atomics outstanding at most; more wait in the send queue")
	}
	f.BoolVarP(&p.perftest, "perftest", "R", false, "the server is perftest's program of this name, started with -R (client)")
	f.BoolVar(&p.tcp, "tcp-exchange", false, "the other end is perftest's program of this name without -R: addresses are exchanged over TCP port -p (RoCE; client and server)")
	f.BoolVar(&p.persist, "persistent", false, "serve any number of clients (server)")
	f.BoolVar(&p.json, "json", false, "print the result as JSON")
	p.flags(cmd)
	return cmd
}

// check looks at the options together and fills in what follows from them.
func (p *perf) check() error {
	if p.kind.latency {
		p.depth = 1
	}
	if p.kind.atomic() && p.atomicOp != "" {
		op, ok := atomicTypes[p.atomicOp]
		if !ok {
			return usage.Errorf("%s: -A %s: want CMP_AND_SWAP or FETCH_AND_ADD", p.kind.name, p.atomicOp)
		}
		p.kind.op = op
	}
	if p.service != "" {
		var err error
		if p.qpType, err = rdma.ParseQPType(p.service); err != nil {
			return usage.Errorf("%s: -c: %v", p.kind.name, err)
		}
	}
	switch {
	case p.qpType == rdma.TypeUD && p.kind.op != rdma.OpSend:
		return usage.Errorf("%s: -c UD: datagrams are Sends", p.kind.name)
	case p.qpType == rdma.TypeUD && p.perftest:
		return usage.Errorf("%s: -c UD does not go with --perftest; with perftest's default, no -R, --tcp-exchange does", p.kind.name)
	case p.tcp && p.perftest:
		return usage.Errorf("%s: --tcp-exchange does not go with --perftest: it is for perftest without -R", p.kind.name)
	case p.tcp && !p.roce():
		return usage.Errorf("%s: --tcp-exchange goes with --provider roce only", p.kind.name)
	case p.qpType != rdma.TypeRC && !p.roce():
		return usage.Errorf("%s: -c %v goes with --provider roce only", p.kind.name, p.qpType)
	case p.kind.atomic() && p.size != atomicSize:
		return usage.Errorf("%s: atomic operations have %d bytes, not %d", p.kind.name, atomicSize, p.size)
	case p.size < 1 || p.size > 1<<28:
		return usage.Errorf("%s: -s %d: want 1 to %d bytes", p.kind.name, p.size, 1<<28)
	case p.depth < 1 || p.depth > perfMaxDepth:
		return usage.Errorf("%s: -t %d: want 1 to %d", p.kind.name, p.depth, perfMaxDepth)
	case p.reads < 1 || p.reads > 128:
		return usage.Errorf("%s: -o %d: want 1 to 128", p.kind.name, p.reads)
	case (p.perftest || p.tcp) && p.duration.d > 0:
		return usage.Errorf("%s: -D does not go with perftest's exchanges: both ends count messages (-n)", p.kind.name)
	case p.duration.d <= 0 && p.iters < 1:
		return usage.Errorf("%s: -n %d: want at least 1", p.kind.name, p.iters)
	}
	return nil
}

// queues has room for twice the depth: the answers to a whole round of sends
// may be here before the call that sent it has returned and its slots are free.
func (p *perf) queues() rdma.QPConfig {
	return rdma.QPConfig{Type: p.qpType, MaxSend: 2*p.depth + 8, MaxRecv: 2*p.depth + 8}
}

func (p *perf) connParams() (rdma.ConnParams, error) {
	c, err := p.params()
	c.Extensions = p.kind.op == rdma.OpWriteImm || p.kind.atomic()
	c.IRD, c.ORD = p.reads, p.reads
	return c, err
}

// measure is the client.
func (p *perf) measure(ctx context.Context, host string) error {
	if err := p.check(); err != nil {
		return err
	}
	params, err := p.connParams()
	if err != nil {
		return err
	}
	dev, err := p.open()
	if err != nil {
		return err
	}
	defer dev.Close()
	if p.qpType == rdma.TypeUD {
		return p.measureDatagrams(ctx, dev, host)
	}
	run := &perfRun{perf: p, mem: make([]byte, p.size), done: make(chan error, 1)}
	run.endpoint, err = newEndpoint(dev, p.queues(), run.handle)
	if err != nil {
		return err
	}
	defer run.close()
	if err := run.prepare(); err != nil {
		return err
	}
	mr, err := run.pd.RegMR(make([]byte, p.size), rdma.AccessLocalWrite|rdma.AccessRemoteWrite)
	if err != nil {
		return err
	}
	defer mr.Dereg()
	offer := perfOffer{Test: p.kind.name, Size: p.size, Depth: p.depth, Mem: rdma.RemoteAddr{TO: mr.Addr(), STag: mr.RKey()}}
	params.PrivateData = offer.append(nil)
	info, err := p.dial(ctx, host, p.port, run.qp, &params)
	if err != nil {
		return err
	}
	var answer perfOffer
	if err := answer.parse(info.PrivateData); err != nil {
		return fmt.Errorf("%s: the server's answer is not understood: %w", p.kind.name, err)
	}
	run.remote = answer.Mem
	res, err := run.run(ctx)
	if err != nil {
		return err
	}
	res.fill(p, info)
	run.disconnect()
	return res.print(p.out, p.json)
}

// serve is the server.
func (p *perf) serve(ctx context.Context) error {
	if err := p.check(); err != nil {
		return err
	}
	if _, err := p.connParams(); err != nil { // before there is a client
		return err
	}
	dev, err := p.open()
	if err != nil {
		return err
	}
	defer dev.Close()
	if p.qpType == rdma.TypeUD {
		if p.source == "" {
			return usage.Errorf("over RoCE a server listens on one address: say which (--bind_source_ip)")
		}
		return p.serveDatagrams(ctx, dev)
	}
	ln, err := p.listen(dev, p.listenAddr(), p.port, "--bind_source_ip")
	if err != nil {
		return err
	}
	defer ln.Close()
	for {
		req, err := ln.Accept(ctx)
		if err != nil {
			if p.persist && ctx.Err() != nil {
				return nil
			}
			return err
		}
		if text(req.PrivateData()) == "" {
			err = p.servePerftest(ctx, dev, ln, req)
		} else {
			err = p.serveOne(ctx, dev, req)
		}
		if !p.persist {
			return err
		}
		if err != nil {
			fmt.Fprintf(p.out, "%s: client %v: %v\n", p.kind.name, req.RemoteAddr(), err)
		}
	}
}

// serveOne is the server's side of one test, as the client's private data describe it.
func (p *perf) serveOne(ctx context.Context, dev *rdma.Device, req *rdma.ConnRequest) error {
	var t perfOffer
	if err := t.parse(req.PrivateData()); err != nil {
		return reject(req, fmt.Errorf("the private data is neither empty, as perftest's, nor a test of this program: %w", err))
	}
	mine := *p
	mine.size, mine.depth, mine.iters = t.Size, t.Depth, 1
	if t.Test != p.kind.name {
		return reject(req, fmt.Errorf("the server runs %s, the client %s", p.kind.name, t.Test))
	}
	if err := mine.check(); err != nil {
		return reject(req, err)
	}
	if req.Type() != mine.qpType {
		return reject(req, fmt.Errorf("the server has queue pairs of type %v, the client %v", mine.qpType, req.Type()))
	}
	params, err := mine.connParams()
	if err != nil {
		return err
	}
	s := &perfServer{perf: &mine, mem: make([]byte, t.Size), bufs: make([]byte, t.Size), remote: t.Mem}
	s.endpoint, err = newEndpoint(dev, mine.queues(), s.handle)
	if err != nil {
		return err
	}
	defer s.close()
	mr, err := s.pd.RegMR(s.mem, rdma.AccessLocalWrite|rdma.AccessRemoteRead|rdma.AccessRemoteWrite|rdma.AccessRemoteAtomic)
	if err != nil {
		return err
	}
	defer mr.Dereg()
	answer := t
	answer.Mem = rdma.RemoteAddr{TO: mr.Addr(), STag: mr.RKey()}
	params.PrivateData = answer.append(nil)
	for range t.Depth + 4 {
		if err := s.post(); err != nil {
			return err
		}
	}
	if err := req.Accept(ctx, s.qp, &params); err != nil {
		return err
	}
	return s.wait(ctx)
}

// listenAddr is where a server listens: everywhere over TCP, where nothing is asked of it.
func (p *perf) listenAddr() string {
	if p.roce() {
		return p.source
	}
	return ""
}

// deadline tells when a timed run ends; zero for counted ones.
func (p *perf) deadline() time.Time {
	if p.duration.d > 0 {
		return time.Now().Add(p.duration.d)
	}
	return time.Time{}
}
