package main

import (
	"context"
	"os"
	"runtime"
	"strconv"
	"testing"

	"softiser/initiator"
	"softiser/initiator/blockio"
	"softiser/initiator/nvmf"
	"softiser/internal/await"
)

// held is what is in use of this process, which has both ends.
type held struct {
	goroutines, files int
	heap              uint64 // bytes
}

func holds(t *testing.T) (h held) {
	t.Helper()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip(err)
	}
	return held{runtime.NumGoroutine(), len(files), m.HeapAlloc}
}

// Connects and disconnects in a row leave no goroutine, no descriptor and no memory behind,
// in neither end. ISER_CONNECTS says how many; 10000 take some minutes.
func TestConnectsInARow(t *testing.T) {
	n := 100
	if testing.Short() {
		n = 20
	}
	if s := os.Getenv("ISER_CONNECTS"); s != "" {
		var err error
		if n, err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
	}
	addr, _ := serveBoth(t)
	lun := func(tr initiator.Transport) func(context.Context) (blockio.Volume, error) {
		return func(ctx context.Context) (blockio.Volume, error) {
			return initiator.Open(ctx, initiator.Config{Transport: tr, Address: addr, TargetName: testIQN})
		}
	}
	namespace := func(tr nvmf.Transport) func(context.Context) (blockio.Volume, error) {
		return func(ctx context.Context) (blockio.Volume, error) {
			return nvmf.Open(ctx, nvmf.Config{Transport: tr, Address: addr, Subsystem: testNQN, Queues: 2})
		}
	}
	for name, open := range map[string]func(context.Context) (blockio.Volume, error){
		"iser": lun(initiator.TransportISER), "iscsi": lun(initiator.TransportTCP),
		"nvme+tcp": namespace(nvmf.TransportTCP), "nvme+rdma": namespace(nvmf.TransportRDMA),
	} {
		t.Run(name, func(t *testing.T) {
			buf := make([]byte, 4096)
			connect := func(times int) {
				for range times {
					v, err := open(t.Context())
					if err != nil {
						t.Fatal(err)
					}
					if err := v.Do(t.Context(), &blockio.Request{Op: blockio.OpRead, Buf: buf}); err != nil {
						t.Error(err)
					}
					if err := v.Close(); err != nil {
						t.Fatal(err)
					}
				}
			}
			connect(10) // pools and tables have their sizes then
			var before held
			await.True(t, "the warm-up has ended", func() bool {
				last := before
				before = holds(t)
				return last.goroutines == before.goroutines && last.files == before.files
			})
			connect(n)
			const heap = 8 << 20 // pools of a later garbage collection
			var after held
			await.True(t, "what the connections had is given back", func() bool {
				after = holds(t)
				return after.goroutines <= before.goroutines && after.files <= before.files && after.heap <= before.heap+heap
			})
			t.Logf("%d connects: %+v before, %+v after", n, before, after)
		})
	}
}
