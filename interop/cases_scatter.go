package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"time"

	"softiser/interop/internal/ports"
	"softiser/rdma"
)

// Scattered memory, more Reads than the peer serves at once, a peer
// that is slow, and what a kernel says when it refuses.
var scatterCases = []Case{
	{Name: "verbs/scattered", Expect: "Sends, Reads and Writes of several SGEs; 40 Reads posted where siw serves one", Short: true, Run: scattered},
	{Name: "verbs/slow-peer-kernel-client", Expect: "rping verifies over a path that drips, cut anywhere, with CRC and without", Run: slowKernelClient},
	{Name: "verbs/slow-peer-kernel-server", Expect: "rping verifies over a path that drips, cut anywhere, with CRC and without", Run: slowKernelServer},
	{Name: "verbs/siw-split-crc", Expect: "siw 6.1 as it is takes a CRC in two segments for a bad one, and we understand that", Run: splitCRC},
	{Name: "verbs/kernel-rejects", Expect: "the private data of a kernel's reject reaches us", Run: kernelRejects},
}

// pieces cuts memory at odd places.
func pieces(mem []byte, mr *rdma.MR, sizes ...int) []rdma.SGE {
	var sgl []rdma.SGE
	for _, n := range sizes {
		sgl = append(sgl, rdma.SGE{Mem: mem[:n], LKey: mr.LKey()})
		mem = mem[n+3:] // a gap, so that neighbours would show
	}
	return append(sgl, rdma.SGE{Mem: mem, LKey: mr.LKey()})
}

func join(sgl []rdma.SGE) []byte {
	var b []byte
	for _, s := range sgl {
		b = append(b, s.Mem...)
	}
	return b
}

// scattered is the server of a kernel's rping client, which hands out memory to
// read, then memory to write, and compares both.
func scattered(_ context.Context, e *Env) (string, error) {
	const size, reads, piece = 4000, 40, 4096
	c, err := newVerbsConn()
	if err != nil {
		return "", err
	}
	defer c.close()
	mem := make([]byte, (reads+2)*piece)
	mr, err := c.pd.RegMR(mem, rdma.AccessLocalWrite)
	if err != nil {
		return "", err
	}
	c.down = append(c.down[:len(c.down)-1], mr.Dereg, c.down[len(c.down)-1])
	client, req, err := c.visitor(e, fmt.Sprintf("dmesg -C; limited 60 rping -c -a $HOST -p PORT -C 1 -S %d -V -v || die rping; quiet_kernel", size))
	if err != nil {
		return "", err
	}
	if err := req.Accept(e.ctx, c.qp, &rdma.ConnParams{CRC: rdma.CRCRequired, IRD: 1, ORD: 16}); err != nil {
		return "", err
	}
	if got := c.qp.Info().ORD; got != 1 {
		return "", fmt.Errorf("ORD %d against rping, which serves one Read", got)
	}
	source, err := c.rpingInfo(e.ctx, 0, size)
	if err != nil {
		return "", err
	}
	var sinks [][]rdma.SGE
	for i := range reads {
		// size bytes behind up to five SGEs, the last one takes the rest.
		cut := []int{1 + i, 7, 100 * (1 + i%3), 1024}[:1+i%4]
		sgl := pieces(mem[i*piece:][:size+3*len(cut)], mr, cut...)
		sinks = append(sinks, sgl)
		if err := c.qp.PostSend(rdma.SendWR{Op: rdma.OpRead, Flags: rdma.FlagSignaled, SGL: sgl, Remote: source}); err != nil {
			return "", err
		}
	}
	if err := c.completions(e.ctx, rdma.WCRead, reads); err != nil {
		return "", err
	}
	text := join(sinks[0])
	if !bytes.HasPrefix(text, []byte("rdma-ping-0: ABCD")) {
		return "", fmt.Errorf("read %q", text[:32])
	}
	for i, s := range sinks {
		if !bytes.Equal(join(s), text) {
			return "", fmt.Errorf("the Read %d, with %d SGEs, brought something else", i, len(s))
		}
	}
	// rping's go-ahead is a message of 16 bytes, whatever they are.
	goAhead := rdma.SendWR{Op: rdma.OpSend, SGL: pieces(c.mem[8192:8192+16+6], c.mr, 5, 7)}
	if err := c.qp.PostSend(goAhead); err != nil {
		return "", err
	}
	sink, err := c.rpingInfo(e.ctx, 1, size)
	if err != nil {
		return "", err
	}
	if err := c.qp.PostSend(rdma.SendWR{Op: rdma.OpWrite, SGL: sinks[reads-1], Remote: sink}, goAhead); err != nil {
		return "", err
	}
	if out, err := client.Wait(e.ctx); err != nil {
		return out, err
	}
	return fmt.Sprintf("%d Reads of 2 to 5 SGEs at ORD 1, Write of %d, Sends of 3: verified", reads, len(sinks[reads-1])), nil
}

