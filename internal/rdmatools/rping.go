package rdmatools

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"softiser/internal/usage"
	"softiser/rdma"
)

// rping moves a text from client to server and back by RDMA. Each message between
// the two is 16 bytes: address (8), rkey (4), length (4), big-endian.
//
//	client                                 server
//	   | -- Send: where the text is ------> |
//	   | <================ RDMA Read ====== |
//	   | <------------- Send: go ahead ---- |
//	   | -- Send: where it may be put ----> |
//	   | <================ RDMA Write ===== |
//	   | <------------- Send: done -------- |
const (
	rpingPort   = 7174
	rpingMsgLen = 16
	rpingMin    = 17      // as rdma-core's
	rpingMax    = 1 << 20 // rdma-core's own limit is 64 KiB - 1
)

type rping struct {
	transport
	server, client, persistent bool
	verbose, validate, debug   bool
	addr                       string
	port                       portFlag
	count, size                int
	json                       bool

	out io.Writer
	mu  sync.Mutex // guards out and sum between connections
	sum rpingSummary
}

// rpingSummary is what --json prints.
type rpingSummary struct {
	Role        string  `json:"role"`
	Connections int     `json:"connections"`
	Pings       int     `json:"pings"`
	Size        int     `json:"size_bytes"`
	Validated   bool    `json:"validated"`
	CRC         bool    `json:"crc"`
	Seconds     float64 `json:"seconds"`
}

// rpingCommand is the command rping.
func rpingCommand() *cobra.Command {
	r := &rping{}
	cmd := &cobra.Command{
		Use:   "rping -s|-c [-a ADDRESS] [-p PORT]",
		Short: "RDMA ping-pong, compatible with rdma-core's rping",
		Example: `  iser-initiator rdma rping -s -a 127.0.0.1            # server; or rdma-core's: rping -s
  iser-initiator rdma rping -c -a 127.0.0.1 -C 10 -v   # client
  iser-initiator rdma rping -s -a 127.0.0.1 --provider roce                        # the same over RoCE;
  iser-initiator rdma rping -c -a 127.0.0.1 -I 127.0.0.2 -C 10 -v --provider roce  # one process per address`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cmd.SilenceUsage = true
			r.out = cmd.OutOrStdout()
			return r.run(cmd.Context())
		},
	}
	f := cmd.Flags()
	f.BoolVarP(&r.server, "server", "s", false, "be the server")
	f.BoolVarP(&r.client, "client", "c", false, "be the client")
	f.StringVarP(&r.addr, "address", "a", "", "server: address to listen on (default all; RoCE needs one); client: server's address (default 127.0.0.1)")
	f.StringVarP(&r.source, "source", "I", "", "RoCE: local address (client); the one on the way to the server")
	f.VarP(r.port.or(rpingPort), "port", "p", "port of the service: TCP's, or rdma_cm's over RoCE")
	f.BoolVarP(&r.verbose, "verbose", "v", false, "print the text of each ping")
	f.BoolVarP(&r.validate, "validate", "V", false, "compare what comes back (client)")
	f.IntVarP(&r.count, "count", "C", 0, "number of pings (client); 0: until interrupted")
	f.IntVarP(&r.size, "size", "S", 64, "length of the text in bytes")
	f.BoolVarP(&r.persistent, "persistent", "P", false, "serve any number of clients")
	f.BoolVarP(&r.debug, "debug", "d", false, "print what was negotiated")
	f.BoolVar(&r.json, "json", false, "print a summary as JSON at the end")
	r.flags(cmd)
	return cmd
}

// run checks the command line and is the server or the client that it asks for.
func (r *rping) run(ctx context.Context) error {
	if r.server == r.client {
		return usage.Errorf("rping: say either -s (server) or -c (client)")
	}
	if r.size < rpingMin || r.size > rpingMax {
		return usage.Errorf("rping: -S %d: want %d to %d bytes", r.size, rpingMin, rpingMax)
	}
	if r.count < 0 {
		return usage.Errorf("rping: -C %d: want the number of pings, or 0 for pings until interrupted", r.count)
	}
	p, err := r.params()
	if err != nil {
		return err
	}
	p.IRD, p.ORD = 1, 1
	dev, err := r.open()
	if err != nil {
		return err
	}
	defer dev.Close()
	start := time.Now()
	if r.server {
		err = r.serve(ctx, dev, &p)
	} else {
		err = r.ping(ctx, dev, &p)
	}
	r.sum.Seconds = time.Since(start).Seconds()
	if r.json && err == nil {
		return printJSON(r.out, &r.sum)
	}
	return err
}

func (r *rping) printf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fmt.Fprintf(r.out, format, args...)
}

