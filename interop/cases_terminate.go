package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"

	"softiser/interop/internal/guest"
	"softiser/rdma"
)

// Each error that one end can provoke at the other, and whether the
// Terminate that answers it is understood. The victim is rdma-core's rping, which
// hands out an STag in its first message (16 bytes: address, STag, length):
//
//	rping client → our library: we misuse what it handed out, siw terminates
//	our library → rping server: we hand out nonsense, rping uses it, we terminate
var terminateCases = func() []Case {
	var cases []Case
	for _, p := range provocations {
		cases = append(cases, Case{
			Name:   "terminate/siw-sends-" + p.name,
			Expect: fmt.Sprintf("siw terminates: layer %d, type %d, code %#02x; or just closes while a Send of its own is under way", p.layer, p.etype, p.code),
			Short:  p.short,
			Run: func(_ context.Context, e *Env) (string, error) {
				return provokeUntilTold(e, p)
			},
		})
	}
	return append(cases,
		Case{Name: "terminate/we-send-bad-stag", Expect: "our Terminate ends siw's Read; rping sees the end at once", Short: true,
			Run: func(_ context.Context, e *Env) (string, error) {
				return provoked(e, 0, 1, 0, func(info []byte, mr *rdma.MR) { binary.BigEndian.PutUint32(info[8:], mr.RKey()^0x5a5a5a00) })
			}},
		Case{Name: "terminate/we-send-bounds", Expect: "our Terminate ends siw's Read; rping sees the end at once",
			Run: func(_ context.Context, e *Env) (string, error) {
				return provoked(e, 0, 1, 1, func(info []byte, mr *rdma.MR) { binary.BigEndian.PutUint64(info, mr.Addr()+uint64(mr.Len())-8) })
			}})
}()

// provocation is one misuse of memory that the kernel has handed out.
type provocation struct {
	name               string
	layer, etype, code uint8
	short              bool
	// post posts the misuse, given rping's STag and its extent.
	post func(c *verbsConn, to uint64, stag, size uint32) error
}

var provocations = []provocation{
	{"write-bad-stag", 1, 1, 0x00, true, func(c *verbsConn, to uint64, stag, size uint32) error {
		return c.write(to, stag^0x00ffff00, 16)
	}},
	{"write-bad-key", 1, 1, 0x00, false, func(c *verbsConn, to uint64, stag, size uint32) error {
		return c.write(to, stag^0x01, 16)
	}},
	{"write-bounds", 1, 1, 0x01, false, func(c *verbsConn, to uint64, stag, size uint32) error {
		return c.write(to+uint64(size)-8, stag, 16)
	}},
	{"read-bad-stag", 0, 1, 0x00, true, func(c *verbsConn, to uint64, stag, size uint32) error {
		return c.read(to, stag^0x00ffff00, 16)
	}},
	{"read-bounds", 0, 1, 0x01, false, func(c *verbsConn, to uint64, stag, size uint32) error {
		return c.read(to+uint64(size)-8, stag, 16)
	}},
	{"send-too-long", 1, 2, 0x02, false, func(c *verbsConn, to uint64, stag, size uint32) error {
		return c.send(4096)
	}},
	{"send-inv-bad-stag", 0, 2, 0x09, false, func(c *verbsConn, to uint64, stag, size uint32) error {
		return c.qp.PostSend(rdma.SendWR{Op: rdma.OpSendInv, InvSTag: stag ^ 0x00ffff00, SGL: c.sge(16)})
	}},
}

var errNoTerminate = errors.New("not with a Terminate")

// provokeUntilTold provokes siw again when it has closed without its Terminate.
// It may: siw_send_terminate gives up when a work request of that queue pair is
// still being sent, which is so for a moment after the bytes have left.
func provokeUntilTold(e *Env, p provocation) (seen string, err error) {
	for silent := 0; ; silent++ {
		seen, err = provoke(e, p)
		if err == nil && silent > 0 {
			seen += fmt.Sprintf("; before that it closed without one, %d times", silent)
		}
		if !errors.Is(err, errNoTerminate) || silent == 2 {
			return seen, err
		}
	}
}