// rpingInfo waits for the n-th message of rping: address, STag and length.
func (c *verbsConn) rpingInfo(ctx context.Context, n, size int) (rdma.RemoteAddr, error) {
	if err := c.completions(ctx, rdma.WCRecv, 1); err != nil {
		return rdma.RemoteAddr{}, fmt.Errorf("rping's message %d: %w", n, err)
	}
	m := c.mem[n*64:]
	if got := binary.BigEndian.Uint32(m[12:]); int(got) != size {
		return rdma.RemoteAddr{}, fmt.Errorf("rping offers %d bytes, not %d", got, size)
	}
	return rdma.RemoteAddr{TO: binary.BigEndian.Uint64(m), STag: binary.BigEndian.Uint32(m[8:])}, nil
}

// completions waits for n successful completions of one kind.
func (c *verbsConn) completions(ctx context.Context, kind rdma.WCOpcode, n int) error {
	for n > 0 {
		var wc [1]rdma.WC
		if c.cq.Poll(wc[:]) == 0 {
			if err := c.cq.Wait(ctx); err != nil {
				return err
			}
			continue
		}
		if wc[0].Status != rdma.StatusSuccess || wc[0].Opcode != kind {
			return fmt.Errorf("%v ended with %v (%v)", wc[0].Opcode, wc[0].Status, c.qp.Err())
		}
		n--
	}
	return nil
}

// drips are the CRC modes of a slow path.
var drips = []string{"off", "required"}

const dripSize = "3000"

// drip forwards connections to addr in both directions, at most 13 bytes per
// millisecond, each piece as a segment of its own. What goes to the guest begins
// with a whole piece: siw may wait for ever for the rest of an MPA Reply (in a
// state in which its process cannot be killed) when that comes while it still
// works on the first part.
func drip(e *Env, addr string, toGuest bool) (port int, stop func(), err error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, nil, err
	}
	pour := func(to, from net.Conn, whole bool) {
		defer to.Close()
		buf := make([]byte, 512)
		for e.ctx.Err() == nil {
			n := 1 + rand.IntN(13)
			if whole {
				n, whole = len(buf), false
			}
			n, err := from.Read(buf[:n])
			if _, werr := to.Write(buf[:n]); err != nil || werr != nil {
				return
			}
			time.Sleep(time.Millisecond)
		}
	}
	go func() {
		for {
			in, err := ln.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", addr)
			if err != nil {
				in.Close()
				continue
			}
			go pour(in, out, !toGuest)
			go pour(out, in, toGuest)
		}
	}()
	return ln.Addr().(*net.TCPAddr).Port, func() { ln.Close() }, nil
}

func slowKernelClient(_ context.Context, e *Env) (string, error) {
	for _, crc := range drips {
		port := ports.Free()
		p, err := e.StartServer(port, "iser-initiator", "rdma", "rping", "-s", "-a", "127.0.0.1", "-S", dripSize, "-v", "--crc="+crc)
		if err != nil {
			return "", err
		}
		slow, stop, err := drip(e, "127.0.0.1:"+strconv.Itoa(port), false)
		if err != nil {
			return "", err
		}
		defer stop()
		out, err := e.In(settings("")+"dmesg -C; limited 100 rping -c -v -a $HOST -p %d -C 3 -S %s -V || die rping; quiet_kernel", slow, dripSize)
		if err == nil && strings.Count(out, "ping data: rdma-ping-") != 3 {
			err = fmt.Errorf("rping's client did not see three pings:\n%.300s", out)
		}
		if err == nil {
			err = p.wait(time.Minute)
		}
		if err != nil {
			return "", fmt.Errorf("CRC %s: %w", crc, err)
		}
	}
	return "3 pings of " + dripSize + " bytes verified, each way", nil
}

