package rdma_test

import (
	"context"
	"fmt"
	"net/netip"

	"softiser/rdma"
)

// openUD makes a queue pair for datagrams at a local address.
func openUD(local string) *end {
	dev, err := rdma.Open(&rdma.DeviceConfig{Provider: rdma.ProviderRoCE})
	check(err)
	pd, err := dev.AllocPD()
	check(err)
	cq, err := dev.CreateCQ(rdma.CQConfig{})
	check(err)
	qp, err := pd.CreateQP(rdma.QPConfig{SendCQ: cq, RecvCQ: cq, Type: rdma.TypeUD, Datagram: rdma.DatagramParams{LocalAddr: netip.MustParseAddr(local)}})
	check(err)
	return &end{dev, pd, cq, qp}
}

// Datagrams over RoCE: the client looks the service up, and the service answers whoever
// the header in front of the datagram says has asked.
func ExampleQP_Resolve() {
	server, client := openUD("127.4.7.1"), openUD("127.4.7.2")
	ln, err := server.dev.ServeDatagrams("roce", "127.4.7.1:7174", func(*rdma.Lookup) rdma.LookupAnswer {
		return rdma.LookupAnswer{QP: server.qp}
	})
	check(err)
	question, answer := make([]byte, rdma.GRHLen+8), make([]byte, rdma.GRHLen+8)
	check(server.qp.PostRecv(rdma.RecvWR{SGL: server.sge(question)}))
	check(client.qp.PostRecv(rdma.RecvWR{SGL: client.sge(answer)}))

	peer, err := client.qp.Resolve(context.Background(), "roce", ln.Addr().String(), nil)
	check(err)
	check(client.qp.PostSend(rdma.SendWR{Op: rdma.OpSendImm, Imm: 42, SGL: client.sge([]byte("question")), Dest: peer.Destination}))

	wc := server.wait()
	from, _, err := rdma.ParseGRH(question)
	check(err)
	fmt.Printf("server: %q with %d from %v\n", question[rdma.GRHLen:wc.ByteLen], wc.Imm, from)
	ah, err := server.pd.CreateAH(from)
	check(err)
	check(server.qp.PostSend(rdma.SendWR{
		Op: rdma.OpSend, SGL: server.sge([]byte("answer")),
		Dest: rdma.Destination{AH: ah, QPN: wc.SrcQPN, QKey: rdma.DefaultQKey},
	}))

	wc = client.wait()
	fmt.Printf("client: %q\n", answer[rdma.GRHLen:wc.ByteLen])

	check(ln.Close())
	for _, e := range []*end{server, client} {
		check(e.qp.Close())
		check(e.cq.Close())
		check(e.pd.Dealloc())
		check(e.dev.Close())
	}
	// Output:
	// server: "question" with 42 from 127.4.7.2
	// client: "answer"
}