// verbsConn is one connection of the library with memory to play with.
type verbsConn struct {
	dev  *rdma.Device
	pd   *rdma.PD
	cq   *rdma.CQ
	qp   *rdma.QP
	mr   *rdma.MR
	mem  []byte
	down []func() error
}

// newVerbsConn makes a queue pair of ours with memory to aim at.
func newVerbsConn() (_ *verbsConn, err error) {
	c := &verbsConn{mem: make([]byte, 64<<10)}
	defer func() {
		if err != nil {
			c.close()
		}
	}()
	if c.dev, err = rdma.Open(nil); err != nil {
		return c, err
	}
	c.down = append(c.down, c.dev.Close)
	if c.pd, err = c.dev.AllocPD(); err != nil {
		return c, err
	}
	c.down = append(c.down, c.pd.Dealloc)
	if c.cq, err = c.dev.CreateCQ(rdma.CQConfig{Depth: 64}); err != nil {
		return c, err
	}
	c.down = append(c.down, c.cq.Close)
	if c.mr, err = c.pd.RegMR(c.mem, rdma.AccessLocalWrite|rdma.AccessRemoteRead|rdma.AccessRemoteWrite); err != nil {
		return c, err
	}
	c.down = append(c.down, c.mr.Dereg)
	if c.qp, err = c.pd.CreateQP(rdma.QPConfig{SendCQ: c.cq, RecvCQ: c.cq}); err != nil {
		return c, err
	}
	c.down = append(c.down, c.qp.Close)
	// Room for what rping sends: 16 bytes each.
	for i := range 4 {
		if err := c.qp.PostRecv(rdma.RecvWR{SGL: []rdma.SGE{{Mem: c.mem[i*64 : i*64+16], LKey: c.mr.LKey()}}}); err != nil {
			return c, err
		}
	}
	return c, nil
}

func (c *verbsConn) close() {
	for i := len(c.down) - 1; i >= 0; i-- {
		c.down[i]()
	}
}

// visitor runs a script in the guest, with the port of a new listener for PORT,
// and returns what asks for a connection then.
func (c *verbsConn) visitor(e *Env, script string) (*guest.Job, *rdma.ConnRequest, error) {
	ln, err := c.dev.Listen("tcp", "127.0.0.1:0", nil)
	if err != nil {
		return nil, nil, err
	}
	c.down = append(c.down, ln.Close)
	g, err := e.Guest()
	if err != nil {
		return nil, nil, err
	}
	_, port, _ := strings.Cut(ln.Addr().String(), ":")
	job, err := g.Start(settings("") + strings.ReplaceAll(script, "PORT", port))
	if err != nil {
		return nil, nil, err
	}
	req, err := ln.Accept(e.ctx)
	return job, req, err
}

func (c *verbsConn) sge(n int) []rdma.SGE {
	return []rdma.SGE{{Mem: c.mem[4096 : 4096+n], LKey: c.mr.LKey()}}
}

func (c *verbsConn) send(n int) error {
	return c.qp.PostSend(rdma.SendWR{Op: rdma.OpSend, SGL: c.sge(n)})
}

func (c *verbsConn) write(to uint64, stag uint32, n int) error {
	return c.qp.PostSend(rdma.SendWR{Op: rdma.OpWrite, SGL: c.sge(n), Remote: rdma.RemoteAddr{TO: to, STag: stag}})
}

func (c *verbsConn) read(to uint64, stag uint32, n int) error {
	return c.qp.PostSend(rdma.SendWR{Op: rdma.OpRead, SGL: c.sge(n), Remote: rdma.RemoteAddr{TO: to, STag: stag}})
}

