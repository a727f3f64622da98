package nbd

import (
	"fmt"
	"io"
	"testing"

	"softiser/initiator/blockio"
)

// nullLUN completes at once and moves nothing: what is measured is the server.
type nullLUN struct{ *memLUN }

func (l nullLUN) SubmitBatch(rs []*blockio.Request) {
	for _, r := range rs {
		r.Err = nil
		r.Done(r)
	}
}

// BenchmarkServer keeps 32 requests in flight on a unix socket.
func BenchmarkServer(b *testing.B) {
	const depth = 32
	for _, size := range []int{4 << 10, 64 << 10, 1 << 20} {
		for _, cmd := range []Command{CmdRead, CmdWrite} {
			b.Run(fmt.Sprintf("%v/%dKiB", cmd, size>>10), func(b *testing.B) {
				_, path := serveUnix(b, Config{Exports: []*Export{{Name: "vol", LUN: nullLUN{newMemLUN(b, 64<<20)}}}})
				c := dial(b, path)
				c.goExport("vol")
				req := requestBytes(0, cmd, 1, 0, uint32(size))
				reply := 16
				if cmd == CmdWrite {
					req = append(req, make([]byte, size)...)
				} else {
					reply += size
				}
				b.SetBytes(int64(size))
				b.ReportAllocs()
				b.ResetTimer()
				credit := make(chan struct{}, depth)
				go func() {
					for range b.N {
						credit <- struct{}{}
						if _, err := c.nc.Write(req); err != nil {
							return
						}
					}
				}()
				p := make([]byte, reply)
				for range b.N {
					if _, err := io.ReadFull(c.nc, p); err != nil {
						b.Fatal(err)
					}
					<-credit
				}
			})
		}
	}
}
