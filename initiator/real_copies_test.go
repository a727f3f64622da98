package initiator_test

import (
	"sync"
	"testing"
	"time"

	"softiser/initiator"
)

// readAhead is what a receiver may find in the socket when it has looked for memory that
// is lent, has found none, and is held up before it reads: what comes of commands that have
// been sent meanwhile is copied. That is rare, and bounded by its buffer.
const readAhead = 64 << 10

// READs of 4 KiB and more and solicited WRITEs are not copied in user space, at
// neither end.
func TestPayloadIsNotCopied(t *testing.T) {
	both(t, func(t *testing.T, tr initiator.Transport) {
		s := serve(t, 8<<20, nil)
		cfg := s.config(tr)
		// Over TCP, only what is asked for by R2T is solicited.
		cfg.NoImmediateData = tr == initiator.TransportTCP
		l := openLUN(t, cfg)
		copied := func() [2]uint64 {
			c := [2]uint64{l.Stats().PayloadCopied}
			for _, x := range s.Status().Sessions {
				c[1] += x.BytesCopied
			}
			return c
		}
		// Touch the volume first: the page states of a fresh one are not at issue.
		big := make([]byte, 1<<20)
		for off := int64(0); off < 8<<20; off += 1 << 20 {
			if _, err := l.WriteAt(big, off); err != nil {
				t.Fatal(err)
			}
		}
		for _, write := range []bool{false, true} {
			for _, n := range []int{4096, 8192, 16384, 32768, 65536, 1 << 20} {
				if write && n <= int(l.Sessions()[0].Info().MaxXmitDataLength) && tr == initiator.TransportISER {
					continue // travels with its command
				}
				run := func(times int) {
					for range times {
						var err error
						if write {
							_, err = l.WriteAt(big[:n], 0)
						} else {
							_, err = l.ReadAt(big[:n], 0)
						}
						if err != nil {
							t.Fatal(err)
						}
					}
				}
				// A receiver reads ahead by the pattern of the stream: the first
				// few of a new kind may find their first bytes read already.
				run(8)
				// More than the payload of one command is no receiver that was held up.
				if c := copies(copied, uint64(min(n, readAhead)), func() { run(16) }); c != nil {
					t.Errorf("write %v: of 16 times %d bytes %d were copied by the initiator and %d by the target", write, n, c[0], c[1])
				}
			}
		}
	})
}

// The same with 32 commands in flight over iSER, from the first one on: payloads
// of many commands arrive together then.
func TestPayloadIsNotCopiedAtDepth(t *testing.T) {
	const depth = 32
	s := serve(t, depth<<20, nil)
	cfg := s.config(initiator.TransportISER)
	cfg.NoImmediateData = true
	l := openLUN(t, cfg)
	for off := int64(0); off < depth<<20; off += 1 << 20 {
		if _, err := l.WriteAt(make([]byte, 1<<20), off); err != nil {
			t.Fatal(err)
		}
	}
	copied := func() [2]uint64 {
		c := [2]uint64{l.Stats().PayloadCopied}
		for _, x := range s.Status().Sessions {
			c[1] += x.BytesCopied
		}
		return c
	}
	for _, n := range []int{4096, 65536, 1 << 20} {
		for _, write := range []bool{false, true} {
			c := copies(copied, readAhead, func() {
				var wg sync.WaitGroup
				for i := range depth {
					wg.Go(func() {
						buf := make([]byte, n)
						for range max(2, 64*4096/n) {
							var err error
							if write {
								_, err = l.WriteAt(buf, int64(i)<<20)
							} else {
								_, err = l.ReadAt(buf, int64(i)<<20)
							}
							if err != nil {
								t.Error(err)
								return
							}
						}
					})
				}
				wg.Wait()
			})
			if c != nil {
				t.Errorf("write %v, %d bytes: %d bytes were copied by the initiator and %d by the target", write, n, c[0], c[1])
			}
		}
	}
}

// copies returns what both ends have copied in run, or nil if neither copied more than
// most. How often a receiver is held up in a run is up to the machine; one that copies what
// it need not does so in every run. So a run without counts, of a few.
func copies(copied func() [2]uint64, most uint64, run func()) (c []uint64) {
	for range 5 {
		before := settled(copied)
		run()
		after := settled(copied)
		if c = []uint64{after[0] - before[0], after[1] - before[1]}; c[0] <= most && c[1] <= most {
			return nil
		}
	}
	return c
}

// settled reads counters until they stand still: a receiver publishes its own
// when it goes to sleep, which a loaded machine lets it do late.
func settled(read func() [2]uint64) [2]uint64 {
	last := read()
	for same := 0; same < 10; {
		time.Sleep(5 * time.Millisecond) // standing still is something that lasts
		now := read()
		if same++; now != last {
			last, same = now, 0
		}
	}
	return last
}