// ended waits for the end of the connection and compares its reason.
func (c *verbsConn) ended(ctx context.Context, remote bool, layer, etype, code uint8) error {
	select {
	case <-c.qp.Done():
	case <-ctx.Done():
		return fmt.Errorf("the connection did not end: %w", context.Cause(ctx))
	}
	var te *rdma.TerminateError
	if err := c.qp.Err(); !errors.As(err, &te) {
		return fmt.Errorf("the connection ended with %v, %w", err, errNoTerminate)
	}
	if te.Remote != remote || te.Layer != layer || te.EType != etype || te.Code != code {
		return fmt.Errorf("ended with %v (remote %v, layer %d, type %d, code %#02x)", te, te.Remote, te.Layer, te.EType, te.Code)
	}
	return nil
}

// provoke is the server of a kernel rping client and misuses its memory.
func provoke(e *Env, p provocation) (string, error) {
	c, err := newVerbsConn()
	if err != nil {
		return "", err
	}
	defer c.close()
	client, req, err := c.visitor(e, "dmesg -C; timeout 30 rping -c -a $HOST -p PORT -C 1 -S 100 -v; rc=$?; echo rc $rc; [ $rc != 124 ]")
	if err != nil {
		return "", err
	}
	if err := req.Accept(e.ctx, c.qp, &rdma.ConnParams{CRC: rdma.CRCOff, IRD: 1, ORD: 1}); err != nil {
		return "", err
	}
	if err := c.cq.Wait(e.ctx); err != nil {
		return "", fmt.Errorf("rping's first message: %w", err)
	}
	var wc [1]rdma.WC
	if c.cq.Poll(wc[:]) != 1 || wc[0].ByteLen != 16 {
		return "", fmt.Errorf("rping's first message: %+v", wc[0])
	}
	to, stag, size := binary.BigEndian.Uint64(c.mem), binary.BigEndian.Uint32(c.mem[8:]), binary.BigEndian.Uint32(c.mem[12:])
	time.Sleep(100 * time.Millisecond) // siw's Send is here; let siw be done with it
	if err := p.post(c, to, stag, size); err != nil {
		return "", err
	}
	if err := c.ended(e.ctx, true, p.layer, p.etype, p.code); err != nil {
		return "", err
	}
	if out, err := client.Wait(e.ctx); err != nil {
		return out, fmt.Errorf("rping's client: %w", err)
	}
	_, err = e.In("quiet_kernel")
	return "as expected, understood by us", err
}

// provoked is the client of a kernel rping server and lies about its memory.
func provoked(e *Env, layer, etype, code uint8, lie func(info []byte, mr *rdma.MR)) (string, error) {
	g, err := e.Guest()
	if err != nil {
		return "", err
	}
	server, err := g.Start(settings("") + "dmesg -C; timeout 60 rping -s -a $SELF -p 7174 -C 1 -S 100 -v; rc=$?; echo rc $rc; [ $rc != 124 ]")
	if err != nil {
		return "", err
	}
	var c *verbsConn
	if err := e.retry(func() error {
		if c != nil {
			c.close()
		}
		if c, err = newVerbsConn(); err != nil {
			return err
		}
		_, err := rdma.Dial(e.ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", e.Port(7174)), c.qp, &rdma.ConnParams{CRC: rdma.CRCOff, IRD: 1, ORD: 1})
		return err
	}); err != nil {
		return "", err
	}
	defer c.close()
	info := c.mem[4096:4112]
	binary.BigEndian.PutUint64(info, c.mr.Addr())
	binary.BigEndian.PutUint32(info[8:], c.mr.RKey())
	binary.BigEndian.PutUint32(info[12:], 100)
	lie(info, c.mr)
	if err := c.send(16); err != nil {
		return "", err
	}
	if err := c.ended(e.ctx, false, layer, etype, code); err != nil {
		return "", err
	}
	if out, err := server.Wait(e.ctx); err != nil || !strings.Contains(out, "DISCONNECT EVENT") {
		return out, fmt.Errorf("rping's server did not report it: %v\n%s", err, out)
	}
	_, err = e.In("quiet_kernel")
	return "as expected, understood by siw", err
}
