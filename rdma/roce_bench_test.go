package rdma_test

import (
	"fmt"
	"net"
	"testing"

	"softiser/rdma"
)

// BenchmarkRoCE are the streams and the ping-pong of BenchmarkStream and BenchmarkPingPong
// over RoCE, with the path MTU of loopback, 4096, beside the ping-pong of plain UDP
// sockets. Every packet has its ICRC.
func BenchmarkRoCE(b *testing.B) {
	for _, op := range []rdma.Opcode{rdma.OpWrite, rdma.OpRead, rdma.OpSend} {
		for _, c := range []struct{ size, depth int }{{4096, 32}, {1 << 20, 8}} {
			b.Run(fmt.Sprintf("%v/%d/qd%d", op, c.size, c.depth), func(b *testing.B) {
				streamOver(b, overRoCE(), op, c.size, c.depth, rdma.CRCRequired)
			})
		}
	}
	for _, size := range []int{8, 4000} {
		b.Run(fmt.Sprintf("ping/send/%d", size), func(b *testing.B) {
			pingPongOver(b, overRoCE(), size, rdma.CRCRequired, 0)
		})
		b.Run(fmt.Sprintf("ping/net.UDPConn/%d", size), func(b *testing.B) { udpPingPong(b, size) })
	}
}

// udpPingPong is what a datagram and the answer to it take.
func udpPingPong(b *testing.B, size int) {
	var ends [2]*net.UDPConn
	for i := range ends {
		c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
		if err != nil {
			b.Fatal(err)
		}
		defer c.Close()
		ends[i] = c
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, size)
		for {
			_, from, err := ends[1].ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			if _, err := ends[1].WriteToUDPAddrPort(buf, from); err != nil {
				return
			}
		}
	}()
	to, buf := ends[1].LocalAddr().(*net.UDPAddr).AddrPort(), make([]byte, size)
	b.ReportAllocs()
	b.ResetTimer()
	cpu := cpuTime()
	for range b.N {
		if _, err := ends[0].WriteToUDPAddrPort(buf, to); err != nil {
			b.Fatal(err)
		}
		if _, _, err := ends[0].ReadFromUDPAddrPort(buf); err != nil {
			b.Fatal(err)
		}
	}
	b.StopTimer()
	reportCPU(b, cpu)
	_ = ends[1].Close()
	<-done
}
