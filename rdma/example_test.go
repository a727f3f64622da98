package rdma_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"log"

	"softiser/rdma"
)

// end is what each side of the examples needs: a device, a protection domain, a
// completion queue and a queue pair.
type end struct {
	dev *rdma.Device
	pd  *rdma.PD
	cq  *rdma.CQ
	qp  *rdma.QP
}

func open() *end {
	dev, err := rdma.Open(nil)
	check(err)
	pd, err := dev.AllocPD()
	check(err)
	cq, err := dev.CreateCQ(rdma.CQConfig{})
	check(err)
	qp, err := pd.CreateQP(rdma.QPConfig{SendCQ: cq, RecvCQ: cq})
	check(err)
	return &end{dev, pd, cq, qp}
}

// wait returns the next completion.
func (e *end) wait() rdma.WC {
	wc := make([]rdma.WC, 1)
	for e.cq.Poll(wc) == 0 {
		check(e.cq.Wait(context.Background()))
	}
	if wc[0].Status != rdma.StatusSuccess {
		log.Fatalf("%v: %v (%v)", wc[0].Opcode, wc[0].Status, e.qp.Err())
	}
	return wc[0]
}

// sge names local memory; it need not be registered.
func (e *end) sge(mem []byte) []rdma.SGE {
	return []rdma.SGE{{Mem: mem, LKey: e.pd.LocalDMAKey()}}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// The tutorial: two ends register memory, the server tells the client by a Send
// where its buffer is, and the client reads it and writes to it without any help
// of the server.
func Example_tutorial() {
	ctx := context.Background()
	server, client := open(), open()

	// The server's buffer, open to its peer for reading and writing.
	buffer := []byte("what the server has to say      ")
	mr, err := server.pd.RegMR(buffer, rdma.AccessLocalWrite|rdma.AccessRemoteRead|rdma.AccessRemoteWrite)
	check(err)

	ln, err := server.dev.Listen("tcp", "127.0.0.1:0", nil)
	check(err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		// A buffer for the client's first message, before the connection exists.
		ready := make([]byte, 16)
		check(server.qp.PostRecv(rdma.RecvWR{SGL: server.sge(ready)}))
		req, err := ln.Accept(ctx)
		check(err)
		check(req.Accept(ctx, server.qp, nil))
		server.wait() // MPA: the client speaks first

		// Tell it where the buffer is.
		where := binary.BigEndian.AppendUint64(nil, mr.Addr())
		where = binary.BigEndian.AppendUint32(where, mr.RKey())
		check(server.qp.PostRecv(rdma.RecvWR{SGL: server.sge(ready)}))
		check(server.qp.PostSend(rdma.SendWR{Op: rdma.OpSend, SGL: server.sge(where)}))

		n := server.wait().ByteLen // "done" has arrived, and so has what was written before
		fmt.Printf("server: client is %s, buffer holds %q\n", ready[:n], buffer)
	}()

	where := make([]byte, 12)
	check(client.qp.PostRecv(rdma.RecvWR{SGL: client.sge(where)}))
	_, err = rdma.Dial(ctx, "tcp", ln.Addr().String(), client.qp, nil)
	check(err)
	check(client.qp.PostSend(rdma.SendWR{Op: rdma.OpSend, SGL: client.sge([]byte("ready"))}))
	client.wait()
	remote := rdma.RemoteAddr{TO: binary.BigEndian.Uint64(where), STag: binary.BigEndian.Uint32(where[8:])}

	// RDMA Read: the server does not notice.
	got := make([]byte, len(buffer))
	check(client.qp.PostSend(rdma.SendWR{Op: rdma.OpRead, Flags: rdma.FlagSignaled, SGL: client.sge(got), Remote: remote}))
	client.wait()
	fmt.Printf("client: read %q\n", got)

	// RDMA Write, and a Send behind it to say so.
	check(client.qp.PostSend(
		rdma.SendWR{Op: rdma.OpWrite, SGL: client.sge([]byte("what the client")), Remote: remote},
		rdma.SendWR{Op: rdma.OpSend, Flags: rdma.FlagSignaled, SGL: client.sge([]byte("done"))}))
	client.wait()
	<-done

	client.qp.Disconnect()
	<-client.qp.Done()
	<-server.qp.Done()
	check(ln.Close())
	for _, e := range []*end{client, server} {
		check(e.qp.Close())
	}
	check(mr.Dereg())

	// Output:
	// client: read "what the server has to say      "
	// server: client is done, buffer holds "what the client has to say      "
}

// A window lends memory for one exchange: the peer may use it until it sends its
// answer, which closes the window (Send with Invalidate).
func ExampleWindow() {
	ctx := context.Background()
	server, client := open(), open()
	ln, err := server.dev.Listen("tcp", "127.0.0.1:0", nil)
	check(err)
	request := make([]byte, 12)
	check(server.qp.PostRecv(rdma.RecvWR{SGL: server.sge(request)}))
	go func() {
		req, err := ln.Accept(ctx)
		check(err)
		check(req.Accept(ctx, server.qp, nil))
		server.wait()
		remote := rdma.RemoteAddr{TO: binary.BigEndian.Uint64(request), STag: binary.BigEndian.Uint32(request[8:])}
		check(server.qp.PostSend(
			rdma.SendWR{Op: rdma.OpWrite, SGL: server.sge([]byte("payload")), Remote: remote},
			rdma.SendWR{Op: rdma.OpSendInv, SGL: server.sge([]byte("answer")), InvSTag: remote.STag}))
	}()

	_, err = rdma.Dial(ctx, "tcp", ln.Addr().String(), client.qp, nil)
	check(err)
	w, err := client.pd.AllocWindow()
	check(err)
	memory, answer := make([]byte, 7), make([]byte, 16)
	stag, base, err := w.Bind(client.qp, [][]byte{memory}, rdma.AccessRemoteWrite)
	check(err)
	check(client.qp.PostRecv(rdma.RecvWR{SGL: client.sge(answer)}))
	msg := binary.BigEndian.AppendUint64(nil, base)
	msg = binary.BigEndian.AppendUint32(msg, stag)
	check(client.qp.PostSend(rdma.SendWR{Op: rdma.OpSend, SGL: client.sge(msg)}))
	wc := client.wait()
	fmt.Printf("%s: %s; invalidated: %v, still valid: %v\n", answer[:wc.ByteLen], memory, wc.InvSTag == stag, w.Valid())

	client.qp.Disconnect()
	<-client.qp.Done()
	check(w.Close())
	check(client.qp.Close())
	check(server.qp.Close())
	check(ln.Close())
	// Output: answer: payload; invalidated: true, still valid: false
}

// A CQ handler runs on the goroutine that produced the completions, once per
// batch; what it posts leaves in one system call.
func ExampleCQConfig_handler() {
	ctx := context.Background()
	dev, err := rdma.Open(nil)
	check(err)
	pd, err := dev.AllocPD()
	check(err)
	bufs := make([]byte, 64)
	// An echo server: every message goes back as it came.
	wcs := make([]rdma.WC, 16)
	cq, err := dev.CreateCQ(rdma.CQConfig{Handler: func(cq *rdma.CQ) {
		for n := cq.Poll(wcs); n > 0; n = cq.Poll(wcs) {
			for _, wc := range wcs[:n] {
				if wc.Status == rdma.StatusSuccess && wc.Opcode == rdma.WCRecv {
					sgl := []rdma.SGE{{Mem: bufs[:wc.ByteLen], LKey: pd.LocalDMAKey()}}
					check(wc.QP.PostSend(rdma.SendWR{Op: rdma.OpSend, Flags: rdma.FlagInline, SGL: sgl}))
					check(wc.QP.PostRecv(rdma.RecvWR{SGL: []rdma.SGE{{Mem: bufs, LKey: pd.LocalDMAKey()}}}))
				}
			}
		}
	}})
	check(err)
	qp, err := pd.CreateQP(rdma.QPConfig{SendCQ: cq, RecvCQ: cq})
	check(err)
	check(qp.PostRecv(rdma.RecvWR{SGL: []rdma.SGE{{Mem: bufs, LKey: pd.LocalDMAKey()}}}))
	ln, err := dev.Listen("tcp", "127.0.0.1:0", nil)
	check(err)
	go func() {
		req, err := ln.Accept(ctx)
		check(err)
		check(req.Accept(ctx, qp, nil))
	}()

	client := open()
	_, err = rdma.Dial(ctx, "tcp", ln.Addr().String(), client.qp, nil)
	check(err)
	for _, word := range []string{"one", "two"} {
		answer := make([]byte, 16)
		check(client.qp.PostRecv(rdma.RecvWR{SGL: client.sge(answer)}))
		check(client.qp.PostSend(rdma.SendWR{Op: rdma.OpSend, SGL: client.sge([]byte(word))}))
		fmt.Printf("%s\n", answer[:client.wait().ByteLen])
	}
	check(client.qp.Close())
	check(qp.Close())
	check(ln.Close())
	// Output:
	// one
	// two
}