func rpingMsg(addr uint64, rkey uint32, n int) []byte {
	b := binary.BigEndian.AppendUint64(nil, addr)
	b = binary.BigEndian.AppendUint32(b, rkey)
	return binary.BigEndian.AppendUint32(b, uint32(n))
}

// ping is the client.
func (r *rping) ping(ctx context.Context, dev *rdma.Device, p *rdma.ConnParams) error {
	e, err := newEndpoint(dev, rdma.QPConfig{}, nil)
	if err != nil {
		return err
	}
	defer e.close()
	text, back := make([]byte, r.size), make([]byte, r.size)
	src, err := e.pd.RegMR(text, rdma.AccessRemoteRead)
	if err != nil {
		return err
	}
	defer src.Dereg()
	sink, err := e.pd.RegMR(back, rdma.AccessLocalWrite|rdma.AccessRemoteWrite)
	if err != nil {
		return err
	}
	defer sink.Dereg()
	msg := make([]byte, rpingMsgLen)
	if err := e.qp.PostRecv(rdma.RecvWR{SGL: e.sgl(msg)}); err != nil {
		return err
	}
	host := r.addr
	if host == "" {
		host = "127.0.0.1"
	}
	info, err := r.dial(ctx, host, r.port, e.qp, p)
	if err != nil {
		return err
	}
	r.connected(info)
	ctx, stop := r.whileHeard(ctx, e)
	defer stop()
	r.sum = rpingSummary{Role: "client", Connections: 1, Size: r.size, Validated: r.validate, CRC: info.CRC}
	for n := 0; r.count == 0 || n < r.count; n++ {
		rpingText(text, n)
		for _, m := range [][]byte{rpingMsg(src.Addr(), src.RKey(), r.size), rpingMsg(sink.Addr(), sink.RKey(), r.size)} {
			if err := e.qp.PostSend(rdma.SendWR{Op: rdma.OpSend, Flags: rdma.FlagInline, SGL: e.sgl(m)}); err != nil {
				return err
			}
			if err := rpingRecv(ctx, e); err != nil {
				return fmt.Errorf("rping: ping %d: %w", n, err)
			}
			if err := e.qp.PostRecv(rdma.RecvWR{SGL: e.sgl(msg)}); err != nil {
				return err
			}
		}
		if r.validate && !bytes.Equal(text, back) {
			return fmt.Errorf("rping: ping %d: data mismatch: sent %q, got back %q", n, text, back)
		}
		if r.verbose {
			r.printf("ping data: %s\n", back[:len(back)-1])
		}
		r.sum.Pings++
	}
	e.disconnect()
	return nil
}

// rpingText is the text of ping n: a title, then letters from one that moves on
// with each ping, and a zero byte.
func rpingText(b []byte, n int) {
	title := fmt.Sprintf("rdma-ping-%d: ", n)
	k := copy(b, title)
	c := byte('A' + n%('z'-'A'+1))
	for ; k < len(b); k++ {
		b[k] = c
		if c++; c > 'z' {
			c = 'A'
		}
	}
	b[len(b)-1] = 0
}

// rpingRecv waits for the peer's next message, which is in the buffer that was posted for it.
func rpingRecv(ctx context.Context, e *endpoint) error {
	for {
		wc, err := e.next(ctx)
		if err != nil {
			return err
		}
		if wc.Opcode != rdma.WCRecv {
			continue
		}
		if wc.ByteLen != rpingMsgLen {
			return fmt.Errorf("the peer sent %d bytes, want %d", wc.ByteLen, rpingMsgLen)
		}
		return nil
	}
}

func (r *rping) connected(info *rdma.ConnInfo) {
	switch {
	case r.debug && r.roce():
		r.printf("connected to %v: queue pair %#06x, path MTU %d, IRD %d, ORD %d\n", info.RemoteAddr, info.RoCE.RemoteQPN, info.RoCE.PathMTU, info.IRD, info.ORD)
	case r.debug:
		r.printf("connected to %v: MPA revision %d, CRC %v, IRD %d, ORD %d, FPDUs of up to %d bytes\n",
			info.RemoteAddr, info.MPA.Rev, info.CRC, info.IRD, info.ORD, info.MPA.FPDUSize)
	}
}