// slowKernelServer: our end drips its bytes to rping on kernel siw, with the CRC and
// without.
func slowKernelServer(_ context.Context, e *Env) (string, error) {
	g, err := e.Guest()
	if err != nil {
		return "", err
	}
	for _, crc := range drips {
		server, err := g.Start(settings("") + "dmesg -C; limited 100 rping -s -a $SELF -p 7174 -C 3 -S " + dripSize + " -V || die rping; quiet_kernel")
		if err != nil {
			return "", err
		}
		slow, stop, err := drip(e, "127.0.0.1:"+strconv.Itoa(e.Port(7174)), true)
		if err != nil {
			return "", err
		}
		defer stop()
		if err := e.retry(func() error {
			_, err := e.Host("iser-initiator", "rdma", "rping", "-c", "-a", "127.0.0.1", "-p", strconv.Itoa(slow), "-C", "3", "-S", dripSize, "-V", "--crc="+crc)
			return err
		}); err != nil {
			return "", fmt.Errorf("CRC %s: %w", crc, err)
		}
		if _, err = server.Wait(e.ctx); err != nil {
			return "", fmt.Errorf("CRC %s: %w", crc, err)
		}
	}
	return "3 pings of " + dripSize + " bytes verified, each way", nil
}

// splitCRC shows the defect of siw that the guest's module otherwise has repaired
// (see build.sh): the second part of a trailer goes where the first has gone.
func splitCRC(_ context.Context, e *Env) (string, error) {
	c, err := newVerbsConn()
	if err != nil {
		return "", err
	}
	defer c.close()
	g, err := e.Guest()
	if err != nil {
		return "", err
	}
	server, err := g.Start(settings("") + `dmesg -C; siw_set whole_trailer 0; rping -s -P -a $SELF -p 7174 & p=$!
for i in $(seq 900); do dmesg | grep -q 'siw: crc error' && break; sleep 0.1; done; sleep 0.5; kill $p; siw_set whole_trailer 1; dmesg | grep 'siw: crc error' || die no CRC error`)
	if err != nil {
		return "", err
	}
	if err := e.retry(func() error {
		slow, stop, err := drip(e, "127.0.0.1:"+strconv.Itoa(e.Port(7174)), true)
		if err != nil {
			return err
		}
		defer stop()
		c.close()
		if c, err = newVerbsConn(); err != nil {
			return err
		}
		_, err = rdma.Dial(e.ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", slow), c.qp, &rdma.ConnParams{CRC: rdma.CRCRequired, IRD: 1, ORD: 1})
		return err
	}); err != nil {
		return "", err
	}
	// RDMA Writes of no bytes, which every receiver accepts, until one is cut within
	// its CRC. Pieces join on their way, but their boundaries are multiples of 13 and
	// the FPDUs have 20 bytes: one of a few must lie within the last four.
	go func() {
		for c.qp.Err() == nil && e.ctx.Err() == nil {
			_ = c.qp.PostSend(rdma.SendWR{Op: rdma.OpWrite, Remote: rdma.RemoteAddr{STag: 1}}) // the queue may be full
			time.Sleep(time.Millisecond)
		}
	}()
	// siw may close without its Terminate, as in provokeUntilTold; its log tells then.
	seen := "Terminate: MPA, CRC mismatch"
	if err := c.ended(e.ctx, true, 2, 0, 2); errors.Is(err, errNoTerminate) {
		seen = "CRC error in the kernel's log; siw closed without its Terminate"
	} else if err != nil {
		return "", err
	}
	_, err = server.Wait(e.ctx)
	return seen, err
}

// kernelRejects connects to the kernel's NVMe target with nonsense; it is the
// listener of the kernel that gives a reason in the private data of its reject:
// record format 0 and status 2, "invalid record format", both little-endian.
func kernelRejects(_ context.Context, e *Env) (string, error) {
	if _, err := e.In("%s", settings("")+`dmesg -C; modprobe -a nvmet nvmet-rdma || die nvmet; cd /sys/kernel/config/nvmet || die configfs
mkdir -p subsystems/s ports/9 && cd ports/9 && echo rdma > addr_trtype && echo ipv4 > addr_adrfam && echo $SELF > addr_traddr && echo 7174 > addr_trsvcid && ln -s ../../subsystems/s subsystems/s || die port`); err != nil {
		return "", err
	}
	c, err := newVerbsConn()
	if err != nil {
		return "", err
	}
	defer c.close()
	_, err = rdma.Dial(e.ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", e.Port(7174)), c.qp, &rdma.ConnParams{PrivateData: bytes.Repeat([]byte{0x77}, 32), IRD: 1, ORD: 1})
	var rej *rdma.RejectError
	if !errors.As(err, &rej) || !bytes.Equal(rej.PrivateData, []byte{0, 0, 2, 0}) {
		return "", fmt.Errorf("connecting ended with %v", err)
	}
	_, err = e.In("cd /sys/kernel/config/nvmet && rm ports/9/subsystems/s && rmdir ports/9 subsystems/s; quiet_kernel")
	return fmt.Sprintf("rejected with %x", rej.PrivateData), err
}
