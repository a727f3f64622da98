package datamovertest

import (
	"fmt"
	"sync"
	"testing"
)

// Benchmark measures reads and writes at some sizes and queue depths.
func Benchmark(b *testing.B, pair Pair) { BenchmarkWith(b, pair, DefaultOptions()) }

// BenchmarkWith is Benchmark with other parameters.
func BenchmarkWith(b *testing.B, pair Pair, o Options) {
	o.Target.InitialR2T = true // as our target insists by default
	for _, op := range []byte{opRead, opWrite} {
		for _, c := range []struct{ size, depth int }{{4096, 1}, {4096, 32}, {65536, 8}, {1 << 20, 4}} {
			name := fmt.Sprintf("read/%dKiB/qd%d", c.size>>10, c.depth)
			if op == opWrite {
				name = fmt.Sprintf("write/%dKiB/qd%d", c.size>>10, c.depth)
			}
			b.Run(name, func(b *testing.B) {
				s := Open(b, pair, o)
				defer s.Close()
				s.Initiator.checkStack.Store(false)
				s.Target.checkStack.Store(false)
				b.SetBytes(int64(c.size))
				b.ReportAllocs()
				b.ResetTimer()
				var wg sync.WaitGroup
				for w := range c.depth {
					wg.Go(func() {
						segs := [][]byte{make([]byte, c.size)}
						for n := w; n < b.N; n += c.depth {
							cmd := s.Initiator.Submit(op, 0, segs, 0, 1)
							s.Initiator.dm.Push()
							<-cmd.done
							s.Initiator.free <- cmd
						}
					})
				}
				wg.Wait()
				b.StopTimer()
				st := s.Initiator.dm.Stats()
				b.ReportMetric(float64(st.ReceiveCalls+st.SendCalls)/float64(b.N), "syscalls/op")
				b.ReportMetric(float64(st.PayloadCopied)/float64(b.N), "copied-B/op")
			})
		}
	}
}