// serve is the server.
func (r *rping) serve(ctx context.Context, dev *rdma.Device, p *rdma.ConnParams) error {
	ln, err := r.listen(dev, r.addr, r.port, "-a")
	if err != nil {
		return err
	}
	defer ln.Close()
	r.sum = rpingSummary{Role: "server", Size: r.size}
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		req, err := ln.Accept(ctx)
		if err != nil {
			if r.persistent && ctx.Err() != nil {
				return nil
			}
			return err
		}
		if !r.persistent {
			return r.serveOne(ctx, dev, req, p)
		}
		wg.Go(func() {
			if err := r.serveOne(ctx, dev, req, p); err != nil {
				r.printf("rping: client %v: %v\n", req.RemoteAddr(), err)
			}
		})
	}
}

// serveOne answers the pings of one client: it reads the data from where the client
// says, and writes it back to where it says next.
func (r *rping) serveOne(ctx context.Context, dev *rdma.Device, req *rdma.ConnRequest, p *rdma.ConnParams) error {
	e, err := newEndpoint(dev, rdma.QPConfig{}, nil)
	if err != nil {
		return err
	}
	defer e.close()
	msg := make([]byte, rpingMsgLen)
	post := func() error { return e.qp.PostRecv(rdma.RecvWR{SGL: e.sgl(msg)}) }
	if err := post(); err != nil {
		return err
	}
	if err := req.Accept(ctx, e.qp, p); err != nil {
		return err
	}
	info := e.qp.Info()
	r.connected(&info)
	s := rpingServer{r: r, e: e, msg: msg, post: post, buf: make([]byte, r.size)}
	ctx, stop := r.whileHeard(ctx, e)
	defer stop()
	pings := 0
	for {
		if err = s.ping(ctx); err != nil {
			break
		}
		pings++
	}
	r.mu.Lock()
	r.sum.Connections++
	r.sum.Pings += pings
	r.sum.CRC = info.CRC
	r.mu.Unlock()
	if errors.Is(err, io.EOF) {
		return nil // the client has gone, as it should
	}
	return err
}

// rpingServer answers the pings of one client.
type rpingServer struct {
	r    *rping
	e    *endpoint
	msg  []byte       // the receive buffer
	post func() error // posts it
	buf  []byte       // the data of the last ping
}

// ping answers one.
func (s *rpingServer) ping(ctx context.Context) error {
	where, n, err := rpingWhere(ctx, s.e, s.msg, s.post)
	if err != nil {
		return err
	}
	text, err := s.fetch(ctx, where, n)
	if err != nil {
		return err
	}
	if s.r.verbose {
		s.r.printf("server ping data: %s\n", bytes.TrimSuffix(text, []byte{0}))
	}
	ack := make([]byte, rpingMsgLen)
	if err := s.e.qp.PostSend(rdma.SendWR{Op: rdma.OpSend, Flags: rdma.FlagInline, SGL: s.e.sgl(ack)}); err != nil {
		return err
	}
	if where, n, err = rpingWhere(ctx, s.e, s.msg, s.post); err != nil {
		return err
	}
	if n < len(text) {
		return fmt.Errorf("the client takes %d bytes back, sent %d", n, len(text))
	}
	return s.e.qp.PostSend(
		rdma.SendWR{Op: rdma.OpWrite, SGL: s.e.sgl(text), Remote: where},
		rdma.SendWR{Op: rdma.OpSend, Flags: rdma.FlagInline, SGL: s.e.sgl(ack)})
}

// fetch reads the data of a ping, n bytes of the client's memory; it ends with its first zero.
func (s *rpingServer) fetch(ctx context.Context, from rdma.RemoteAddr, n int) ([]byte, error) {
	if n > len(s.buf) {
		s.buf = make([]byte, n)
	}
	text := s.buf[:n]
	if err := s.e.qp.PostSend(rdma.SendWR{Op: rdma.OpRead, Flags: rdma.FlagSignaled, SGL: s.e.sgl(text), Remote: from}); err != nil {
		return nil, err
	}
	for {
		wc, err := s.e.next(ctx)
		if err != nil {
			return nil, err
		}
		if wc.Opcode == rdma.WCRead {
			break
		}
	}
	if i := bytes.IndexByte(text, 0); i >= 0 {
		text = text[:i+1]
	}
	return text, nil
}

// rpingWhere waits for a message that says where memory of the client is.
func rpingWhere(ctx context.Context, e *endpoint, msg []byte, post func() error) (rdma.RemoteAddr, int, error) {
	if err := rpingRecv(ctx, e); err != nil {
		return rdma.RemoteAddr{}, 0, err
	}
	at := rdma.RemoteAddr{TO: binary.BigEndian.Uint64(msg), STag: binary.BigEndian.Uint32(msg[8:])}
	n := binary.BigEndian.Uint32(msg[12:])
	if n > rpingMax {
		return at, 0, fmt.Errorf("the client names %d bytes, at most %d are served", n, rpingMax)
	}
	return at, int(n), post()
}
