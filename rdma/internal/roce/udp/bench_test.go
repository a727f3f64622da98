package udp

import (
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"softiser/internal/loopback"
)

// BenchmarkLoopback moves packets of 16 bytes of headers and a payload over loopback:
// by a plain UDP socket and a call per packet, in batches, and in batches that the
// kernel cuts and joins. One goroutine sends and waits for the other when it is 128
// packets ahead, as rxe's requester is; what is measured is what arrives.
func BenchmarkLoopback(b *testing.B) {
	for _, payload := range []int{4096, 1024} {
		for _, way := range []string{"plain UDP", "batches", "GSO and GRO"} {
			b.Run(fmt.Sprintf("%s/%d", way, payload), func(b *testing.B) {
				loopback.Namespace(b, loopback.MTU)
				if way == "plain UDP" {
					plain(b, payload)
				} else {
					inBatches(b, payload, way == "batches")
				}
			})
		}
	}
}

const (
	headers = 16
	window  = 512 << 10
)

func inBatches(b *testing.B, payload int, single bool) {
	p := open(b, Config{Addr: lo4, NoGSO: single, NoGRO: single})
	to, err := p.Peer(lo4)
	if err != nil {
		b.Fatal(err)
	}
	var got atomic.Int64
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = p.Receivers()[0].Serve(func(_ netip.AddrPort, pkt []byte) { got.Add(1) }, func() {})
	}()
	burst, l, ahead := NewBurst(), p.Lane(1), window/payload
	hdrs, data := make([]byte, ahead*headers), make([]byte, 64*payload)
	start(b, payload)
	for sent := 0; sent < b.N; {
		burst.Reset()
		i, n := 0, min(ahead/2, b.N-sent)
		for i < n && burst.Message(to, headers+payload) {
			for k := 0; k < l.MaxPackets() && i < n && burst.Packet(hdrs[i*headers:][:headers], data[i%64*payload:][:payload]); k++ {
				i++
			}
		}
		if err := l.Send(burst); err != nil {
			b.Fatal(err)
		}
		sent += i
		catchUp(b, &got, sent-ahead)
	}
	b.StopTimer()
	p.Close()
	<-done
}

func plain(b *testing.B, payload int) {
	rx, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		b.Fatal(err)
	}
	tx, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = tx.Close() }()
	if err := rx.SetReadBuffer(8 << 20); err != nil {
		b.Fatal(err)
	}
	var got atomic.Int64
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 64<<10)
		for {
			if _, _, err := rx.ReadFromUDPAddrPort(buf); err != nil {
				return
			}
			got.Add(1)
		}
	}()
	to, data, ahead := rx.LocalAddr().(*net.UDPAddr).AddrPort(), make([]byte, headers+payload), window/payload
	start(b, payload)
	for sent := range b.N {
		if _, err := tx.WriteToUDPAddrPort(data, to); err != nil {
			b.Fatal(err)
		}
		if sent%(ahead/2) == 0 {
			catchUp(b, &got, sent-ahead)
		}
	}
	catchUp(b, &got, b.N)
	b.StopTimer()
	_ = rx.Close()
	<-done
}

func start(b *testing.B, payload int) {
	b.SetBytes(int64(payload))
	b.ReportAllocs()
	b.ResetTimer()
}

// catchUp waits until so many packets have arrived.
func catchUp(b *testing.B, got *atomic.Int64, want int) {
	for begin := time.Now(); got.Load() < int64(want); {
		if time.Since(begin) > 10*time.Second {
			b.Fatalf("%d of %d packets have arrived", got.Load(), want)
		}
		time.Sleep(10 * time.Microsecond) // to spin would take the processor of the receiver
	}
}
